"""Accesses that are not proved to stay inside their buffers are named."""

from __future__ import annotations

import re

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from treadle.compiler.pipeline import lower
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.passes.loop.loop_prove_bounds import LoopProveBoundsPass
from treadle.target import TARGETS

CONTEXT = treadle_context()
KERNEL = """
loop.func @k(%A: memref<100xf32>, %ids: memref<32xi64>, %C: memref<32xf32>) grid(%b in 4) threads(%t in 32) {{
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c26 = arith.constant 26 : index
  %c32 = arith.constant 32 : index
  %c99 = arith.constant 99 : index
  %c101 = arith.constant 101 : index
  %zero = arith.constant 0.0 : f32
  %z = arith.constant dense<0.0> : vector<8xf32>
  %tile = loop.alloc : memref<4x8xf32, #loop.space<shared>>
  %base = arith.muli %b, %c32 : index
  %i = arith.addi %base, %t : index
  %n = loop.load %ids[%t] : memref<32xi64>
  %j = arith.index_cast %n : i64 to index
  {body}
}}"""


def proved(body: str) -> ModuleOp:
    module = Parser(CONTEXT, KERNEL.format(body=body)).parse_module()
    module.verify()
    LoopProveBoundsPass().apply(CONTEXT, module)
    return module


REJECTED: dict[str, tuple[str, str]] = {
    "beyond the end": (
        "%v = loop.load %A[%i] : memref<100xf32>",
        "loop.load reads elements 0 to 127 of dimension 0 of %A : memref<100xf32>; accepted: 0 to 99, as far as",
    ),
    "before the beginning": (
        "%at = arith.subi %t, %c1 : index loop.store %zero, %C[%at] : memref<32xf32>",
        "loop.store writes elements -1 to 30 of dimension 0 of %C : memref<32xf32>; accepted: 0 to 31",
    ),
    "a predicate that is one too weak": (
        "%p = arith.cmpi slt, %i, %c101 : index %v = loop.load %A[%i] where %p else %zero : memref<100xf32>",
        "loop.load reads elements 0 to 100 of dimension 0 of %A",
    ),
    "a branch of the other side": (
        "%p = arith.cmpi sgt, %i, %c99 : index scf.if %p { loop.store %zero, %A[%i] : memref<100xf32> }",
        "loop.store writes elements 100 to 127 of dimension 0 of %A",
    ),
    "data": ("%v = loop.load %A[%j] : memref<100xf32>", "loop.load reads elements -9223372036854775808 to 922"),
    "a reason that is none": (
        '%v = loop.load %A[%j] {unproved = ""} : memref<100xf32>', "loop.load reads elements -9223372036854775808",
    ),
    "a vector whose last lane is outside": (
        "%at = arith.muli %t, %c4 : index %v = vector.load %C[%at] : memref<32xf32>, vector<4xf32>",
        "vector.load reads elements 0 to 127 of dimension 0 of %C",
    ),
    "a stride that is too long": (
        "%v = loop.strided_load %C[%c1] by 5 : memref<32xf32>, vector<8xf32>",
        "loop.strided_load reads elements 1 to 36",
    ),
    "a mask of a lane too many": (
        """%left = arith.subi %c101, %i : index %m = loop.lane_mask %b, %left : vector<8xi1>
        %v = vector.maskedload %A[%i], %m, %z : memref<100xf32>, vector<8xi1>, vector<8xf32> into vector<8xf32>""",
        "vector.maskedload reads elements 0 to 100 of dimension 0 of %A",
    ),
    "a row that does not exist": (
        "%v = loop.load %tile[%t, %b] : memref<4x8xf32, #loop.space<shared>>",
        "loop.load reads elements 0 to 31 of dimension 0 of %tile",
    ),
    "a column that is in the next row": (
        "%v = loop.load %tile[%b, %t] : memref<4x8xf32, #loop.space<shared>>",
        "loop.load reads elements 0 to 31 of dimension 1 of %tile",
    ),
    "what a branch gives": (
        """%p = arith.cmpi slt, %t, %c4 : index %m5 = arith.constant -5 : index
        %s = scf.if %p -> (index) { scf.yield %c4 : index } else { scf.yield %m5 : index }
        %at = arith.minsi %s, %c26 : index %v = loop.load %A[%at] : memref<100xf32>""",
        "loop.load reads elements -5 to 4 of dimension 0 of %A",
    ),
    "what a branch gives on one side only": (
        """%p = arith.cmpi slt, %t, %c4 : index %s = scf.if %p -> (index) { scf.yield %c4 : index }
        %at = arith.minsi %s, %c26 : index %v = loop.load %A[%at] : memref<100xf32>""",
        "loop.load reads elements unknown to 26 of dimension 0 of %A",
    ),
    "what a loop carries": (
        """%s = scf.for %k = %c1 to %c4 step %c1 iter_args(%a = %c4) -> (index) {
          %less = arith.subi %a, %c26 : index scf.yield %less : index
        }
        %at = arith.minsi %s, %c26 : index %v = loop.load %A[%at] : memref<100xf32>""",
        "loop.load reads elements unknown to 26 of dimension 0 of %A",
    ),
    "an index from memory": (
        """%table = loop.alloc : memref<4xindex, #loop.space<register>>
        %s = loop.load %table[%b] : memref<4xindex, #loop.space<register>>
        %at = arith.minsi %s, %c26 : index %v = loop.load %A[%at] : memref<100xf32>""",
        "loop.load reads elements unknown to 26 of dimension 0 of %A",
    ),
    "a counter that does not exist": (
        """%counters = loop.alloc : memref<3xi32, #loop.space<zeroed>>
        %last = loop.arrive %counters[%b] of 2 : memref<3xi32, #loop.space<zeroed>>""",
        "loop.arrive writes elements 0 to 3 of dimension 0 of %counters",
    ),
    "an operation whose accesses nobody describes": (
        '"memref.copy"(%A, %A) : (memref<100xf32>, memref<100xf32>) -> ()',
        "nothing is known of the elements that memref.copy accesses; accepted: an operation that treadle/dialects/",
    ),
    "the destination of a copy that is not lowered yet": (
        """loop.copy (%e in 8) to %tile[%b, %c1] {
          loop.yield %zero : f32
        } : memref<4x8xf32, #loop.space<shared>>""",
        "loop.copy writes elements 1 to 8 of dimension 1 of %tile",
    ),
    "the destination of a copy": (
        "loop.async_copy 4 %A[%t], %tile[%b, %t] : memref<100xf32>, memref<4x8xf32, #loop.space<shared>>",
        "loop.async_copy writes elements 0 to 34 of dimension 1 of %tile",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REJECTED)
def test_rejected(case: str) -> None:
    body, message = REJECTED[case]
    with pytest.raises(TreadleError, match=re.escape(f"loop.func @k: {message}")):
        proved(body)


def test_a_vector_longer_than_a_row_takes_the_next_rows() -> None:
    proved("%v = vector.load %tile[%b, %c1] : memref<4x8xf32, #loop.space<shared>>, vector<4xf32>")
    text = "%r = arith.constant {} : index %v = vector.load %tile[%r, %r] : memref<4x8xf32, #loop.space<shared>>"
    with pytest.raises(TreadleError, match="elements 18 to 33 of dimension 0"):
        proved(text.format(2) + ", vector<16xf32>")
    proved(text.format(1) + ", vector<16xf32>")


def test_text_that_is_resumed_after_the_loops_is_proved_too() -> None:
    kernel = KERNEL.format(body="%v = loop.load %A[%i] : memref<100xf32> loop.store %v, %C[%t] : memref<32xf32>")
    with pytest.raises(TreadleError, match=r"loop\.load reads elements 0 to 127"):
        lower(CONTEXT, Parser(CONTEXT, kernel).parse_module(), TARGETS["sm_80"], after="loops")
