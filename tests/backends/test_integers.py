"""Integers of every type and every extreme as compiled C and on the emulator, against Python's unbounded integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from tests.helpers.compiled import TARGETS, run_module
from tests.helpers.graphs import Graph
from tests.helpers.integer_arithmetic import (
    ARITHMETIC,
    BOOL,
    COMPARISONS,
    INTEGERS,
    LIMITS,
    SIGNED,
    UNARY,
    Expressions,
    array,
    binary,
    converted,
    extremes,
    unary,
)
from treadle.backends.reference import evaluate_module
from treadle.dialects.graph import BinaryOp, CastOp, ReductionOp, UnaryOp
from treadle.dialects.graph.dtypes import element_type
from treadle.passes.graph.graph_fold_constants import GraphFoldConstantsPass

Array = NDArray[Any]
POINTS = 211


def pairs(dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Every pair of extremes."""
    values = [False, True] if dtype == BOOL else extremes(dtype)
    a, b = (grid.ravel() for grid in np.meshgrid(array(values, dtype), array(values, dtype)))
    return a, b


@dataclass(frozen=True)
class Calculations:
    """A module of many operations, which each target lowers a copy of, its inputs, and what each result must be."""

    module: ModuleOp
    inputs: Sequence[Array]
    names: list[str]
    expected: list[Array]

    def check(self, target: str) -> None:
        """Runs them on a target."""
        assert_all_equal(self.names, run_module(target, self.module.clone(), self.inputs), self.expected)


def assert_all_equal(names: list[str], actual: list[Array], expected: list[Array]) -> None:
    """Compares outputs; the message names those that differ."""
    wrong = [
        f"{name}: {x[x != y][:3]} instead of {y[x != y][:3]}"
        for name, x, y in zip(names, actual, expected, strict=True)
        if x.dtype != y.dtype or not np.array_equal(x, y)
    ]
    assert not wrong, "\n".join(wrong)


@cache
def operations_on_extremes() -> Calculations:
    data = [column for dtype in (*INTEGERS, BOOL) for column in pairs(dtype)]
    graph, names, results, expected = Graph(*data), list[str](), list[Any](), list[Array]()
    for n, dtype in enumerate((*INTEGERS, BOOL)):
        a, b = data[2 * n : 2 * n + 2]
        kinds = [*ARITHMETIC, *COMPARISONS] if dtype != BOOL else ["and", "or", "xor", "eq", "ne"]
        for kind in kinds:
            names.append(f"{kind} of {dtype}")
            results.append(graph.add(BinaryOp(kind, graph[2 * n], graph[2 * n + 1])))
            expected.append(binary(kind, a, b))
        for kind in UNARY if dtype != BOOL else ["not"]:
            names.append(f"{kind} of {dtype}")
            results.append(graph.add(UnaryOp(kind, graph[2 * n])))
            expected.append(unary(kind, a))
        for to in (*INTEGERS, BOOL):
            if to != dtype:
                names.append(f"{dtype} to {to}")
                results.append(graph.add(CastOp(graph[2 * n], element_type(to))))
                expected.append(converted(a, to))
    return Calculations(graph.module(*results), data, names, expected)


@pytest.mark.parametrize("target", TARGETS)
def test_every_operation_on_extremes(target: str) -> None:
    operations_on_extremes().check(target)


@cache
def operations_on_results() -> Calculations:
    """Inside a C expression an integer of 8 or 16 bits is an int, and one of 32 or 64 bits must not overflow."""
    data = [column for dtype in INTEGERS for column in pairs(dtype)]
    graph, names, results, expected = Graph(*data), list[str](), list[Any](), list[Array]()
    for n, dtype in enumerate(INTEGERS):
        (a, b), (x, y) = data[2 * n : 2 * n + 2], (graph[2 * n], graph[2 * n + 1])
        for inner in ("add", "sub", "mul", "div"):
            first = binary(inner, a, b)
            for outer in ("gt", "div", "mod", "max", "mul"):
                names.append(f"{outer}({inner}) of {dtype}")
                results.append(graph.add(BinaryOp(outer, graph.add(BinaryOp(inner, x, y)), y)))
                expected.append(binary(outer, first, b))
            for m, to in enumerate((*INTEGERS, np.dtype(np.float64))):
                # Products are the furthest outside of their type; the others take turns.
                if inner not in ("mul", ("add", "sub", "div")[(n + m) % 3]):
                    continue
                names.append(f"{to}({inner}) of {dtype}")
                results.append(graph.add(CastOp(graph.add(BinaryOp(inner, x, y)), element_type(to))))
                expected.append(converted(first, to))
    return Calculations(graph.module(*results), data, names, expected)


