"""The reader learns ranges from operations of every dialect."""

from __future__ import annotations

import pytest
from xdsl.dialects import test
from xdsl.parser import Parser

from treadle.dialects.registry import treadle_context
from treadle.index.expr import Range
from treadle.index.reader import IndexReader

CASES: dict[str, tuple[str, Range]] = {
    "block": (
        'loop.func @k(%A : memref<4xf32>) grid(%b in 12) threads(%t in 32) { "test.op"(%b) : (index) -> () }',
        (0, 11),
    ),
    "thread": (
        'loop.func @k(%A : memref<4xf32>) grid(%b in 12) threads(%t in 32) { "test.op"(%t) : (index) -> () }',
        (0, 31),
    ),
    "copy": (
        """%tile, %v = "test.op"() : () -> (memref<8xf32, #loop.space<shared>>, f32)
        %zero = arith.constant 0 : index
        loop.copy (%e in 8) to %tile[%zero] { "test.op"(%e) : (index) -> ()
          loop.yield %v : f32 } : memref<8xf32, #loop.space<shared>>""",
        (0, 7),
    ),
    "definition": (
        """%x = "test.op"() : () -> tensor<3x4xf32>
        %y = graph.compute (%i, %j) { "test.op"(%j) : (index) -> ()
          %a = graph.at %x[%i, %j] : tensor<3x4xf32>
          graph.yield %a : f32 } : tensor<3x4xf32>""",
        (0, 3),
    ),
    "tasks": (
        """task.for (%i, %k) in #task.map<repeat(4, 5)> { "test.op"(%k) : (index) -> () }""",
        (0, 4),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_operation_bounds_the_indices_that_it_defines(case: str) -> None:
    text, expected = CASES[case]
    context = treadle_context()
    context.load_dialect(test.Test)
    module = Parser(context, text).parse_module()
    used = [op for op in module.walk() if isinstance(op, test.TestOp) and op.operands]
    assert IndexReader().read(used[-1].operands[0]).range() == expected
