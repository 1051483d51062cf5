"""What `docs/numerics.md` says, sentence by sentence: compiled C, the emulator, and what is folded while compiling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.helpers.compiled import RUNNERS
from tests.helpers.graphs import Graph, name_arguments
from treadle.dialects.graph import BinaryOp
from treadle.errors import TreadleError
from treadle.frontends.onnx import import_model

Array = NDArray[Any]
NAN, INF, MOST = np.nan, np.inf, float(np.finfo(np.float64).max)


def floats(*values: Any) -> Array:
    return np.array(values, np.float32)


def longs(*values: Any) -> Array:
    return np.array(values, np.int64)


@dataclass(frozen=True)
class Case:
    """A node, its inputs, and its output; `fixed` inputs decide the shape, and are constants of the model.

    rtol: how much a function's own rounding may add; 0 is exact, but for the sign of a zero
    """

    operator: str
    inputs: Sequence[Array]
    expected: Array
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    fixed: Mapping[int, Array] = field(default_factory=dict[int, Array])
    rtol: float = 0


MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)
FAR = 1 << 32
INDICES = {
    "gather": Case(
        "Gather",
        [floats(10, 11, 12), longs(0, 2, -1, -3, 3, 99, -4, -99, FAR + 1, -FAR - 1, 2**63 - 1, -(2**63))],
        floats(10, 12, 12, 10, 12, 12, 10, 10, 12, 10, 12, 10),
    ),
    "gather with 32 bits": Case(
        "Gather", [floats(10, 11, 12), np.array([5, -5, 2**31 - 1, -(2**31)], np.int32)], floats(12, 10, 12, 10)
    ),
    "gather elements": Case("GatherElements", [MATRIX, longs([3, -4], [-1, 9])], floats([2, 0], [5, 5]), {"axis": 1}),
    "gather tuples": Case("GatherND", [MATRIX, longs([0, 5], [5, 0], [-1, -9], [-3, 1])], floats(2, 3, 3, 1)),
    "one hot": Case(
        "OneHot",
        [longs(0, -1, 3, -4), floats(7, 8)],
        floats([8, 7, 7], [7, 7, 8], [7, 7, 7], [7, 7, 7]),
        fixed={1: np.array(3)},
    ),
    "slice from before the front": Case(
        "Slice", [floats(1, 2, 3)], floats(1), fixed={1: longs(-9), 2: longs(-9), 3: longs(0), 4: longs(-1)}
    ),
    "slice beyond both ends": Case("Slice", [floats(1, 2, 3)], floats(2, 3), fixed={1: longs(-2), 2: longs(99)}),
}

NOTHING, NO_INTEGERS = np.zeros((2, 0), np.float32), np.zeros((2, 0), np.int32)


def folded(operator: str, x: Array, value: float) -> Case:
    return Case(operator, [x], np.full(2, value, x.dtype), {"keepdims": 0}, {1: longs(1)})


EMPTY = {
    **{
        f"{operator} of nothing": folded(operator, NOTHING, value)
        for operator, value in {
            "ReduceSum": 0, "ReduceProd": 1, "ReduceMax": -INF, "ReduceMin": INF, "ReduceMean": NAN, "ReduceL1": 0,
            "ReduceL2": 0, "ReduceSumSquare": 0, "ReduceLogSum": -INF, "ReduceLogSumExp": -INF,
        }.items()
    },
    "ReduceMax of no integers": folded("ReduceMax", NO_INTEGERS, -(2**31)),
    "ReduceMin of no integers": folded("ReduceMin", NO_INTEGERS, 2**31 - 1),
    "ReduceMean of no integers": folded("ReduceMean", NO_INTEGERS, 0),
    "ReduceL2 of no integers": folded("ReduceL2", NO_INTEGERS, 0),
    "ReduceLogSum of no integers": folded("ReduceLogSum", NO_INTEGERS, -(2**31)),
    "a product of no terms": Case(
        "Gemm", [NOTHING, np.zeros((0, 3), np.float32), floats(1, 2, 3)], floats([1, 2, 3], [1, 2, 3])
    ),
}  # fmt: skip

LEFT, RIGHT = floats(NAN, 1, 2, 0, -0.0), floats(1, NAN, 3, -0.0, 0)
ROWS = floats([1, NAN, 3], [4, 5, 6], [NAN, NAN, 7])
BOUNDS = [floats(NAN, -5, 5), np.array(-1, np.float32), np.array(1, np.float32)]
NOT_A_NUMBER = {
    "max": Case("Max", [LEFT, RIGHT], floats(NAN, NAN, 3, 0, 0)),
    "min": Case("Min", [LEFT, RIGHT], floats(NAN, NAN, 2, 0, 0)),
    "clip": Case("Clip", BOUNDS, floats(NAN, -1, 1)),
    "clip to bounds that cross": Case(
        "Clip", [floats(-5, 0, 5), *(np.array(v, np.float32) for v in (3, 2))], floats(2, 2, 2)
    ),
    "relu": Case("Relu", [LEFT], floats(NAN, 1, 2, 0, 0)),
    "ReduceMax": Case("ReduceMax", [ROWS], floats(NAN, 6, NAN), {"keepdims": 0}, {1: longs(1)}),
    "ReduceMin": Case("ReduceMin", [ROWS], floats(NAN, 4, NAN), {"keepdims": 0}, {1: longs(1)}),
    "MaxPool": Case("MaxPool", [ROWS[None]], floats([[NAN, NAN], [5, 6], [NAN, NAN]]), {"kernel_shape": [2]}),
    "ArgMax": Case("ArgMax", [ROWS], longs(1, 2, 0), {"axis": 1, "keepdims": 0}),
    "ArgMin": Case("ArgMin", [ROWS], longs(1, 0, 0), {"axis": 1, "keepdims": 0}),
    "less": Case("Less", [LEFT, RIGHT], np.array([False, False, True, False, False])),
    "greater or equal": Case("GreaterOrEqual", [LEFT, RIGHT], np.array([False, False, False, True, True])),
    "equal": Case("Equal", [LEFT, LEFT], np.array([False, True, True, True, True])),
    "sign": Case("Sign", [floats(NAN, -3, 0, INF)], floats(NAN, -1, 0, 1)),
}

EDGES = floats([INF, 1], [-INF, 1], [-INF, -INF], [INF, -INF], [INF, INF], [0, 0], [NAN, INF])
INFINITIES = {
    "ReduceLogSumExp": Case(
        "ReduceLogSumExp",
        [EDGES],
        floats(INF, 1, -INF, INF, INF, np.log(2), NAN),
        {"keepdims": 0},
        {1: longs(1)},
        rtol=1e-6,
    ),
    "Softmax": Case(
        "Softmax", [EDGES[:6]], floats([NAN, NAN], [0, 1], [NAN, NAN], [NAN, NAN], [NAN, NAN], [0.5, 0.5]), rtol=1e-6
    ),
    "LogSoftmax": Case("LogSoftmax", [EDGES[:3]], floats([NAN, NAN], [-INF, 0], [NAN, NAN]), rtol=1e-6),
}

LINE = floats([[1, 2, 3]])
OPEN = {"kernel_shape": [3], "pads": [1, 1]}
BORDERS = {
    "an infinite weight over padding": Case(
        "Conv", [LINE, floats([[INF, 1, 0]], [[0, 1, INF]])], floats([[NAN, INF, INF], [INF, INF, NAN]]), OPEN
    ),
    "an infinite constant weight over padding": Case(
        "Conv", [LINE], floats([[NAN, INF, INF], [INF, INF, NAN]]), OPEN, {1: floats([[INF, 1, 0]], [[0, 1, INF]])}
    ),
    "an infinite weight over padding, each channel by itself": Case(
        "Conv",
        [floats([[1, 2, 3], [1, 2, 3]])],
        floats([[NAN, INF, INF], [INF, INF, NAN]]),
        OPEN | {"group": 2},
        {1: floats([[INF, 1, 0]], [[0, 1, INF]])},
    ),
    "averages with padding": Case("AveragePool", [floats([[INF, 1, 5]])], floats([[INF, INF, 3]]), OPEN),
    "averages with padding that counts": Case(
        "AveragePool", [floats([[INF, 1, 5]])], floats([[INF, INF, 2]]), OPEN | {"count_include_pad": 1}
    ),
    "a norm by an infinite deviation, of -0 where the row is below its mean": Case(
        "InstanceNormalization",
        [floats([[-2.5, 0, 3e38], [3e38, 0, 0]]), floats(-0.0, -0.0), floats(-0.0, -0.0)],
        floats([[0.0, 0.0, -0.0], [-0.0, 0.0, 0.0]]),
        {"epsilon": 1e-3},
    ),
    "maxima with padding": Case("MaxPool", [floats([[-INF, -INF, -5]])], floats([[-INF, -5, -5]]), OPEN),
}

REALS = [
    *(1.9, -1.9, 127.9, 128, -128.9, -129, 40000, -40000, 2147483520, 2147483648, -2147483648, 3e9, 1e19, -1e19),
    *(NAN, INF, -INF),
]


def cast(source: Any, values: Sequence[Any], to: Any, expected: Sequence[Any]) -> Case:
    """A cast of values to a NumPy type."""
    number = helper.np_dtype_to_tensor_dtype(np.dtype(to))
    return Case("Cast", [np.array(values, source)], np.array(expected, to), {"to": number})


def nearest(value: float, bits: int) -> int:
    """The whole number of so many bits that a cast gives."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    if np.isnan(value):
        return 0
    return high if value == INF else low if value == -INF else min(max(int(value), low), high)


