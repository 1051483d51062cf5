"""Expressions that values are compared with: orders, names, numbers and reductions."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph, random
from treadle.dialects.graph import BinaryOp, ReductionOp, ReshapeOp, UnaryOp
from treadle.passes.graph.recognize.patterns import Capture, Number, Pattern, Product, Reduced, mean, unary

X, Y = Capture("x"), Capture("y")


@pytest.fixture
def graph() -> Graph:
    return Graph(random(4, 8), random(4, 8))


def binary(graph: Graph, kind: str, a: SSAValue, b: SSAValue) -> SSAValue:
    return graph.add(BinaryOp(kind, a, b))


def found(pattern: Pattern, value: SSAValue) -> list[dict[str, SSAValue]]:
    return [dict(match.values) for match in pattern.matches(value)]


def test_commutative_operators_match_in_either_order(graph: Graph) -> None:
    a, b = graph[0], graph[1]
    assert found(X + Y, binary(graph, "add", a, b)) == [{"x": a, "y": b}, {"x": b, "y": a}]
    assert found(X - Y, binary(graph, "sub", a, b)) == [{"x": a, "y": b}]
    assert found(X - Y, binary(graph, "add", a, b)) == []
    assert found(unary("exp", X) * Y, binary(graph, "mul", a, graph.add(UnaryOp("exp", b)))) == [{"x": b, "y": a}]


def test_a_name_that_stands_twice_is_one_value_or_equal_reshapes_of_it(graph: Graph) -> None:
    a, b = graph[0], graph[1]
    first, second = (graph.add(ReshapeOp(a, [32])) for _ in range(2))
    assert found(X - X, binary(graph, "sub", a, b)) == []
    assert found(X - X, binary(graph, "sub", a, a)) == [{"x": a}]
    assert found(X - X, binary(graph, "sub", first, second)) == [{"x": first}]


@pytest.mark.parametrize(("constant", "number", "matches"), [
    (np.float32(0.044715), 0.044715, True), (np.float32(2.0000002), 2.0, True), (np.float32(2.0000002), 2, False),
    (np.full((1, 8), 2, np.float32), 2, True), (np.full((2, 4, 8), 2, np.float32), 2, False),
    (np.arange(8, dtype=np.float32), "any", False), (np.float32(7), "any", True),
])  # fmt: skip
def test_numbers_are_uniform_constants_that_broadcast(
    graph: Graph, constant: object, number: float | str, matches: bool
) -> None:
    power = binary(graph, "pow", graph[0], graph.constant(constant))
    assert bool(found(X ** Number(number), power)) == matches


def test_factors_stand_in_any_order_unless_another_operator_reads_a_part(graph: Graph) -> None:
    a, b = graph[0], graph[1]
    part = binary(graph, "mul", b, graph.constant(np.float32(0.5)))
    product = binary(graph, "mul", graph.add(UnaryOp("exp", a)), part)
    pattern = Product((Number(0.5), X, unary("exp", Y)))
    assert found(pattern, product) == [{"x": b, "y": a}]
    binary(graph, "add", part, a)
    assert found(pattern, product) == []


def test_reductions_of_a_pattern_have_the_same_dimensions(graph: Graph) -> None:
    rows, columns = (graph.add(ReductionOp("max", graph[0], [dim], True)) for dim in (1, 0))
    twice = Reduced("max", X) - Reduced("max", X)
    assert [match.dims for match in twice.matches(binary(graph, "sub", rows, rows))] == [(1,)]
    assert found(twice, binary(graph, "sub", rows, columns)) == []


@pytest.mark.parametrize(("kind", "count", "matches"), [("div", 8, True), ("mul", 1 / 8, True), ("div", 4, False)])
def test_a_mean_may_be_a_sum_of_so_many_terms(graph: Graph, kind: str, count: float, matches: bool) -> None:
    total = graph.add(ReductionOp("add", graph[0], [1], True))
    value = binary(graph, kind, total, graph.constant(np.float32(count)))
    assert bool(found(mean(X, like="x"), value)) == matches
