"""Limits of errors: what computations in the declared types keep to, and wrong ones do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import f32, i8, i32
from xdsl.ir import Attribute, SSAValue

from tests.helpers.graphs import Graph, random
from tests.helpers.random_graphs import WHOLE_STEPS, random_graph
from treadle.backends.reference import evaluate_module
from treadle.backends.reference.bound_module import bound_module
from treadle.backends.reference.bounded import Bounded
from treadle.dialects.graph import (
    ArgReductionOp,
    AttentionOp,
    BinaryOp,
    CastOp,
    GatherOp,
    MaskOp,
    MatmulOp,
    PoolOp,
    ReductionOp,
    SoftmaxOp,
    UnaryOp,
    WhereOp,
)
from treadle.dialects.graph.dtypes import ui8
from treadle.errors import TreadleError

Array = NDArray[Any]
EPSILON = 2.0**-23


def bounded(graph: Graph, *results: SSAValue, **options: Any) -> tuple[Bounded, ...]:
    return bound_module(graph.module(*results), graph.inputs, **options)


def part(actual: Array, expected: Bounded) -> float:
    """The largest error in parts of its limit."""
    apart = np.abs(actual.astype(np.float64) - expected.value)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.where(apart == 0, 0, apart / expected.full_error).max())


def sequential(a: Array, b: Array) -> Array:
    """A product whose sums run one term after the other, in the operands' type."""
    total = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    for k in range(a.shape[1]):
        total = total + a[:, k : k + 1] * b[k]
    return total


