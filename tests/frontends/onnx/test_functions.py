"""Operators that are imported by the bodies that ONNX defines them with, and control flow that is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, parser

from tests.frontends.onnx.models import model, node
from tests.frontends.onnx.node_cases import EXPANDED, SUPPORTED, data_of
from tests.frontends.onnx.reference import operators, run
from treadle.errors import TreadleError
from treadle.frontends.onnx import check_model, import_model, look_up_nodes

X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)


def graph(nodes: Sequence[NodeProto], inputs: list[str], outputs: list[str]) -> object:
    """A graph without types, for an attribute."""
    first, last = ([helper.make_empty_tensor_value_info(name) for name in names] for names in (inputs, outputs))
    return helper.make_graph(nodes, "inner", first, last)


def _refused(proto: ModelProto, message: str) -> None:
    with pytest.raises(TreadleError, match=message):
        import_model(proto.SerializeToString())


def test_a_function_s_module_is_that_of_its_body() -> None:
    """Of ONNX's own cases, one with the node and one with the nodes of its body give the same operators."""
    cases = {case.name: case for case in SUPPORTED}
    assert len(EXPANDED) > 100
    for name in sorted(EXPANDED)[::8]:
        pair = [cases[name.removesuffix("_expanded")], cases[name]]
        first, second = (import_model(data_of(case)[0][0].SerializeToString()) for case in pair)
        assert [op.name for op in operators(first)] == [op.name for op in operators(second)], name


def test_attributes_have_their_values_or_their_defaults() -> None:
    """SwiGLU's body hands its own attribute, 1 by default, to Swish."""
    for swiglu, alpha in ((node("SwiGLU", "x x", "y"), 1.0), (node("SwiGLU", "x x", "y", alpha=2.0), 2.0)):
        proto = model([swiglu], {"x": [2, 3]}, opset=28)
        (y,) = run(import_model(proto.SerializeToString()), [X])
        np.testing.assert_allclose(y, X * X / (1 + np.exp(-alpha * X)), rtol=1e-5)


def test_a_node_that_does_not_fit_its_operator() -> None:
    rotary = node("RotaryEmbedding", "x x x", "y", "rope", fast=1)
    _refused(
        model([rotary], {"x": [2, 3]}, opset=24), r"node 'rope' \(RotaryEmbedding, opset 24\): .*fast.*accepted: a"
    )


def test_an_error_in_a_body_names_the_node() -> None:
    message = r"node 'c' \(CenterCropPad, opset 20\), by its definition: node '\w+' \(Max, opset 18\): shapes .* do not"
    crop = model([node("Cast", "x", "s", to=7), node("CenterCropPad", "x s", "y", "c")], {"x": [2, 3]}, opset=20)
    _refused(crop, message)


def test_operators_whose_bodies_are_not_supported() -> None:
    _refused(model([node("Bernoulli", "x", "y")], {"x": [2]}, opset=22), "operator Bernoulli is not supported")


def _choice(first: str, second: str) -> ModelProto:
    branches = [graph([node(op, "x", f"{op}_of_x")], [], [f"{op}_of_x"]) for op in (first, second)]
    nodes = [
        node("ReduceSum", "x", "s", keepdims=0),
        node("Greater", "s zero", "c"),
        node("If", "c", "y", then_branch=branches[0], else_branch=branches[1]),
    ]
    return model(nodes, {"x": [2, 3]}, weights={"zero": np.float32(0)})


def test_a_branch_of_an_unknown_condition() -> None:
    """Both are computed; they read a tensor of the graph outside."""
    proto = _choice("Relu", "Neg")
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    module = import_model(proto.SerializeToString())
    for x in (X, -X):
        np.testing.assert_array_equal(run(module, [x])[0], session.run(None, {"x": x})[0])
    _refused(_choice("Relu", "Transpose"), r"tensor<2x3xf32> and tensor<3x2xf32>; accepted: equal types, or a known")


def _doubling(count: object, condition: Sequence[NodeProto]) -> ModelProto:
    body = graph(
        [*condition, node("Add", "v v", "w"), node("Identity", "w", "row")], ["n", "c", "v"], ["d", "w", "row"]
    )
    loop = node("Loop", "m _ x", "y rows", "twice", body=body)
    return model([loop], {"x": [2, 3]}, ["y", "rows"], {"m": np.array(count)})


def test_a_loop_of_known_iterations() -> None:
    always = [node("Identity", "c", "d")]
    y, rows = run(import_model(_doubling(3, always).SerializeToString()), [X])
    np.testing.assert_array_equal(y, 8 * X)
    np.testing.assert_array_equal(rows, [2 * X, 4 * X, 8 * X])
    y, rows = run(import_model(_doubling(0, always).SerializeToString()), [X])
    np.testing.assert_array_equal(y, X)
    assert rows.shape == (0, 2, 3)