CASTS = {
    f"{np.dtype(source)} to i{bits}": cast(source, REALS, to, [nearest(float(source(v)), bits) for v in REALS])
    for source in (np.float32, np.float64)
    for to, bits in ((np.int8, 8), (np.int16, 16), (np.int32, 32), (np.int64, 64))
} | {
    "f16 to i32": cast(np.float16, [INF, -INF, NAN, 65504, -1.5], np.int32, [2**31 - 1, -(2**31), 0, 65504, -1]),
    "f32 to bool": cast(np.float32, [NAN, 0, -0.0, 1e-45], np.bool_, [True, False, False, True]),
    "i32 to i8": cast(np.int32, [127, 128, 255, 256, -129], np.int8, [127, -128, -1, 0, 127]),
    "i64 to f32": cast(np.int64, [2**24 + 1, 2**24 + 3], np.float32, [2**24, 2**24 + 4]),
    "f64 to f32": cast(np.float64, [1e300, -1e300, 1 + 2**-24], np.float32, [INF, -INF, 1]),
    "f32 to f16": cast(np.float32, [65519, 65520, 2049, 2051], np.float16, [65504, INF, 2048, 2052]),
}

DIVIDENDS = [1e8, 5, 1e10, 1e38, -7.5, 7.5, -0.0, INF, 3, NAN, 1e-45, -1e8]
DIVISORS = [3, INF, 7, 1e-30, 2, -2, 3, 2, 0, 1, 1.5, 3]


