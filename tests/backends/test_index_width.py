"""Indices that need more than 32 bits although every buffer is small, as compiled C and on the emulator."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.compiled import RUNNERS
from tests.helpers.graphs import Graph
from treadle.dialects.graph import BinaryOp, GatherOp, ReductionOp, ReshapeOp, SliceOp

ROWS, COLUMNS = 65537, 65521
STEP = 500_000_003


@pytest.mark.parametrize("target", RUNNERS)
def test_a_virtual_product_larger_than_32_bits(target: str) -> None:
    """Nine elements of a product of 4 294 049 777, which no buffer holds; their positions are divided again."""
    rng = np.random.default_rng(0)
    x = rng.permutation(ROWS).astype(np.float32).reshape(ROWS, 1)
    y = rng.permutation(COLUMNS).astype(np.float32).reshape(1, COLUMNS)
    graph = Graph(x, y)
    product = graph.add(BinaryOp("add", graph[0], graph[1]))
    flat = graph.add(ReshapeOp(product, [ROWS * COLUMNS]))
    some = graph.add(SliceOp(flat, [5], [9], [STEP]))
    largest = graph.add(ReductionOp("max", some, [0], True))
    positions = 5 + STEP * np.arange(9)
    expected = x[positions // COLUMNS, 0] + y[0, positions % COLUMNS]
    actual = RUNNERS[target](graph.module(some, largest), graph.inputs)
    np.testing.assert_array_equal(actual[0], expected)
    np.testing.assert_array_equal(actual[1], expected.max(keepdims=True))


@pytest.mark.parametrize("target", RUNNERS)
def test_gathered_indices_of_64_bits_are_clamped_before_they_are_narrowed(target: str) -> None:
    ids = np.array([2**32 + 1, -(2**32) + 1, 2**63 - 1, -(2**63), 2**31, 6, -7, -1, 3], np.int64)
    data = np.arange(10, 17, dtype=np.float32)
    graph = Graph(data, ids)
    gathered = graph.add(GatherOp(graph[0], graph[1], 0))
    (actual,) = RUNNERS[target](graph.module(gathered), graph.inputs)
    np.testing.assert_array_equal(actual, data[[6, 0, 6, 0, 6, 6, 0, 6, 3]])


@pytest.mark.parametrize("target", RUNNERS)
def test_gathered_indices_of_32_bits(target: str) -> None:
    ids = np.array([2**31 - 1, -(2**31), 6, -7, -1, 3], np.int32)
    data = np.arange(10, 17, dtype=np.float32)
    graph = Graph(data, ids)
    gathered = graph.add(GatherOp(graph[0], graph[1], 0))
    (actual,) = RUNNERS[target](graph.module(gathered), graph.inputs)
    np.testing.assert_array_equal(actual, data[[6, 0, 6, 0, 6, 3]])
