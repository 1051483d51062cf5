"""The evaluator against NumPy's and ONNX Runtime's operators."""

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper
from xdsl.dialects import func
from xdsl.dialects import test as test_dialect
from xdsl.dialects.builtin import TensorType, f32, f64, i1, i32, i64
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import VerifyException

from tests.helpers.graphs import random
from treadle.dialects.graph import (
    ArgReductionOp,
    AttentionOp,
    BinaryOp,
    CastOp,
    ConcatOp,
    ConvOp,
    ConvTransposeOp,
    GatherOp,
    LayerNormOp,
    MaskOp,
    MatmulOp,
    PadOp,
    PoolOp,
    ReductionOp,
    ReshapeOp,
    ResizeOp,
    RmsNormOp,
    SliceOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
    definition,
)
from treadle.dialects.graph.compute import AtOp
from treadle.dialects.graph.definition import compute_of
from treadle.dialects.graph.dtypes import ELEMENT_TYPES, element_type, epsilon, numpy_dtype
from treadle.dialects.graph.elementwise import BINARY, UNARY
from treadle.dialects.graph.evaluate import evaluate, evaluate_compute
from treadle.dialects.scalar import SCALAR_FUNCTIONS
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


@pytest.mark.parametrize("left", [np.int8, np.uint8])
@pytest.mark.parametrize("right", [np.int8, np.uint8])
def test_matmul_of_bytes(left: Any, right: Any) -> None:
    a = np.arange(-60, 60).astype(left).reshape(4, 30)
    b = np.arange(0, 30 * 9 * 5, 5).astype(right).reshape(30, 9)
    got = value(lambda x, y: MatmulOp(x, y, sums=i32), a, b)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("chunk", [1 << 23, 90])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint32, np.int64, np.uint64])
def test_sums_of_integer_products_wrap(monkeypatch: pytest.MonkeyPatch, dtype: Any, chunk: int) -> None:
    """As exact ones modulo 2^bits, whether float64 holds them or not."""
    monkeypatch.setattr("treadle.dialects.graph.evaluate._CHUNK", chunk)
    limits, rng = np.iinfo(dtype), np.random.default_rng(0)
    for least, most in ((limits.min, limits.max), (max(-3, limits.min), 3)):
        numbers = np.array([least, most, 1, most // 3], dtype)
        a, b = rng.choice(numbers, (2, 4, 30)), rng.choice(numbers, (30, 3))
        exact = (a.astype(object) @ b.astype(object)) % 2**limits.bits
        got = value(lambda x, y: MatmulOp(x, y), a, b)
        np.testing.assert_array_equal(got, exact.astype(np.uint64).astype(dtype), strict=True)


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


def test_rms_norm() -> None:
    scale = random(14, 14)
    want = X / np.sqrt((X * X).mean((2, 3), keepdims=True) + 1e-3) * scale
    assert_close(value(lambda x, s: RmsNormOp(x, s, 2, 1e-3), X, scale), want)


def softmax_of_products(q: Array, k: Array, v: Array, shift: Array, scale: float) -> Array:
    scores = (q.astype(np.float64) @ np.swapaxes(k, -1, -2)) * scale + shift
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)) @ v


@pytest.mark.parametrize("groups", [4, 2, 1])
def test_attention(groups: int) -> None:
    q, mask = random(2, 4, 5, 8), random(1, 1, 1, 6)
    k, v = random(2, groups, 6, 8), random(2, groups, 6, 3)
    got = value(lambda *x: AttentionOp(*x, scale=0.3), q, k, v, mask)
    keys, values = (np.repeat(x, 4 // groups, axis=1) for x in (k, v))
    assert_close(got, softmax_of_products(q, keys, values, mask, 0.3))


def test_causal_attention_ends_in_the_last_corner() -> None:
    q, k, v = random(3, 8), random(5, 8, seed=1), random(5, 2)
    hidden = np.where(np.arange(5) <= np.arange(3)[:, None] + 2, 0.0, -np.inf)
    got = value(lambda *x: AttentionOp(*x, causal=True), q, k, v)
    assert_close(got, softmax_of_products(q, k, v, hidden, 1.0))


def test_attention_without_a_finite_score_is_nan_or_guarded() -> None:
    q, mask = random(3, 8), np.zeros((3, 3), np.float32)
    mask[1] = -np.inf
    plain, guarded = (value(lambda *x, g=g: AttentionOp(*x, guard=g), q, q, q, mask) for g in (False, True))
    assert np.isnan(plain[1]).all() and (guarded[1] == 0).all()
    assert_close(guarded[[0, 2]], plain[[0, 2]])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 3, 5, 6, 7])
def test_attention_with_a_length_is_that_of_the_keys_that_exist(length: int, causal: bool) -> None:
    q, mask, k, v = random(2, 4, 6, 8), random(1, 1, 1, 6), random(2, 2, 6, 8), random(2, 2, 6, 3)
    keys, values = (np.repeat(x, 2, axis=1)[:, :, :length] for x in (k, v))
    hidden = np.where(np.tri(6, dtype=np.bool_) | (not causal), 0.0, -np.inf)
    want = softmax_of_products(q, keys, values, (mask + hidden)[..., :length], 0.3)
    k[:, :, length:], v[:, :, length:], mask[..., length:] = np.nan, np.inf, np.nan
    got = value(
        lambda q, k, v, m, n: AttentionOp(q, k, v, m, n, scale=0.3, causal=causal), q, k, v, mask, np.array(length)
    )
    assert_close(got, want)


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("length", [0, -1])
def test_attention_without_keys_is_zero(length: int, guard: bool) -> None:
    q, n = np.full((3, 4), np.nan, np.float32), np.array(length)
    np.testing.assert_array_equal(
        value(lambda q, n: AttentionOp(q, q, q, length=n, guard=guard), q, n), np.zeros((3, 4))
    )