def remainders(dtype: Any) -> Case:
    with np.errstate(all="ignore"):
        x, y = (np.array(values, np.float64).astype(dtype) for values in (DIVIDENDS, DIVISORS))
        return Case("Mod", [x, y], np.fmod(x, y), {"fmod": 1})


def floored(dtype: Any) -> Case:
    """Python's remainder: here the other one where the signs differ; `Mod` has it since opset 28."""
    with np.errstate(all="ignore"):
        x, y = (np.array([*values, *more], np.float64).astype(dtype) for values, more in FLOORED)
        return Case("Mod", [x, y], np.mod(x, y))


ALONG = {"keepdims": 0}
MANY = np.full((1, 70000), 4, np.float16)
"""So many that float16 does not count them."""
LARGE = np.tile(np.array([[300, -300]], np.float16), 1000)[:, None]
"""Numbers whose squares are no float16."""
ONES = np.ones(1, np.float16)
SIXTEEN_BITS = {
    "a sigmoid in f16, one power of which is no f16": Case(
        "Sigmoid", [np.array([-12, 12], np.float16)], np.array([6.1442e-06, 1], np.float16), rtol=0.01
    ),
    "softmax in f16": Case("Softmax", [MANY], np.full(MANY.shape, 1 / 70000, np.float16), rtol=1e-3),
    "its logarithm in f16": Case("LogSoftmax", [MANY], np.full(MANY.shape, -np.log(70000), np.float16), rtol=1e-3),
    **{
        f"{operator} in f16": Case(operator, [LARGE, ONES, 0 * ONES], LARGE / 300, {}, rtol=1e-3)
        for operator in ("InstanceNormalization", "LayerNormalization")
    },
    "GroupNormalization in f16": Case(
        "GroupNormalization", [LARGE, ONES, 0 * ONES], LARGE / 300, {"num_groups": 1}, rtol=1e-3
    ),
    "RMSNormalization in f16": Case("RMSNormalization", [LARGE, ONES], LARGE / 300, rtol=1e-3),
    "LpNormalization in f16": Case(
        "LpNormalization", [LARGE], (LARGE / (300 * np.sqrt(2000))).astype(np.float16), rtol=1e-3
    ),
    "MeanVarianceNormalization in f16": Case(
        "MeanVarianceNormalization", [LARGE], LARGE / 300, {"axes": [2]}, rtol=1e-3
    ),
}