@pytest.mark.parametrize("target", TARGETS)
def test_values_that_are_used_once_wrap_before_they_are_used(target: str) -> None:
    operations_on_results().check(target)


@cache
def divisions_by_constants() -> Calculations:
    data = [array(extremes(dtype), dtype) for dtype in INTEGERS]
    graph, names, results, expected = Graph(*data), list[str](), list[Any](), list[Array]()
    for n, (dtype, a) in enumerate(zip(INTEGERS, data, strict=True)):
        ends = np.iinfo(dtype)
        for divisor in (0, 1, 7, int(ends.min), int(ends.max), *((-1, -8) if dtype in SIGNED else ())):
            for kind in ("div", "mod"):
                constant = graph.constant(np.array(divisor, dtype))
                names.append(f"{kind} by {divisor} of {dtype}")
                results.append(graph.add(BinaryOp(kind, graph[n], constant)))
                expected.append(binary(kind, a, np.full_like(a, divisor)))
    return Calculations(graph.module(*results), data, names, expected)


@pytest.mark.parametrize("target", TARGETS)
def test_constant_divisors(target: str) -> None:
    divisions_by_constants().check(target)


@cache
def conversions_of_floats() -> Calculations:
    special = [*LIMITS, *(float(np.nextafter(x, 0)) for x in LIMITS), np.inf, -np.inf, np.nan, 0.0, -0.0, 3.25, -7.75]
    types = [np.dtype(t) for t in (np.float16, np.float32, np.float64)]
    with np.errstate(all="ignore"):
        data = [np.array(special).astype(t) for t in types]
    graph, names, results, expected = Graph(*data), list[str](), list[Any](), list[Array]()
    for n, a in enumerate(data):
        for to in INTEGERS:
            names.append(f"{a.dtype} to {to}")
            results.append(graph.add(CastOp(graph[n], element_type(to))))
            expected.append(converted(a, to))
    return Calculations(graph.module(*results), data, names, expected)


@pytest.mark.parametrize("target", TARGETS)
def test_floats_beyond_an_integer_type_give_its_limits(target: str) -> None:
    conversions_of_floats().check(target)


@cache
def reductions() -> Calculations:
    rng = np.random.default_rng(5)
    data = [rng.choice(array(extremes(dtype), dtype), (5, 301)) for dtype in INTEGERS]
    graph, names, results, expected = Graph(*data), list[str](), list[Any](), list[Array]()
    for n, x in enumerate(data):
        for kind in ("add", "mul", "max", "min"):
            names.append(f"{kind} of {x.dtype}")
            results.append(graph.add(ReductionOp(kind, graph[n], [1], keep=False)))
            rows = x[:, 0]
            for column in x.T[1:]:
                rows = binary(kind, rows, column)
            expected.append(rows)
    return Calculations(graph.module(*results), data, names, expected)


@pytest.mark.parametrize("target", TARGETS)
def test_sums_and_products_of_many_wrap(target: str) -> None:
    reductions().check(target)


@cache
def random_expressions() -> Calculations:
    drawn = Expressions(7, POINTS)
    types = [*INTEGERS, BOOL] * 4
    roots = [drawn.draw(dtype, 5) for dtype in types]
    module = drawn.graph.module(*(root.value for root in roots))
    names = [f"{n}: {t}" for n, t in enumerate(types)]
    return Calculations(module, drawn.inputs, names, [root.expected for root in roots])


@pytest.mark.parametrize("target", TARGETS)
def test_random_expressions(target: str) -> None:
    random_expressions().check(target)


def test_constants_fold_to_the_same() -> None:
    graph, results, expected = Graph(), list[Any](), list[Array]()
    for dtype in INTEGERS:
        a, b = pairs(dtype)
        for kind in ("add", "mul", "div", "mod"):
            results.append(graph.add(BinaryOp(kind, graph.constant(a), graph.constant(b))))
            expected.append(binary(kind, a, b))
    for to in INTEGERS:
        values = np.array([*LIMITS, np.inf, -np.inf, np.nan])
        results.append(graph.add(CastOp(graph.constant(values), element_type(to))))
        expected.append(converted(values, to))
    module = graph.module(*results)
    GraphFoldConstantsPass().apply(None, module)  # pyright: ignore[reportArgumentType]
    assert not [op for op in module.walk() if isinstance(op, BinaryOp | CastOp)]
    for x, y in zip(evaluate_module(module, []), expected, strict=True):
        np.testing.assert_array_equal(x, y)