def test_a_row_of_hidden_keys_is_nan_with_a_length_too() -> None:
    q, mask = random(2, 4), np.array([[0, 0], [-np.inf, 0]], np.float32)
    got = value(lambda q, m, n: AttentionOp(q, q, q, m, n), q, mask, np.array(1))
    assert np.isfinite(got[0]).all() and np.isnan(got[1]).all()


def test_attention_of_halves_sums_in_single_precision() -> None:
    q, v = np.full((1, 64), 60.0, np.float16), np.array([[1.0], [3.0]], np.float16)
    # Scores of 230400 are beyond what f16 holds.
    assert value(AttentionOp, q, np.repeat(q, 2, axis=0), v) == np.float16(2.0)


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


@pytest.mark.parametrize("n", [-3, 0, 1, 5, 7, 8, 2**40])
@pytest.mark.parametrize("dim", [0, 1])
def test_mask_fills_from_an_extent_on(dim: int, n: int) -> None:
    x = random(7, 7)
    x[[0, 6], [5, 0]] = np.nan, -np.inf
    got = value(lambda x, n: MaskOp(x, n, dim, -np.inf), x, np.array(n, np.int64))
    np.testing.assert_array_equal(got, np.where(np.indices((7, 7))[dim] < n, x, -np.inf))


@pytest.mark.parametrize("type", ELEMENT_TYPES)
def test_mask_of_any_type(type: Attribute) -> None:
    x = np.array([3, 1, 2, 0, 2]).astype(numpy_dtype(type))
    want = np.array([*x[:3], x[1], x[1]])
    np.testing.assert_array_equal(value(lambda x, n: MaskOp(x, n, 0, 1), x, np.array(3)), want)


MEANINGS: dict[str, Callable[[Array], Any]] = {
    "neg": np.negative, "abs": np.abs, "sign": np.sign, "not": np.logical_not, "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "reciprocal": lambda x: 1 / x, "isnan": np.isnan, "isinf": np.isinf,
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "tanh": np.tanh,
    "erf": np.vectorize(math.erf), "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "gelu": lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / np.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}  # fmt: skip
"""What kinds of `UNARY` mean, said without the table; those that are a function of NumPy are that."""
FUNCTIONS = {row.kind: row.numpy for row in SCALAR_FUNCTIONS if row.kind is not None}
REALS = np.array([-20, -2.5, -1.5, -1, -0.3, -0.0, 0, 0.2, 0.7, 1, 2.5, 3.25, 9, np.nan, np.inf, -np.inf])


@pytest.mark.parametrize("kind", sorted(UNARY))
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_unary_of_floats(kind: str, dtype: Any) -> None:
    x = REALS.astype(dtype)
    if kind == "not":
        np.testing.assert_array_equal(value(lambda x: UnaryOp(kind, x), REALS == 1), REALS != 1)
        return
    got = value(lambda x: UnaryOp(kind, x), x)
    with np.errstate(all="ignore"):
        want = np.asarray((MEANINGS.get(kind) or FUNCTIONS[kind])(x.astype(np.float64)))
    if want.dtype == np.bool_:
        np.testing.assert_array_equal(got, want)
        return
    assert got.dtype == x.dtype
    with np.errstate(over="ignore"):
        want = want.astype(got.dtype).astype(np.float64)
    # Each step of a definition rounds: sigmoid takes four.
    unit = 4 * epsilon(got.dtype)
    cancelling = 40 if kind.startswith("gelu") else 1
    np.testing.assert_allclose(
        got.astype(np.float64), want, rtol=unit * cancelling, atol=unit / 2 if kind in ("gelu", "gelu_tanh") else 1e-7
    )


BINARY_MEANINGS: dict[str, Callable[[Array, Array], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power, "mod": np.fmod,
    "max": np.maximum, "min": np.minimum, "eq": np.equal, "ne": np.not_equal,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


@pytest.mark.parametrize("kind", BINARY)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_binary_of_floats(kind: str, dtype: Any) -> None:
    """Of each pair of `REALS`: equal ones, zeros of both signs, infinities and NaN are among them."""
    a, b = (each.reshape(-1).astype(dtype) for each in np.meshgrid(REALS, REALS))
    try:
        got = value(lambda x, y: BinaryOp(kind, x, y), a, b)
    except VerifyException:
        assert kind not in BINARY_MEANINGS
        return
    meaning = BINARY_MEANINGS.get(kind) or FUNCTIONS[kind]
    with np.errstate(all="ignore"):
        want = np.asarray(meaning(a.astype(np.float64), b.astype(np.float64)))
        want = want if want.dtype == np.bool_ else want.astype(dtype).astype(np.float64)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2 * epsilon(np.dtype(dtype)), atol=1e-30)


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