FLOORED = (DIVIDENDS, [-5, 5, 0.0, -0.0, 6]), (DIVISORS, [INF, -INF, -2, 2, -3])
SIGNS = [np.array([7, 7, -7, -7, 6], np.int32), np.array([3, -3, 3, -3, 3], np.int32)]
REMAINDERS = {
    **{f"fmod of {np.dtype(t)}": remainders(t) for t in (np.float16, np.float32, np.float64)},
    **{f"mod of {np.dtype(t)}": floored(t) for t in (np.float16, np.float32, np.float64)},
    "mod": Case("Mod", SIGNS, np.array([1, -2, 2, -1, 0], np.int32)),
    "fmod of integers": Case("Mod", SIGNS, np.array([1, 1, -1, -1, 0], np.int32), {"fmod": 1}),
    "shrink of integers by fractions": Case(
        "Shrink", [longs(5, 2, 1, 0, -1, -5)], longs(3, 0, 0, 0, 0, -3), {"bias": 1.5, "lambd": 1.5}
    ),
    "shrink to integers that are large": Case(
        "Shrink", [longs(2**63 - 2, -(2**63))], longs(2**63 - 4, 2 - 2**63), {"bias": 2.0, "lambd": 0.5}
    ),
    "round": Case("Round", [floats(0.5, 1.5, 2.5, -0.5, -1.5)], floats(0, 2, 2, 0, -2)),
    "a sum in f16": Case("ReduceSum", [np.ones(4096, np.float16)], np.array(4096, np.float16), {"keepdims": 0}),
    "a mean in f16, whose sum is no f16": Case(
        "ReduceMean", [np.full(1600, 100, np.float16)], np.array(100, np.float16), {"keepdims": 0}
    ),
    "an average in f16, whose sum is no f16": Case(
        "AveragePool",
        [np.full((1, 1, 1600), 100, np.float16)],
        np.full((1, 1, 1), 100, np.float16),
        {"kernel_shape": [1600]},
    ),
    **SIXTEEN_BITS,
    "mean of integers": Case(
        "ReduceMean", [np.array([[7, -8, 0], [-7, 0, 3]], np.int32)], np.array([0, -1], np.int32), ALONG, {1: longs(1)}
    ),
    "mean of integers whose sum wraps": Case(
        "ReduceMean",
        [np.array([[2**31 - 1, 2]], np.int32)],
        np.array([1 - 2**30], np.int32),
        ALONG,
        {1: longs(1)},
    ),
    "Erf of integers": Case("Erf", [longs(-7, -1, 0, 2, 7)], longs(-1, 0, 0, 0, 1)),
    "ReduceL2 of integers": Case(
        "ReduceL2", [longs([3, 4], [1, 2], [-(2**40), 0])], longs(5, 2, 2**40), ALONG, {1: longs(1)}
    ),
    "ReduceLogSum of integers": Case(
        "ReduceLogSum", [longs([1, 6], [-1, 1], [-1, 0])], longs(1, -(2**63), 0), ALONG, {1: longs(1)}
    ),
    "ReduceLogSumExp of integers": Case(
        "ReduceLogSumExp", [longs([0, 0, 0], [0, -1, -1], [5, 5, 5])], longs(1, 0, 6), ALONG, {1: longs(1)}
    ),
    "a float32 epsilon of float64": Case(
        "BatchNormalization",
        [np.ones((1, 2)), *(np.array([v, v], np.float64) for v in (1, 0, 0, 0))],
        np.full((1, 2), 1 / np.sqrt(np.float64(np.float32(1e-5)))),
        rtol=1e-12,
    ),
    "a scale that does not go into weights: they would be infinite": Case(
        "Gemm", [np.array([[0.25]])], np.array([[0.5 * MOST]]), {"alpha": 2.0}, {1: np.array([[MOST]])}
    ),
    "pow": Case("Pow", [longs(3, -2, 10), longs(33, 51, 15)], longs(3**33, -(2**51), 10**15)),
    "sum": Case("Add", [longs(2**63 - 1), longs(1)], longs(-(2**63))),
    "difference": Case(
        "Sub", [np.array([-(2**31)], np.int32), np.array([1], np.int32)], np.array([2**31 - 1], np.int32)
    ),
    "product": Case("Mul", [np.array([65537], np.int32)] * 2, np.array([131073], np.int32)),
}

