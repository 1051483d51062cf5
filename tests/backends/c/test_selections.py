"""Selections between loads, and of 16-bit floats, as compiled C: what compilers made of them was wrong, or no code."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import treadle
from tests.helpers.graphs import Graph
from treadle.dialects.graph import BinaryOp, ConcatOp, PadOp, ReductionOp, SliceOp, UnaryOp, WhereOp


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


@pytest.mark.parametrize(("kind", "expected"), [("and", np.logical_and), ("or", np.logical_or)])
@pytest.mark.parametrize("shape", [(64, 2, 2), (16, 2, 8), (5, 3, 7)])
def test_conditions_that_are_shared_by_rows_decide(kind: str, expected: np.ufunc, shape: tuple[int, int, int]) -> None:
    """The left side, which has one row for each two of the right one, decides where the right one matters."""
    generator = np.random.default_rng(0)
    left, right = (generator.integers(0, 2, each).astype(bool) for each in ((shape[0], 1, shape[2]), shape))
    graph = Graph(left, right)
    with treadle.compile(graph.module(graph.add(BinaryOp(kind, graph[0], graph[1])))) as model:
        np.testing.assert_array_equal(model(left, right)[0], expected(left, right))


@pytest.mark.parametrize("columns", [3, 4, 8])
def test_distances_from_means_of_some_rows(columns: int) -> None:
    """The number of rows is read for each column, under the condition that there is such a column."""
    x = np.random.default_rng(columns).standard_normal((37, columns))
    mean = helper.make_node("ReduceMean", ["x"], ["m"], axes=[0])
    nodes = [mean, helper.make_node("Sub", ["x", "m"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["n", columns]) for name in "xy"]
    graph = helper.make_graph(nodes, "distances", values[:1], values[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    with treadle.compile(proto, shapes={"x": (treadle.Dim("n", 1, 37), columns)}) as model:
        for rows in (37, 1, 6):
            np.testing.assert_allclose(model(x[:rows])[0], x[:rows] - x[:rows].mean(0), rtol=0, atol=1e-14)


@pytest.mark.parametrize("shape", [(2,), (1, 2), (2, 1, 1), (3,), (17,)])
def test_thresholds_of_few_16_bit_floats(shape: tuple[int, ...]) -> None:
    x = np.linspace(-2, 2, int(np.prod(shape))).astype(np.float16).reshape(shape)
    graph = Graph(x)
    least, zero = (graph.constant(np.array(value, np.float16)) for value in (0.01, 0))
    above = graph.add(BinaryOp("gt", graph[0], least))
    with treadle.compile(graph.module(graph.add(WhereOp(above, graph[0], zero)))) as model:
        np.testing.assert_array_equal(model(x)[0], np.where(x > np.float16(0.01), x, np.float16(0)))


@pytest.mark.parametrize("lanes", [16, 21, 3])
def test_sums_of_concatenated_vectors(lanes: int) -> None:
    """Which part a vector comes from is one question for all of its lanes; the other parts have no such address."""
    generator = np.random.default_rng(0)
    parts = [generator.standard_normal((blocks, 6, lanes)).astype(np.float32) for blocks in (2, 3, 1)]
    graph = Graph(*parts)
    whole = graph.add(ConcatOp([graph[n] for n in range(3)], 0))
    rows = graph.add(ReductionOp("add", whole, [1], False))
    with treadle.compile(graph.module(rows)) as model:
        expected = np.concatenate(parts).astype(np.float64).sum(1)
        np.testing.assert_allclose(model(*parts)[0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("lanes", [16, 21, 3])
def test_slices_of_padded_vectors(lanes: int) -> None:
    """A border of rows: no lane of theirs, or every one, is read."""
    x = np.random.default_rng(0).standard_normal((5, 7, lanes)).astype(np.float32)
    graph = Graph(x)
    padded = graph.add(PadOp("constant", graph[0], graph.constant(np.float32(2)), [1, 2, 0, 0, 3, 0]))
    with treadle.compile(graph.module(graph.add(SliceOp(padded, [0, 1, 0], [6, 11, lanes], [1, 1, 1])))) as model:
        expected = np.pad(x, [(1, 0), (2, 3), (0, 0)], constant_values=2)[:, 1:]
        np.testing.assert_array_equal(model(x)[0], expected)


@pytest.mark.parametrize("shape", [(3, 4, 5), (4, 3, 8), (2, 3, 17)])
def test_a_tensor_concatenated_with_itself(shape: tuple[int, ...]) -> None:
    """Two loads of one buffer, each under the opposite of the other's condition: gcc 12.2 lost one on AVX2."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    graph = Graph(x)
    twice = graph.add(ConcatOp([graph[0], graph[0]], 0))
    grown = graph.add(ConcatOp([twice, graph.add(UnaryOp("neg", twice))], 0))
    with treadle.compile(graph.module(grown), threads=1) as model:
        np.testing.assert_array_equal(model(x)[0], np.concatenate([x, x, -x, -x]))
