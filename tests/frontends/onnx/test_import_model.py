"""What an imported module looks like, and that it computes what the model says."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, DictionaryAttr, NameLoc, StringAttr
from xdsl.dialects.func import Func
from xdsl.parser import Parser

from tests.frontends.onnx.models import model, node
from tests.frontends.onnx.reference import Array, main_of, names_of, operators, run
from tests.models.catalog import MODELS, require_model
from treadle.dialects.graph import GRAPH, ConstantOp, ReshapeOp
from treadle.frontends.onnx import import_model


def _names(proto: ModelProto) -> list[str]:
    return [op.name for op in operators(import_model(proto.SerializeToString()))]


def _agrees(proto: ModelProto, **inputs: Array) -> None:
    """The module and ONNX Runtime give the same results."""
    module = import_model(proto.SerializeToString())
    module.verify()
    proto.ir_version = 10
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for result, expected in zip(run(module, inputs), session.run(None, inputs), strict=True):
        np.testing.assert_allclose(result, np.asarray(expected), rtol=1e-5, atol=1e-6)


def _random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("name", MODELS)
def test_catalog(name: str) -> None:
    entry = require_model(name)
    module = import_model(entry.path(), entry.input_shapes)
    module.verify()
    assert names_of(module, "input_names") == list(entry.inputs)
    assert all(op.name.startswith("graph.") for op in operators(module))


@pytest.mark.parametrize("name", ["ppocr_cls", "minilm"])
def test_catalog_agrees_with_onnxruntime(name: str) -> None:
    entry = require_model(name)
    inputs = entry.sample_inputs()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    expected = ort.InferenceSession(str(entry.path()), options, providers=["CPUExecutionProvider"]).run(None, inputs)
    results = run(import_model(entry.path(), entry.input_shapes), inputs)
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, np.asarray(wanted), rtol=1e-4, atol=1e-4)


def test_names_locations_and_metadata() -> None:
    proto = model([node("Relu", "x", "y", "act.1"), node("Neg", "y", "z", "nég")], {"x": [2, 3]}, ["z"])
    helper.set_model_props(proto, {"character": "a\nb", "label": "中"})
    module = import_model(proto.SerializeToString())
    first, second = operators(module)
    assert isinstance(first.location, NameLoc) and first.location.desc.data == "act.1"
    assert isinstance(second.location, NameLoc) and second.location.desc.data == "n\\xe9g"
    assert names_of(module, "input_names") == ["x"] and names_of(module, "output_names") == ["z"]
    metadata = main_of(module).attributes["metadata"]
    assert isinstance(metadata, DictionaryAttr) and metadata.data["character"] == StringAttr("a\nb")


def test_text_parses_back() -> None:
    proto = model([node("Relu", "x", "y"), node("Add", "y w", "z")], {"x": [2, 3]}, ["z"], {"w": _random(2, 3)})
    helper.set_model_props(proto, {"label": "中"})
    module = import_model(proto.SerializeToString())
    context = Context()
    for dialect in (Builtin, Func, GRAPH):
        context.load_dialect(dialect)
    assert str(Parser(context, str(module)).parse_module()) == str(module)


def test_shape_arithmetic_leaves_nothing() -> None:
    """Flattening by Shape, Gather, Mul, Unsqueeze, Concat is one reshape."""
    proto = model(
        [
            node("Shape", "x", "s"),
            node("Gather", "s zero", "n", axis=0),
            node("Gather", "s one", "c", axis=0),
            node("Mul", "c four", "k"),
            node("Unsqueeze", "n axis", "n1"),
            node("Unsqueeze", "k axis", "k1"),
            node("Concat", "n1 k1", "target", axis=0),
            node("Reshape", "x target", "y"),
        ],
        {"x": ["n", 3, 2, 2]},
        weights={"zero": np.int64(0), "one": np.int64(1), "four": np.int64(4), "axis": np.array([0])},
    )
    (reshape,) = operators(import_model(proto.SerializeToString(), {"x": (5, 3, 2, 2)}))
    assert isinstance(reshape, ReshapeOp) and reshape.shape == (5, 12)


def test_operators_whose_shape_alone_is_read_are_dead() -> None:
    nodes = [node("Neg", "x", "a"), node("Shape", "a", "s"), node("ConstantOfShape", "s", "y")]
    (constant,) = operators(import_model(model(nodes, {"x": [2, 3]}).SerializeToString()))
    assert isinstance(constant, ConstantOp)


def test_a_large_constant_of_shape_repeats_one_element() -> None:
    nodes = [node("ConstantOfShape", "s", "w"), node("Add", "x w", "y")]
    proto = model(nodes, {"x": [100, 100]}, weights={"s": np.array([100, 100])})
    _agrees(proto, x=_random(100, 100))
    assert _names(proto) == ["graph.constant", "graph.broadcast", "graph.binary"]


def test_outputs_that_no_operator_computes() -> None:
    """An input, the same input under another name, a weight."""
    proto = model([node("Identity", "x", "y")], {"x": [2]}, ["x", "y", "w"], {"w": np.array([1, 2, 3], np.float32)})
    x = _random(2)
    results = run(import_model(proto.SerializeToString()), [x])
    for result, expected in zip(results, [x, x, np.array([1, 2, 3], np.float32)], strict=True):
        np.testing.assert_array_equal(result, expected)


def test_initialisers_listed_as_inputs_are_no_inputs() -> None:
    """Files of IR version 3 list them."""
    proto = model([node("Add", "x w", "y")], {"x": [2], "w": [2]}, weights={"w": np.array([1, 2], np.float32)})
    assert names_of(import_model(proto.SerializeToString()), "input_names") == ["x"]


def test_local_functions_are_inlined() -> None:
    proto = model([node("Twice", "x", "y", domain="own")], {"x": [2]})
    proto.opset_import.append(helper.make_opsetid("own", 1))
    body = [node("Add", "v v", "w")]
    versions = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("own", "Twice", ["v"], ["w"], body, versions))
    assert _names(proto) == ["graph.binary"]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((4,), (4,)), ((4,), (4, 3)), ((2, 4), (4,)), ((5, 2, 4), (4,)), ((4,), (5, 4, 3)), ((2, 4), (4, 3)),
        ((5, 2, 4), (4, 3)), ((6, 5, 2, 4), (4, 3)), ((2, 4), (5, 4, 3)), ((5, 2, 4), (5, 4, 3)),
        ((6, 1, 2, 4), (5, 4, 3)), ((1, 5, 2, 4), (6, 1, 4, 3)), ((5, 2, 4), (1, 4, 3)), ((1, 2, 4), (5, 4, 3)),
    ],
)  # fmt: skip
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    _agrees(model([node("MatMul", "a b", "y")], {"a": a, "b": b}), a=_random(*a), b=_random(*b))


def test_matmul_of_rows_by_a_matrix_is_two_dimensional() -> None:
    nodes = [node("MatMul", "a w", "y")]
    assert _names(model(nodes, {"a": [5, 2, 4]}, weights={"w": _random(4, 3)})) == [
        "graph.reshape", "graph.constant", "graph.matmul", "graph.reshape",
    ]  # fmt: skip


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("flags", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gemm(flags: tuple[int, int], alpha: float) -> None:
    a, b = ((4, 2) if flags[0] else (2, 4)), ((3, 4) if flags[1] else (4, 3))
    nodes = [node("Gemm", "a b c", "y", transA=flags[0], transB=flags[1], alpha=alpha, beta=2.0)]
    _agrees(model(nodes, {"a": a, "b": b, "c": (3,)}), a=_random(*a), b=_random(*b), c=_random(3))


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_softmax_before_opset_13_flattens(axis: int) -> None:
    nodes = [node("Softmax", "x", "y", axis=axis), node("LogSoftmax", "x", "z", axis=axis)]
    _agrees(model(nodes, {"x": [2, 3, 4, 5]}, ["y", "z"], opset=11), x=_random(2, 3, 4, 5))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("auto_pad", ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
def test_convolution_with_bias(rank: int, auto_pad: str) -> None:
    shape = (2, 4, 7, 6, 5)[: rank + 2]
    weights = {"w": _random(6, 2, *[2] * rank), "b": _random(6)}
    attributes: dict[str, Any] = {"group": 2, "strides": [2] * rank, "auto_pad": auto_pad}
    _agrees(model([node("Conv", "x w b", "y", **attributes)], {"x": shape}, weights=weights), x=_random(*shape))


@pytest.mark.parametrize("op_type", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize("auto_pad", ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("ceil_mode", [0, 1])
def test_pools(op_type: str, auto_pad: str, ceil_mode: int) -> None:
    attributes: dict[str, Any] = {
        "kernel_shape": [3, 2],
        "strides": [2, 2],
        "auto_pad": auto_pad,
        "ceil_mode": ceil_mode,
    }
    attributes |= {"pads": [1, 0, 1, 1]} if auto_pad == "NOTSET" else {}
    _agrees(model([node(op_type, "x", "y", **attributes)], {"x": [1, 2, 8, 7]}), x=_random(1, 2, 8, 7))


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
def test_transposed_convolution(auto_pad: str) -> None:
    attributes: dict[str, Any] = {"strides": [2, 3], "auto_pad": auto_pad}
    attributes |= {"pads": [1, 0, 0, 1], "output_padding": [1, 0]} if auto_pad == "NOTSET" else {}
    weights = {"w": _random(4, 2, 3, 3), "b": _random(2)}
    nodes = [node("ConvTranspose", "x w b", "y", **attributes)]
    _agrees(model(nodes, {"x": [1, 4, 5, 4]}, weights=weights), x=_random(1, 4, 5, 4))


def test_local_response_norm_reads_every_attribute() -> None:
    """ONNX's own case has an alpha that its tolerance does not tell from the default."""
    attributes: dict[str, Any] = {"size": 3, "alpha": 2.0, "beta": 0.5, "bias": 3.0}
    _agrees(model([node("LRN", "x", "y", **attributes)], {"x": [2, 5, 3, 4]}), x=_random(2, 5, 3, 4))