@pytest.mark.parametrize("shift", [0.0, 3.0])
@pytest.mark.parametrize("terms", [3, 64, 2048])
def test_sums_in_any_order_keep_to_their_limits(terms: int, shift: float) -> None:
    a, b = random(8, terms) + np.float32(shift), random(terms, 9, seed=1) + np.float32(shift)
    graph = Graph(a, b)
    (expected,) = bounded(graph, graph.add(MatmulOp(graph[0], graph[1])))
    np.testing.assert_array_equal(expected.value, a.astype(np.float64) @ b.astype(np.float64))
    orders = [np.arange(terms), np.arange(terms)[::-1], np.random.default_rng(0).permutation(terms)]
    parts = [part(sequential(a[:, order], b[order]), expected) for order in orders]
    assert 1e-3 < max(parts) < 0.3
    short = a.copy()
    short[:, terms // 2] = 0
    assert part(sequential(short, b), expected) > 10


def test_one_coarse_operand_is_noticed() -> None:
    a, b = random(16, 512), random(512, 16, seed=1)
    graph = Graph(a, b)
    (expected,) = bounded(graph, graph.add(MatmulOp(graph[0], graph[1])))
    assert part(sequential(a.astype(np.float16).astype(np.float32), b), expected) > 1


@pytest.mark.parametrize("seed", range(8))
def test_an_evaluation_in_the_declared_types_keeps_to_the_limits(seed: int) -> None:
    graph, results = random_graph(seed, WHOLE_STEPS)
    module = graph.module(*results)
    for actual, expected in zip(evaluate_module(module, graph.inputs), bound_module(module, graph.inputs), strict=True):
        assert part(actual, expected) <= 0.5
        assert np.all(expected.full_error <= 1e-3 * (1 + np.abs(expected.value)))


def test_what_rounds_nowhere_is_exact() -> None:
    graph = Graph(random(2, 1, 6, 6), np.arange(72, dtype=np.float32).reshape(2, 1, 6, 6))
    relu = graph.add(UnaryOp("relu", graph[0]))
    pooled = graph.add(PoolOp("max", relu, [2, 2], [2, 2], [0] * 4, [1, 1]))
    whole = graph.add(BinaryOp("mul", graph[1], graph[1]))
    assert all(each.exact for each in bounded(graph, relu, pooled, whole))


def test_behind_a_sigmoid_a_limit_is_a_part_of_its_own_element() -> None:
    """Not of the largest one: where the output is 1e-12, an error of 1e-9 is wrong."""
    graph = Graph(np.linspace(-40, 10, 101, dtype=np.float32), random(101))
    x = graph.add(BinaryOp("add", graph[0], graph[1]))
    (expected,) = bounded(graph, graph.add(UnaryOp("sigmoid", x)))
    assert np.all(expected.full_error < 3e-4 * expected.value)
    assert part(np.maximum(expected.value, 1e-9), expected) > 1e6


def test_what_comes_from_one_element_moves_with_it() -> None:
    """`x - x / 2` is off by half of what x is, not by more than all of it."""
    graph = Graph(random(4, 2048), random(2048, 4, seed=1))
    x = graph.add(MatmulOp(graph[0], graph[1]))
    half = graph.add(BinaryOp("mul", x, graph.constant(np.float32(0.5))))
    whole, rest = bounded(graph, x, graph.add(BinaryOp("sub", x, half)))
    np.testing.assert_allclose(rest.full_error, whole.full_error / 2, rtol=0.05)


def test_what_rounding_decides_has_no_limit() -> None:
    """A comparison of equal numbers, an index of the larger of two, and what is read there."""
    a = np.array([1.0, 0.3, 2.0], np.float32)
    graph = Graph(a, np.array([-1.0, -0.1, 1.0], np.float32), np.array([5.0, 7.0, 9.0], np.float32))
    third = graph.add(BinaryOp("div", graph[0], graph.constant(np.float32(3))))
    near = graph.add(BinaryOp("add", third, graph.constant(np.float32(-0.1))))
    chosen = graph.add(WhereOp(graph.add(BinaryOp("gt", near, graph.constant(np.float32(0)))), graph[2], graph[1]))
    place = graph.add(ArgReductionOp("max", graph.add(BinaryOp("mul", third, third)), 0, True))
    taken = graph.add(GatherOp(graph[2], place, 0))
    branch, position, value = bounded(graph, chosen, place, taken)
    # 0.3 / 3 - 0.1 may lie on either side of 0.
    np.testing.assert_allclose(branch.full_error, [0, 7.1, 0], atol=1e-6)
    assert position.value[0] == 2 and position.full_error[0] == 0 and value.value[0] == 9


def test_elements_that_tie_leave_their_position_open() -> None:
    graph = Graph(np.array([0.1, 0.3, 0.3], np.float32))
    third = graph.add(BinaryOp("div", graph[0], graph.constant(np.float32(3))))
    place = graph.add(ArgReductionOp("max", third, 0, False))
    (position,) = bounded(graph, place)
    assert position.value == 1 and position.full_error == 1


def test_integers_and_truths() -> None:
    graph = Graph(np.array([0.3, 7.5, np.nan, np.inf], np.float32))
    tenth = graph.add(BinaryOp("mul", graph[0], graph.constant(np.float32(10))))
    whole = graph.add(UnaryOp("floor", tenth))
    nan = graph.add(UnaryOp("isnan", graph[0]))
    floors, truths = bounded(graph, whole, nan)
    assert list(floors.full_error[:2]) == [1, 1] and list(truths.value) == [False, False, True, False]


@pytest.mark.parametrize("both", [False, True])
def test_products_of_integers_that_rounding_decides(both: bool) -> None:
    """Undecided elements of a factor may all be off in the same direction, those of the two factors independently."""
    a, b = np.array([[7.5, 0.31, 9.0, 25.5]], np.float32), np.array([[0.1], [0.2], [-0.3], [10.0]], np.float32)
    graph = Graph(a, b, np.array([[1], [2], [-4], [100]], np.int8))

    def tenfold(x: SSAValue, type: Attribute) -> SSAValue:
        product = graph.add(BinaryOp("mul", x, graph.constant(np.float32(10))))
        return graph.add(CastOp(graph.add(UnaryOp("floor", product)), type))

    left, right = tenfold(graph[0], ui8), tenfold(graph[1], i8) if both else graph[2]
    (product,) = bounded(graph, graph.add(MatmulOp(left, right, sums=i32)))
    assert product.value == 75 * 1 + 3 * 2 + 90 * -4 + 255 * 100
    of_left, of_right = 1 + 4 + 100, 75 + 3 + 90 + 255  # 3 of 3.1 is decided
    assert product.full_error == (np.hypot(of_left, of_right) if both else of_left)


def test_sums_of_whole_numbers_are_exact_in_floats() -> None:
    """As a zero point is added before a number becomes a byte: only what is next to a tie may be another one."""
    graph = Graph(np.array([0.31, 0.25, 7.9, -3.0], np.float32))
    whole = graph.add(UnaryOp("round", graph.add(BinaryOp("mul", graph[0], graph.constant(np.float32(10))))))
    q = graph.add(CastOp(graph.add(BinaryOp("add", whole, graph.constant(np.float32(134)))), ui8))
    (quantised,) = bounded(graph, q)
    assert list(quantised.value) == [137, 136, 213, 104]
    assert list(quantised.full_error > 0) == [False, True, False, False]


def test_infinities_stay_what_they_are() -> None:
    graph = Graph(np.array([[0.0, -np.inf, 1.0], [-np.inf, -np.inf, -np.inf]], np.float32))
    (weights,) = bounded(graph, graph.add(SoftmaxOp(graph[0], 1)))
    assert weights.value[0, 1] == 0 and np.isfinite(weights.full_error[0]).all() and np.isnan(weights.value[1]).all()


def test_sums_with_infinities_are_certain() -> None:
    a = random(4, 9)
    a[0, 3], a[1, 2], a[2, 1:3] = np.inf, np.nan, [np.inf, -np.inf]
    graph = Graph(a, np.abs(random(9, 2, seed=1)))
    total = graph.add(ReductionOp("add", graph[0], [1], False))
    for each in bounded(graph, total, graph.add(MatmulOp(graph[0], graph[1]))):
        rows = each.value.reshape(4, -1)
        assert np.all(rows[0] == np.inf) and np.isnan(rows[1:3]).all() and np.isfinite(rows[3]).all()
        assert np.isfinite(each.full_error).all()


def test_numbers_beyond_the_type_are_infinite() -> None:
    graph = Graph(np.array([1e30, 10.0], np.float32), np.array([300.0, 10.0], np.float16))
    squares = [graph.add(BinaryOp("mul", graph[n], graph[n])) for n in range(2)]
    wide, narrow = bounded(graph, *squares)
    assert list(wide.value) == [np.inf, 100.0] and list(narrow.value) == [np.inf, 100.0]


PRECISIONS: list[tuple[Any, Callable[[Array], Array]]] = [
    ("f16", lambda x: x.astype(np.float16).astype(np.float32)),
    ("bf16", lambda x: x.astype(ml_dtypes.bfloat16).astype(np.float32)),
]


@pytest.mark.parametrize(("precision", "rounded"), PRECISIONS, ids=["f16", "bf16"])
def test_a_precision_widens_the_limits_of_products(precision: Any, rounded: Callable[[Array], Array]) -> None:
    a, b = random(32, 256), random(256, 32, seed=1)
    graph = Graph(a, b)
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    (plain,), (coarse,) = (bound_module(module, graph.inputs, each) for each in ("f32", precision))
    actual = rounded(rounded(a) @ rounded(b))
    assert part(actual, plain) > 2 and 0.02 < part(actual, coarse) < 0.5


def test_a_precision_leaves_extents_as_they_are() -> None:
    """bf16 has no 259: with 260 keys, the last value would count."""
    length, q, v = np.array(259), np.zeros((1, 4), np.float32), np.ones((300, 1), np.float32)
    v[259:] = 1e6
    graph = Graph(q, np.zeros((300, 4), np.float32), v, length)
    attention = graph.add(AttentionOp(graph[0], graph[1], graph[2], length=graph[3]))
    masked = graph.add(MaskOp(graph[2], graph[3], 0, 0.0))
    total = graph.add(MatmulOp(graph.constant(np.ones((1, 300), np.float32)), masked))
    for found, want in zip(bound_module(graph.module(attention, total), graph.inputs, "bf16"), (1, 259), strict=True):
        assert abs(float(found.value[0, 0]) - want) < 1e-3 and found.full_error[0, 0] < 20


def test_a_masked_operand_is_rounded_for_all_its_readers() -> None:
    """The mask selects of what the product's operand is stored as."""
    x = random(8, 8)
    graph = Graph(x, np.array(5))
    product = graph.add(MatmulOp(graph.add(MaskOp(graph[0], graph[1], 1, 0.0)), graph.constant(random(8, 8))))
    other = graph.add(UnaryOp("relu", graph[0]))
    _, found = bound_module(graph.module(product, other), graph.inputs, "f16")
    assert found.full_error.max() > 1e-5


def test_tf32_rounds_operands_alone() -> None:
    a, b = random(32, 256), random(256, 32, seed=1)
    graph = Graph(a, b)
    product = graph.add(MatmulOp(graph[0], graph[1]))
    module = graph.module(product, graph.add(CastOp(graph[0], f32)))
    results = bound_module(module, graph.inputs, "tf32")
    assert 0.02 < part((a.astype(np.float16).astype(np.float32)) @ b, results[0]) < 0.5


def test_inputs_are_checked() -> None:
    graph = Graph(random(3))
    module = graph.module(graph.add(ReductionOp("add", graph[0], [0], False)))
    with pytest.raises(TreadleError, match=r"is float32\[4\]; accepted: float32\[3\]"):
        bound_module(module, [random(4)])
