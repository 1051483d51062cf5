"""What a definition's indices say of its walk through memory, where they are no arithmetic."""

from __future__ import annotations

import pytest
from xdsl.parser import Parser

from treadle.dialects.graph import ComputeOp
from treadle.dialects.registry import treadle_context
from treadle.schedules.access_analysis import collapsible_suffix, strides_of_suffix, vector_width

DEFINITION = """
func.func @main(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {{
  %y = graph.compute (%i, %j) {{
    %c2 = arith.constant 2 : index
    %c31 = arith.constant 31 : index
    %c63 = arith.constant 63 : index
    {index}
    %v = graph.at %x[%i, %m] : tensor<64x64xf32>
    graph.yield %v : f32
  }} : tensor<64x64xf32>
  func.return %y : tensor<64x64xf32>
}}"""


def definition(index: str) -> ComputeOp:
    module = Parser(treadle_context(), DEFINITION.format(index=index)).parse_module()
    return next(op for op in module.walk() if isinstance(op, ComputeOp))


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(
            "%a = arith.subi %j, %c31 : index %b = arith.subi %c31, %j : index %m = arith.maxsi %a, %b : index",
            id="a distance, whose sides add up to nothing",
        ),
        pytest.param(
            "%a = arith.muli %j, %c2 : index %m = arith.minsi %a, %c63 : index", id="every second element, clamped"
        ),
        pytest.param("%m = arith.minsi %j, %c31 : index", id="a clamp"),
    ],
)
def test_an_index_that_is_no_arithmetic_has_no_stride(index: str) -> None:
    compute = definition(index)
    assert strides_of_suffix(compute, 1) == [None]
    assert vector_width(compute, compute.body.block.args[1], 8) == 1
    assert collapsible_suffix(compute) == 1


def test_an_index_has_one() -> None:
    compute = definition("%m = arith.subi %c63, %j : index")
    assert strides_of_suffix(compute, 1) == [-1]
    assert vector_width(definition("%m = arith.addi %j, %c2 : index"), compute.body.block.args[1], 8) == 2
