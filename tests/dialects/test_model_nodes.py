"""Locations that name nodes of a model: fused, bounded, printed and parsed again."""

from __future__ import annotations

from io import StringIO

import pytest
from xdsl.dialects.builtin import (
    FileLineColLoc,
    FusedLoc,
    IntAttr,
    LocationAttr,
    NameLoc,
    NoneAttr,
    StringAttr,
    UnknownLoc,
)
from xdsl.parser import Parser

from treadle.dialects.location import (
    MOST_NODES,
    NodePrinter,
    describe_nodes,
    fused_location,
    ir_text,
    node_location,
    nodes_of,
)
from treadle.dialects.registry import treadle_context

CONV, RELU = node_location("/conv1/Conv", "Conv"), node_location("/relu1", "Relu")
LINE = FileLineColLoc(StringAttr("f.mlir"), IntAttr(3), IntAttr(1))
TEXT = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %c = graph.constant #graph.inline<"1.0, 2.0, 3.0, 4.0"> : tensor<4xf32> loc("w")
  %a = graph.binary "add" %x, %c : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32> loc("plus"("Add"))
  %b = graph.compute (%i) {
    %e = graph.at %a[%i] : tensor<4xf32> loc("inner"("Exp"))
    graph.yield %e : f32
  } : tensor<4xf32> loc(fused["a b"("Exp"), "q\\22"("Abs"), unknown])
  func.return %b : tensor<4xf32>
}
"""


def test_a_location_names_its_nodes_once_and_in_order() -> None:
    both = fused_location([CONV, LINE, RELU, CONV])
    assert describe_nodes(both) == "Conv '/conv1/Conv', Relu '/relu1'"
    assert fused_location([both, RELU]) == both and fused_location([both]) == both
    assert fused_location([LINE, CONV]) == CONV


@pytest.mark.parametrize("location", [UnknownLoc(), LINE, NameLoc(StringAttr("w"), NoneAttr())])
def test_other_locations_name_none(location: LocationAttr) -> None:
    assert nodes_of(location) == () and describe_nodes(location) == ""
    assert fused_location([location, LINE]) == location
    assert fused_location([]) == UnknownLoc()


def test_what_is_made_of_many_nodes_names_the_first_and_says_so() -> None:
    location = fused_location(node_location(f"n{i}", "Add") for i in range(1000))
    assert [node.name for node in nodes_of(location)] == [f"n{i}" for i in range(MOST_NODES)]
    assert describe_nodes(location).endswith(f"Add 'n{MOST_NODES - 1}', ...")
    assert describe_nodes(fused_location([location, CONV])) == describe_nodes(location)
    short = FusedLoc((CONV, UnknownLoc()), NoneAttr())
    assert describe_nodes(fused_location([short, RELU])) == "Conv '/conv1/Conv', Relu '/relu1', ..."
    long = describe_nodes(node_location("layer/" * 40 + "end", "Add"))
    assert len(long) < 80 and long.startswith("Add '...") and long.endswith("layer/end'")


def test_text_keeps_the_nodes_of_operations_on_tensors() -> None:
    module = Parser(treadle_context(), TEXT).parse_module()
    text = ir_text(module)
    assert text.count("loc(") == 2, "neither constants nor operations on elements"
    assert 'loc("plus"("Add"))' in text and 'loc(fused["a b"("Exp"), "q\\22"("Abs"), unknown])' in text
    again = Parser(treadle_context(), text).parse_module()
    assert ir_text(again) == text
    found = [describe_nodes(op.location) for op in again.walk() if op.name in ("graph.binary", "graph.compute")]
    assert found == ["Add 'plus'", "Exp 'a b', Abs 'q\"', ..."]


def test_all_locations_are_printed_once_where_that_is_asked_for() -> None:
    stream = StringIO()
    NodePrinter(stream, print_debuginfo=True).print_op(Parser(treadle_context(), TEXT).parse_module())
    assert stream.getvalue().count('loc("plus"("Add"))') == 1 and 'loc("inner"("Exp"))' in stream.getvalue()
