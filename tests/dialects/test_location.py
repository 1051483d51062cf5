"""Places in messages: nodes and lines as a reader knows them, no `loc(...)`."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import FileLineColLoc, IntAttr, LocationAttr, NameLoc, NoneAttr, StringAttr, UnknownLoc

from treadle import ir
from treadle.dialects.graph import UnaryOp
from treadle.dialects.location import fused_location, location_of, node_location
from treadle.errors import TreadleError

CONV, RELU = node_location("c", "Conv"), node_location("r", "Relu")
TWO_ANCHORS = """
func.func @main(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %y = graph.fused "twice" {
    %m = graph.matmul %a, %b : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %n = graph.matmul %m, %b : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    graph.yield %n : tensor<4x4xf32>
  } : tensor<4x4xf32> loc(fused["first"("MatMul"), "second"("MatMul")])
  func.return %y : tensor<4x4xf32>
}
"""


@pytest.mark.parametrize(
    ("location", "said"),
    [
        (fused_location([CONV, RELU]), "Conv 'c', Relu 'r'"),
        (FileLineColLoc(StringAttr("f.mlir"), IntAttr(3), IntAttr(7)), "f.mlir:3:7"),
        (NameLoc(StringAttr("w"), NoneAttr()), "w"),
        (UnknownLoc(), "func.func @main"),
    ],
)
def test_where_an_operation_comes_from(location: LocationAttr, said: str) -> None:
    entry = ir.Entry({"x": ir.tensor_type("float32", (4,))})
    op = UnaryOp("abs", entry["x"])
    assert location_of(op) is None
    module = entry.module({"y": entry.add(op)})
    op.location = location
    assert location_of(op) == said
    module.verify()


def test_errors_name_the_nodes() -> None:
    with pytest.raises(TreadleError) as caught:
        ir.run_passes(ir.parse(TWO_ANCHORS), "schedule-select")
    assert str(caught.value).startswith("MatMul 'first', MatMul 'second': group 'twice' has 2 anchors; accepted: ")