def test_negative_pads_cut() -> None:
    proto = model([node("Pad", "x p", "y")], {"x": [4, 5]}, weights={"p": np.array([-1, 2, 1, -3])})
    _agrees(proto, x=_random(4, 5))


@pytest.mark.parametrize("bounds", [(5, -10, -1), (-1, 0, -2), (1, 2**62, 2), (-(2**62), 3, 1), (3, 1, 1)])
def test_slice_bounds(bounds: tuple[int, int, int]) -> None:
    start, end, step = (np.array([v]) for v in bounds)
    weights = {"s": start, "e": end, "a": np.array([1]), "t": step}
    _agrees(model([node("Slice", "x s e a t", "y")], {"x": [2, 6]}, weights=weights), x=_random(2, 6))


def test_integer_division_and_remainder_keep_signs() -> None:
    nodes = [node("Mod", "a b", "y"), node("Mod", "a b", "z", fmod=1), node("Div", "a b", "q")]
    proto = model(nodes, {"a": [6], "b": [6]}, ["y", "z", "q"], element=TensorProto.INT64)
    _agrees(proto, a=np.array([7, -7, 7, -7, 6, -6]), b=np.array([3, 3, -3, -3, 3, 3]))


@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel"])
def test_resize_by_a_whole_factor(coordinates: str) -> None:
    rounding = "floor" if coordinates == "asymmetric" else "round_prefer_floor"
    modes = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    weights = {"s": np.array([1, 1, 2, 3], np.float32)}
    _agrees(
        model([node("Resize", "x _ s", "y", **modes)], {"x": [1, 2, 3, 4]}, weights=weights),
        x=_random(1, 2, 3, 4),
    )
