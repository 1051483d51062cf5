"""What hopper-form-boxes rejects."""

from __future__ import annotations

import pytest
from xdsl.parser import Parser

from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.passes.loop.hopper_form_boxes import HopperFormBoxesPass

TILE, BARRIER = "memref<2x128x64xf16, #loop.space<shared>>", "memref<2x!hopper.mbarrier, #loop.space<shared>>"

REJECTED = {
    "computes": (
        "%v0 = loop.load %A[%r, %c] : memref<300x64xf16>\n%v = arith.addf %v0, %v0 : f16",
        "its elements are computed by arith.addf",
    ),
    "not zero beyond": (
        "%v = loop.load %A[%r, %c] where %p else %one : memref<300x64xf16>",
        "its elements are not those of a tensor, or not 0 beyond it",
    ),
    "ends before the tensor": (
        "%in = arith.cmpi slt, %r, %c100 : index\n%v = loop.load %A[%r, %c] where %in else %zero : memref<300x64xf16>",
        "elements are left out where",
    ),
    "left out by data": (
        "%v = loop.load %A[%r, %c] where %bit else %zero : memref<300x64xf16>",
        "elements are left out by more than comparisons of indices",
    ),
    "left out by either of two": (
        "%in = arith.cmpi slt, %r, %c100 : index\n%or = arith.ori %in, %p : i1\n"
        "%v = loop.load %A[%r, %c] where %or else %zero : memref<300x64xf16>",
        "elements are left out by more than comparisons of indices",
    ),
    "scattered": (
        "%at = arith.muli %r, %c2 : index\n%v = loop.load %A[%at, %c] : memref<300x64xf16>",
        "dimension 0 of the tensor is indexed by",
    ),
    "one argument twice": ("%v = loop.load %A[%r, %r] : memref<300x64xf16>", "dimension 1 of the tensor is indexed by"),
    "an argument nowhere": ("%v = loop.load %A[%r, %c2] : memref<300x64xf16>", "argument 1 moves along no dimension"),
    "transposed": ("%v = loop.load %A[%c, %r] : memref<300x64xf16>", "neighbours lie 128 bytes apart"),
    "misaligned rows": ("%v = loop.load %B[%r, %c] : memref<300x65xf16>", "a stride of 130 bytes"),
}


def refusal(text: str) -> TreadleError:
    """Why a module's copies are no boxes."""
    context = treadle_context()
    module = Parser(context, text).parse_module()
    module.verify()
    with pytest.raises(TreadleError) as error:
        HopperFormBoxesPass().apply(context, module)
    return error.value


@pytest.mark.parametrize(("body", "message"), REJECTED.values(), ids=REJECTED)
def test_rejections(body: str, message: str) -> None:
    text = f"""
    loop.func @f(%A: memref<300x64xf16>, %B: memref<300x65xf16>, %bits: memref<1xi1>, %C: memref<1xf16>)
        grid(%b in 3) threads(%t in 128) {{
      %tile = loop.alloc : {TILE}
      %full = loop.alloc : {BARRIER}
      %zero = arith.constant 0.0 : f16
      %one = arith.constant 1.0 : f16
      %c0 = arith.constant 0 : index
      %c2 = arith.constant 2 : index
      %c100 = arith.constant 100 : index
      %bit = loop.load %bits[%c0] : memref<1xi1>
      %p = arith.cmpi slt, %t, %c100 : index
      hopper.bulk_copy to %tile[%c0, %c0, %c0] at %full[%c0] {{
      ^bb0(%r : index, %c : index):
        {body}
        hopper.yield %v : f16
      }} : {TILE}, {BARRIER}
    }}"""
    error = refusal(text)
    assert message in error.message and "a copy to %tile is no box" in error.message
    assert error.accepted


NO_PIXELS = {
    "fewer rows": "from [%b, %c0] of [16, 64]",
    "more channels": "from [%b, %c0] of [18, 128]",
    "fewer channels": "from [%b, %c0] of [18, 32]",
    "no part": "",
}


@pytest.mark.parametrize("part", NO_PIXELS.values(), ids=NO_PIXELS)
def test_parts_that_are_no_pixels(part: str) -> None:
    """Rows and channels behind the ends would not be 0."""
    text = f"""
    loop.func @f(%x: memref<2x7x7x64xf16>, %C: memref<1xf16>) grid(%b in 18) threads(%t in 128) {{
      %tile = loop.alloc : {TILE}
      %full = loop.alloc : {BARRIER}
      %c0 = arith.constant 0 : index
      %c2 = arith.constant 2 : index
      %c3 = arith.constant 3 : index
      %c9 = arith.constant 9 : index
      hopper.bulk_copy to %tile[%c0, %c0, %c0] at %full[%c0] {part} {{
      ^bb0(%r : index, %c : index):
        %row = arith.addi %b, %r : index
        %n = arith.divui %row, %c9 : index
        %rest = arith.remui %row, %c9 : index
        %h = arith.divui %rest, %c3 : index
        %w = arith.remui %row, %c3 : index
        %h2 = arith.muli %h, %c2 : index
        %w2 = arith.muli %w, %c2 : index
        %v = loop.load %x[%n, %h2, %w2, %c] : memref<2x7x7x64xf16>
        hopper.yield %v : f16
      }} : {TILE}, {BARRIER}
    }}"""
    error = refusal(text)
    assert "is no box: dimension" in error.message
