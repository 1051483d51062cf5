"""Selections between loads, and of 16-bit floats, as compiled C: what compilers made of them was wrong, or no code."""

from __future__ import annotations

import numpy as np
import pytest

import treadle
from tests.helpers.graphs import Graph
from treadle.dialects.graph import BinaryOp, WhereOp


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(16, 2, 8), (16, 2, 16), (5, 3, 7)])
def test_conditions_that_are_shared_by_rows(dtype: str, shape: tuple[int, int, int]) -> None:
    """The condition and one side have one row for each two of the other side."""
    generator = np.random.default_rng(0)
    narrow = (shape[0], 1, shape[2])
    condition = generator.integers(0, 2, narrow).astype(bool)
    x, y = (generator.integers(-100, 100, each).astype(dtype) for each in (shape, narrow))
    graph = Graph(condition, x, y)
    with treadle.compile(graph.module(graph.add(WhereOp(graph[0], graph[1], graph[2])))) as model:
        np.testing.assert_array_equal(model(condition, x, y)[0], np.where(condition, x, y))


@pytest.mark.parametrize("shape", [(2,), (1, 2), (2, 1, 1), (3,), (17,)])
def test_thresholds_of_few_16_bit_floats(shape: tuple[int, ...]) -> None:
    x = np.linspace(-2, 2, int(np.prod(shape))).astype(np.float16).reshape(shape)
    graph = Graph(x)
    least, zero = (graph.constant(np.array(value, np.float16)) for value in (0.01, 0))
    above = graph.add(BinaryOp("gt", graph[0], least))
    with treadle.compile(graph.module(graph.add(WhereOp(above, graph[0], zero)))) as model:
        np.testing.assert_array_equal(model(x)[0], np.where(x > np.float16(0.01), x, np.float16(0)))