def test_a_loop_that_its_condition_ends() -> None:
    limit = node("Constant", "", "one", value_int=1)
    y, rows = run(import_model(_doubling(9, [limit, node("Less", "n one", "d")]).SerializeToString()), [X])
    np.testing.assert_array_equal(y, 4 * X)
    assert len(rows) == 2


def test_loops_that_are_refused() -> None:
    unknown = [node("ReduceSum", "v", "s", keepdims=0), node("Cast", "s", "d", to=9)]
    _refused(
        _doubling(3, unknown),
        r"node 'twice' \(Loop, opset 17\): rows are asked of a loop whose number of iterations is",
    )
    always = [node("Identity", "c", "d")]
    _refused(_doubling(10**12, always), r"node 'twice' \(Loop, opset 17\): .*takes 24000000000000 bytes")


def test_names_inside_of_graphs_are_checked() -> None:
    branch = graph([node("Relu", "nothing", "r", "inner")], [], ["r"])
    proto = model([node("If", "c", "y", then_branch=branch, else_branch=branch)], {"x": [1]}, weights={"c": True})
    _refused(proto, r"node 'inner' \(Relu\): input 'nothing' is not defined before this node")


def test_a_scan_in_both_directions() -> None:
    """Running sums of columns, backwards, and the columns twice."""
    body = graph([node("Add", "s c", "t"), node("Add", "c c", "d")], ["s", "c"], ["t", "d"])
    scan = node(
        "Scan", "z x", "y rows", body=body, num_scan_inputs=1, scan_input_axes=[1], scan_input_directions=[1],
        scan_output_axes=[-1], scan_output_directions=[1],
    )  # fmt: skip
    proto = model([scan], {"x": [2, 3]}, ["y", "rows"], {"z": np.zeros(2, np.float32)})
    y, rows = run(import_model(proto.SerializeToString()), [X])
    np.testing.assert_array_equal(y, X.sum(1))
    np.testing.assert_array_equal(rows, 2 * X)


OWN = """<ir_version: 10, opset_import: ["" : 19, "this" : 1]>
g (float[2, 3] x) => (float[2] y) {
  y = this.outer <alpha = 0.5> (x)
}
<domain: "this", opset_import: ["" : 19, "this" : 1]>
outer <alpha, most: float = 1.5> (a) => (b) {
  s = this.sums (a)
  t = this.limited <most: float = @most> (s)
  b = LeakyRelu <alpha: float = @alpha> (t)
}
<domain: "this", opset_import: ["" : 11]>
sums (a) => (b) { b = ReduceSum <axes = [1], keepdims = 0> (a) }
<domain: "this", opset_import: ["" : 8]>
limited <most> (a) => (b) { b = Clip <max: float = @most> (a) }
"""
"""Each function is in the version of ONNX's operators that its body needs: axes and limits became inputs later."""


LIMITED = """limited <most> (a) => (b) {
  m = Constant <value_float: float = @most> ()
  b = Min (a, m)
}"""


def test_functions_of_the_model_in_other_versions_of_the_operators() -> None:
    proto = parser.parse_model(OWN)
    (y,) = run(import_model(proto.SerializeToString()), [X])
    totals = np.minimum(X.sum(1), 1.5)
    np.testing.assert_allclose(y, np.where(totals < 0, 0.5 * totals, totals), rtol=1e-6)
    for reports in (look_up_nodes(proto.SerializeToString()), check_model(proto.SerializeToString())):
        assert [(report.op_type, report.supported) for report in reports] == [
            ("sums", True), ("limited", True), ("LeakyRelu", True),
        ]  # fmt: skip


def test_attributes_of_inlined_functions_have_their_defaults() -> None:
    text = OWN.replace('"" : 11', '"" : 19').replace('"" : 8', '"" : 19').replace("= this.sums (s)", "= Identity (s)")
    text = text.replace("ReduceSum <axes = [1], keepdims = 0> (a)", "LeakyRelu <alpha = 1.0> (a)")
    text = text.replace("limited <most> (a) => (b) { b = Clip <max: float = @most> (a) }", LIMITED)
    (y,) = run(import_model(parser.parse_model(text.replace("float[2] y", "float[2, 3] y")).SerializeToString()), [X])
    limited = np.minimum(X, 1.5)
    np.testing.assert_allclose(y, np.where(limited < 0, 0.5 * limited, limited), rtol=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("keepdims = 0> (a)", "keepdims = 0> (c)", "input 'c' is not defined before this node"),
        ("<most: float = @most> (s)", "<most: float = @most, least = 1> (s)", r"'least' is not supported; accepted"),
        (
            "b = Clip",
            "b = Clop",
            r"\(this.limited, opset 1\), by its definition: .*\(Clop, opset 8\): operator Clop is not supported",
        ),
    ],
)
def test_errors_in_functions_of_the_model(old: str, new: str, message: str) -> None:
    proto = parser.parse_model(OWN.replace(old, new))
    _refused(proto, message)
    if "Clop" in new:
        report = look_up_nodes(proto.SerializeToString())[1]
        assert report.reason is not None
        assert "operator Clop is not supported" in report.reason
