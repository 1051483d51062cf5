"""The evaluator against NumPy's and ONNX Runtime's operators."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper
from xdsl.dialects import func
from xdsl.dialects import test as test_dialect
from xdsl.dialects.builtin import TensorType, f32, f64, i1, i32, i64
from xdsl.ir import Operation

from tests.helpers.graphs import random
from treadle.dialects.graph import (
    ArgReductionOp,
    BinaryOp,
    CastOp,
    ConcatOp,
    ConvOp,
    ConvTransposeOp,
    GatherOp,
    LayerNormOp,
    MatmulOp,
    PadOp,
    PoolOp,
    ReductionOp,
    ReshapeOp,
    ResizeOp,
    SliceOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
    definition,
)
from treadle.dialects.graph.compute import AtOp
from treadle.dialects.graph.definition import compute_of
from treadle.dialects.graph.dtypes import element_type
from treadle.dialects.graph.elementwise import UNARY
from treadle.dialects.graph.evaluate import evaluate, evaluate_compute
from treadle.errors import TreadleError

Array = NDArray[Any]


def value(make: Callable[..., Operation], *arrays: Array) -> Array:
    types = [TensorType(element_type(a.dtype), a.shape) for a in arrays]
    values = [test_dialect.TestOp(result_types=[t]).results[0] for t in types]
    op = make(*values)
    op.verify()
    result = evaluate(op, dict(zip(values, arrays, strict=True)))
    assert TensorType(element_type(result.dtype), result.shape) == op.results[0].type
    assert all(len(list(v.uses)) == list(op.operands).count(v) for v in values), "a definition was left behind"
    return result


def onnx_value(kind: str, *arrays: Array, **attributes: Any) -> Array:
    names = [f"i{n}" for n in range(len(arrays))]
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, arrays, strict=True)
    ]
    node = helper.make_node(kind, names, ["o"], **attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("o", 1, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, dict(zip(names, arrays, strict=True)))[0])


def assert_close(got: Array, want: Array, tolerance: float = 2e-6) -> None:
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * max(1e-6, float(np.abs(want).max())))


X = random(1, 8, 14, 14)

CONVOLUTIONS: list[tuple[tuple[int, ...], list[int], list[int], list[int], int]] = [
    ((16, 8, 3, 3), [1, 1], [1, 1, 1, 1], [1, 1], 1),
    ((16, 8, 7, 7), [2, 2], [3, 3, 3, 3], [1, 1], 1),
    ((8, 1, 3, 3), [2, 2], [0, 1, 0, 1], [1, 1], 8),
    ((16, 2, 3, 3), [1, 1], [2, 2, 2, 2], [2, 2], 4),
    ((4, 8, 1, 1), [1, 1], [0, 0, 0, 0], [1, 1], 1),
]


@pytest.mark.parametrize(("shape", "strides", "pads", "dilations", "groups"), CONVOLUTIONS)
def test_conv(shape: tuple[int, ...], strides: list[int], pads: list[int], dilations: list[int], groups: int) -> None:
    w = random(*shape)
    got = value(lambda x, w: ConvOp(x, w, strides, pads, dilations, groups), X, w)
    assert_close(got, onnx_value("Conv", X, w, strides=strides, pads=pads, dilations=dilations, group=groups))


@pytest.mark.parametrize(
    ("kernel", "pads", "extra", "groups"), [(2, 0, 0, 1), (3, 1, 1, 2)], ids=["shuffle", "overlap"]
)
def test_conv_transpose(kernel: int, pads: int, extra: int, groups: int) -> None:
    w = random(8, 3, kernel, kernel)
    got = value(lambda x, w: ConvTransposeOp(x, w, [2, 2], [pads] * 4, [1, 1], groups, [extra] * 2), X, w)
    attributes = {"strides": [2, 2], "pads": [pads] * 4, "output_padding": [extra] * 2, "group": groups}
    assert_close(got, onnx_value("ConvTranspose", X, w, **attributes))


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("count", [0, 1])
def test_pool(kind: str, ceil: int, count: int) -> None:
    x = X[:, :, :13]
    got = value(lambda x: PoolOp(kind, x, [3, 3], [2, 2], [1] * 4, [1, 1], bool(ceil), bool(count)), x)
    attributes: dict[str, Any] = {
        "kernel_shape": [3, 3],
        "strides": [2, 2],
        "pads": [1] * 4,
        "ceil_mode": ceil,
    }
    if kind == "avg":
        attributes["count_include_pad"] = count
    assert_close(got, onnx_value("MaxPool" if kind == "max" else "AveragePool", x, **attributes))


@pytest.mark.parametrize(
    ("a", "b"), [((4, 5, 6), (4, 6, 7)), ((4, 5, 6), (6, 7)), ((5, 6), (4, 6, 7)), ((1, 6), (6, 1))]
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    assert_close(value(MatmulOp, random(*a), random(*b, seed=1)), random(*a) @ random(*b, seed=1))


def test_long_sums_are_rounded_once() -> None:
    ones = np.full((1, 1 << 16), 0.1, np.float16)
    got = value(lambda x: ReductionOp("add", x, [1], False), ones)
    assert got[0] == np.float16(float(ones[0, 0]) * (1 << 16))


@pytest.mark.parametrize("dim", [1, 3])
def test_softmax(dim: int) -> None:
    assert_close(value(lambda x: SoftmaxOp(x, dim), X), onnx_value("Softmax", X, axis=dim))


def test_layer_norm() -> None:
    scale, bias = random(14), random(14, seed=1)
    got = value(lambda x, s, b: LayerNormOp(x, s, b, 3, 1e-5), X, scale, bias)
    assert_close(got, onnx_value("LayerNormalization", X, scale, bias, epsilon=1e-5))


@pytest.mark.parametrize(("kind", "fold"), [("max", np.max), ("min", np.min), ("mul", np.prod), ("mean", np.mean)])
def test_reduction(kind: str, fold: Callable[..., Array]) -> None:
    assert_close(value(lambda x: ReductionOp(kind, x, [1, 3], True), X), fold(X, axis=(1, 3), keepdims=True))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", ["max", "min"])
def test_arg_reduction_of_equal_elements_and_nan(kind: str, last: bool) -> None:
    x = np.array([[3, 1, 3, 1, 2], [0, np.nan, 5, np.nan, -7], [-np.inf] * 5], np.float32)
    got = value(lambda t: ArgReductionOp(kind, t, 1, False, last), x)
    arg = {"max": np.argmax, "min": np.argmin}[kind]
    expected = 4 - arg(x[:, ::-1], axis=1) if last else arg(x, axis=1)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, expected)


MOVEMENTS: list[tuple[str, Callable[..., Operation], Callable[[Array], Array]]] = [
    ("reshape", lambda x: ReshapeOp(x, [14, 112]), lambda x: x.reshape(14, 112)),
    ("transpose", lambda x: TransposeOp(x, [0, 2, 3, 1]), lambda x: x.transpose(0, 2, 3, 1)),
    (
        "slice",
        lambda x: SliceOp(x, [0, 7, 1, 0], [1, 3, 5, 14], [1, -2, 2, 1]),
        lambda x: x[:, 7:2:-2, 1:11:2],
    ),
    ("concat", lambda x: ConcatOp([x, x, x], 1), lambda x: np.concatenate([x, x, x], 1)),
    ("resize", lambda x: ResizeOp(x, [1, 8, 28, 28]), lambda x: x.repeat(2, 2).repeat(2, 3)),
    ("rows", lambda x: ResizeOp(x, [1, 8, 14, 21]), lambda x: x[..., np.arange(21) * 14 // 21]),
]


@pytest.mark.parametrize(("make", "want"), [m[1:] for m in MOVEMENTS], ids=[m[0] for m in MOVEMENTS])
def test_movement(make: Callable[..., Operation], want: Callable[[Array], Array]) -> None:
    np.testing.assert_array_equal(value(make, X), want(X))


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad(mode: Any) -> None:
    pads = [(0, 0), (0, 0), (2, 3), (0, 1)]
    flat = [before for before, _ in pads] + [after for _, after in pads]
    got = value(lambda x, v: PadOp(mode, x, v, flat), X, np.array(2, np.float32))
    np.testing.assert_array_equal(got, np.pad(X, pads, mode, **({"constant_values": 2} if mode == "constant" else {})))


def test_gather_counts_from_the_end_and_clamps() -> None:
    data, ids = random(5, 3), np.array([[0, -1], [7, -9]])
    got = value(lambda d, i: GatherOp(d, i, 0), data, ids)
    np.testing.assert_array_equal(got, data[[[0, 4], [4, 0]]])


@pytest.mark.parametrize("kind", sorted(UNARY))
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_unary_of_floats_keeps_the_type(kind: str, dtype: type) -> None:
    if kind != "not":
        value(lambda x: UnaryOp(kind, x), np.array([[-1.5, 0, 2, np.nan, np.inf]], dtype))


def test_relu_keeps_nan() -> None:
    got = value(lambda x: UnaryOp("relu", x), np.array([np.nan, -1, 2], np.float32))
    np.testing.assert_array_equal(got, np.array([np.nan, 0, 2], np.float32))


@pytest.mark.parametrize(("kind", "want"), [("div", [-3, 3, 3, -3, 0]), ("mod", [-1, 1, -1, 1, 3])])
def test_integer_division_truncates(kind: str, want: list[int]) -> None:
    a, b = np.array([-7, 7, -7, 7, 3], np.int32), np.array([2, 2, -2, -2, 7], np.int32)
    np.testing.assert_array_equal(value(lambda x, y: BinaryOp(kind, x, y), a, b), np.array(want, np.int32))


def test_casts() -> None:
    floats = np.array([0, 1.7, -2.7], np.float32)
    np.testing.assert_array_equal(value(lambda x: CastOp(x, i32), floats), np.array([0, 1, -2], np.int32))
    np.testing.assert_array_equal(value(lambda x: CastOp(x, i1), floats), floats != 0)
    np.testing.assert_array_equal(value(lambda x: CastOp(x, f64), floats != 0), np.array([0, 1, 1.0]))
    np.testing.assert_array_equal(value(lambda x: CastOp(x, i64), floats != 0), np.array([0, 1, 1]))


def test_the_definition_of_a_reshape_is_a_reshape() -> None:
    source = test_dialect.TestOp(result_types=[TensorType(f32, X.shape)]).results[0]
    compute = definition(ReshapeOp(source, [14, 112]))
    np.testing.assert_array_equal(evaluate_compute(compute, {source: X}), X.reshape(14, 112))


def test_a_reduction_in_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.dialects.graph.evaluate._CHUNK", 50)
    w = random(16, 8, 3, 3)
    got = value(lambda x, w: ConvOp(x, w, [1, 1], [1] * 4, [1, 1], 1), X, w)
    assert_close(got, onnx_value("Conv", X, w, pads=[1] * 4))
    got = value(lambda x: PoolOp("max", x, [3, 3], [2, 2], [1] * 4, [1, 1]), X)
    assert_close(got, onnx_value("MaxPool", X, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4))


def test_empty_tensors() -> None:
    empty = np.zeros((0, 4), np.float32)
    assert value(lambda x: UnaryOp("exp", x), empty).shape == (0, 4)
    np.testing.assert_array_equal(value(lambda x: ReductionOp("add", x, [0], False), empty), np.zeros(4, np.float32))
    np.testing.assert_array_equal(value(lambda x: ReductionOp("max", x, [0], False), empty), np.full(4, -np.inf))


def test_a_read_out_of_bounds_is_an_error() -> None:
    source = test_dialect.TestOp(result_types=[TensorType(f32, [4])]).results[0]
    compute = compute_of(TensorType(f32, [4]), lambda b, i: b.insert(AtOp(source, [b.add(i[0], 1)])))
    with pytest.raises(TreadleError, match=r"reads elements 1 to 4 of dimension 0 .*accepted: 0 to 3, or a predicate"):
        evaluate_compute(compute, {source: random(4)})


def test_an_operation_without_value_is_named() -> None:
    with pytest.raises(TreadleError, match=r"func.return cannot be evaluated; accepted: an operator"):
        evaluate(func.ReturnOp(), {})