CASES: dict[str, Case] = INDICES | EMPTY | NOT_A_NUMBER | INFINITIES | BORDERS | CASTS | REMAINDERS


def model_of(cases: Sequence[Case], constants: bool) -> bytes:
    """One model of all cases, an output for each; with `constants` every input is one."""
    nodes, inputs, outputs, weights = [], [], [], []
    for n, case in enumerate(cases):
        names, given = list[str](), iter(case.inputs)
        for position in range(len(case.inputs) + len(case.fixed)):
            names.append(f"x{n}_{position}")
            array = np.asarray(case.fixed[position] if position in case.fixed else next(given))
            if constants or position in case.fixed:
                weights.append(numpy_helper.from_array(array, names[-1]))
                continue
            number = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(names[-1], number, array.shape))
        nodes.append(helper.make_node(case.operator, names, [f"y{n}"], **case.attributes))
        outputs.append(helper.make_empty_tensor_value_info(f"y{n}"))
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 28)]).SerializeToString()


def agrees(actual: Array, case: Case) -> bool:
    """Whether a result is the expected one, with the sign of a zero where `Mod` or a norm gave it."""
    if not np.allclose(actual, case.expected, case.rtol, 0, equal_nan=True):
        return False
    known = ~np.isnan(case.expected) & (case.operator in ("Mod", "InstanceNormalization"))
    return np.array_equal(np.signbit(actual[known]), np.signbit(case.expected[known]))


@pytest.mark.parametrize(("runner", "constants"), [("c", False), ("emulator", False), ("c", True)])
def test_numerics(runner: str, constants: bool) -> None:
    module = import_model(model_of(list(CASES.values()), constants))
    arrays = [] if constants else [np.asarray(x) for case in CASES.values() for x in case.inputs]
    results = RUNNERS[runner](module, arrays)
    wrong: list[str] = []
    for (name, case), actual in zip(CASES.items(), results, strict=True):
        same = (actual.dtype, actual.shape) == (case.expected.dtype, case.expected.shape)
        if not same or not agrees(actual, case):
            wrong.append(f"{name}: {actual!r}, not {case.expected!r}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("runner", RUNNERS)
def test_float16_is_rounded_after_each_operator(runner: str) -> None:
    """2048 + 1 is 2048, and 40000 + 40000 infinite, whatever constants are beside them."""
    x = np.array([2048, 40000], np.float16)
    graph = Graph(x)
    one, two = (graph.constant(np.array(v, np.float16)) for v in (1, 2))
    same = graph.add(BinaryOp("sub", graph.add(BinaryOp("add", graph[0], one)), graph[0]))
    half = graph.add(BinaryOp("div", graph.add(BinaryOp("mul", graph[0], two)), two))
    module = graph.module(same, half)
    name_arguments(module, 1, 2)
    first, second = RUNNERS[runner](module, [x])
    np.testing.assert_array_equal(first, np.array([0, 0], np.float16))
    np.testing.assert_array_equal(second, np.array([2048, INF], np.float16))


@pytest.mark.parametrize(
    ("operator", "shape", "others", "message"),
    [
        ("Gather", (0, 3), {"i": longs(0)}, "dimension 0 of tensor<0x3xf32> has no elements to choose from"),
        ("GatherElements", (0, 3), {"i": longs([0])}, "has no elements to choose from"),
        ("GatherND", (0, 3), {"i": longs([0, 0])}, "has no elements to choose from"),
        ("ArgMax", (0, 3), {}, "the max of no elements"),
        ("ArgMin", (0, 3), {}, "the min of no elements"),
    ],
)
def test_what_no_elements_cannot_give(
    operator: str, shape: Sequence[int], others: Mapping[str, Array], message: str
) -> None:
    node = helper.make_node(operator, ["x", *others], ["y"], name="n")
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(array, name) for name, array in others.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    with pytest.raises(TreadleError, match=message):
        import_model(model.SerializeToString())
