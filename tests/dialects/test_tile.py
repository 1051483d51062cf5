"""The tile dialect: its text, and what it rejects."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from treadle import ir
from treadle.errors import TreadleError

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("tile_*.mlir"))
SHARED = ", #loop.space<shared>>"
ARGUMENTS = {
    "i": "index", "f": "f32", "half": "f16",
    "A": "memref<64x64xf16>", "V": "memref<64xf16>", "C": "memref<64x64xf32>", "I": "memref<64x64xi32>",
    "a": f"memref<2x64x32xf16{SHARED}", "b": f"memref<32x64xf16{SHARED}", "d": f"memref<32x64xbf16{SHARED}",
    "x": f"memref<32x32xi8{SHARED}", "odd": f"memref<32x12xf16{SHARED}",
    "c": "!tile.fragment<32x64xf32>", "n": "!tile.fragment<32x64xi32>", "r": "!tile.fragment<32x1xf32>",
    "o": "!tile.operand<32x32xf16>",
}  # fmt: skip
A, B, D, X, C, R = (ARGUMENTS[name] for name in ("a", "b", "d", "x", "c", "r"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_text_is_read_as_it_is_printed(path: Path) -> None:
    printed = ir.print_text(ir.parse(path.read_text()))
    assert ir.print_text(ir.parse(printed)) == printed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!tile.fragment<8x64xf32>", "a fragment of 8 x 64: expected multiples of 16, or one column"),
        ("!tile.fragment<16x8xf32>", "a fragment of 16 x 8: expected multiples of 16, or one column"),
        ("!tile.fragment<16x16xf16>", "a fragment of f16: expected f32, or i32"),
        ("!tile.fragment<16xf32>", "expected rows, columns and a type, as in 16x64xf32"),
        ("!tile.operand<16x8xf16>", "an operand of 16 x 8 of f16: expected 16-fold rows and terms"),
        (f"tile.fragment at [%i] : {C}", "a fragment at 1 indices: expected its row and its column"),
        (f"tile.copy %A[%i, %i] to %a[] : memref<64x64xf16>, {A}", "0 indices of a tile in .*: expected 1"),
        (
            "tile.copy %A[%i, %i] to %A[] : memref<64x64xf16>, memref<64x64xf16>",
            "expected a buffer in #loop.space<shared>",
        ),
        (f"tile.copy %C[%i, %i] to %b[] : memref<64x64xf32>, {B}", "expected a matrix of the same elements"),
        (f"tile.copy %V[%i] to %b[] : memref<64xf16>, {B}", "expected a matrix of the same elements"),
        (f"tile.copy %A[%i, %i] to %odd[] : memref<64x64xf16>, memref<32x12xf16{SHARED}", "rows of 24 bytes"),
        (f"tile.operand %b[] at %i : {B} -> !tile.operand<32x32xf16>", "expected 64 terms of its elements"),
        (f"tile.round %c : {C} -> !tile.operand<32x32xf16>", "expected the same shape, of f32 as f16 or bf16"),
        (
            f"tile.gemm %a[%i] * %b[] to %c transpose_b : {A}, {B}, {C}",
            "32 and 64 terms: expected equal ones, a multiple of 16",
        ),
        (
            f"tile.gemm %a[%i] * %d[] to %c : {A}, {D}, {C}",
            "expected elements that tensor cores multiply: f16 x f16, bf16 x",
        ),
        (
            f"tile.gemm %x[] * %x[] to %n : {X}, {X}, !tile.fragment<32x64xi32>",
            "expected bytes in rows along the terms",
        ),
        (f"tile.gemm %a[%i] * %b[] to %n : {A}, {B}, !tile.fragment<32x64xi32>", "expected sums of f32"),
        (f"tile.gemm %a[%i] * %b[] to %r : {A}, {B}, {R}", "expected sums of f32"),
        (f"tile.gemm %o[%i] * %b[] to %c : !tile.operand<32x32xf16>, {B}, {C}", "expected neither"),
        (
            f"tile.map to %c {{\n^bb0(%p : index):\n  tile.yield %f : f32\n}} : -> {C}",
            "the region's arguments: expected index, index",
        ),
        (
            f"tile.map to %c {{\n^bb0(%p : index, %q : index):\n  tile.yield %half : f16\n}} : -> {C}",
            "yields f16: expected f32",
        ),
        (
            f"tile.map %c to %r {{\n^bb0(%e : f32, %p : index, %q : index):\n  tile.yield %e : f32\n}} : {C} -> {R}",
            "expected its shape, or its rows and one column",
        ),
        (f"tile.reduce or %c to %r : {C}, {R}", "expected add, mul, max or min"),
        (f"tile.reduce add %r to %c : {R}, {C}", "expected its rows and one column"),
        (f"tile.store %c to %I[%i, %i] : {C}, memref<64x64xi32>", "expected a matrix of f16, bf16 or f32"),
        (f"tile.store %r to %C[%i, %i] : {R}, memref<64x64xf32>", "expected a matrix of f16, bf16 or f32"),
        (
            "tile.pipelined %i stages 1 start {\n^bb0(%p : index, %q : index):\n} "
            "do {\n^bb0(%p : index, %q : index):\n}",
            "a pipeline of 1 stages: expected at least 2",
        ),
        (
            "tile.pipelined %i stages 2 start {\n^bb0(%p : index):\n} do {\n^bb0(%p : index, %q : index):\n}",
            "expected a step and a stage, of type index",
        ),
    ],
)
def test_what_is_rejected(text: str, message: str) -> None:
    arguments = ARGUMENTS | ({"type": text} if text.startswith("!") else {})
    given = ", ".join(f"%{name}: {type}" for name, type in arguments.items())
    named = f"%new = {text}" if text.startswith(("tile.fragment", "tile.operand", "tile.round")) else text
    body = "" if text.startswith("!") else named
    with pytest.raises(TreadleError) as raised:
        ir.parse(f"func.func @f({given}) {{\n{body}\nfunc.return\n}}")
    assert re.search(message, str(raised.value)), str(raised.value)


def test_tiles_stand_in_kernels_of_whole_warps() -> None:
    alone = ir.parse(f"%i = arith.constant 0 : index\n%c = tile.fragment at [%i, %i] : {C}")
    with pytest.raises(TreadleError, match=r"'tile.fragment' outside of a kernel; accepted: loop.kernel"):
        ir.run_passes(alone, "tile-lower")
    kernel = "loop.func @k(%C: memref<8xf32>) grid(%b in 1) threads(%t in 48) {\n"
    module = ir.parse(f"{kernel}%i = arith.constant 0 : index\n%c = tile.fragment at [%i, %i] : {C}\n}}")
    with pytest.raises(TreadleError, match=r"tiles in a kernel of 48 threads.*accepted: a multiple of 32"):
        ir.run_passes(module, "tile-lower")
