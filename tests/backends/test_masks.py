"""Masks by extents that are data, as compiled C and on the emulator: alone, and with neighbours fused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue

from tests.helpers.compiled import RUNNERS
from tests.helpers.graphs import Graph, random
from treadle.dialects.graph import (
    BinaryOp,
    CastOp,
    MaskOp,
    MatmulOp,
    PadOp,
    ReductionOp,
    ReshapeOp,
    SliceOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
)

Array = NDArray[Any]
ROWS, COLUMNS = 11, 37
LENGTHS = [-(2**40), -1, 0, 1, 2, 17, 31, 36, 37, 38, 2**31, 2**32 + 3, 2**63 - 1]


def spoiled(x: Array, n: int, dim: int = 1) -> Array:
    """Numbers that a mask must hide, from position `n` on."""
    hidden = np.indices(x.shape)[dim] >= n
    return np.where(hidden, np.where(np.indices(x.shape).sum(0) % 2, np.nan, np.inf), x).astype(x.dtype)


def kept(x: Array, n: int, dim: int, fill: float) -> Array:
    return np.where(np.indices(x.shape)[dim] < n, x, np.array(fill, x.dtype))


@pytest.mark.parametrize("target", RUNNERS)
def test_every_length(target: str) -> None:
    """Rows and columns, as stored and transposed, so that masks meet vectors along the mask and across."""
    x = random(ROWS, COLUMNS)
    graph = Graph(x, *(np.array(n, np.int64) for n in LENGTHS))
    across = graph.add(TransposeOp(graph[0], [1, 0]))
    results: list[SSAValue] = []
    expected: list[Array] = []
    for position, n in enumerate(LENGTHS):
        for source, value in ((graph[0], x), (across, x.T)):
            for dim in range(2):
                results.append(graph.add(MaskOp(source, graph[1 + position], dim, -0.0)))
                expected.append(kept(value, n, dim, -0.0))
    for got, want in zip(RUNNERS[target](graph.module(*results), graph.inputs), expected, strict=True):
        np.testing.assert_array_equal(got.view(np.int32), np.ascontiguousarray(want).view(np.int32))


@pytest.mark.parametrize("target", RUNNERS)
@pytest.mark.parametrize(
    "dtype", [np.bool_, np.int8, np.uint8, np.int32, np.uint64, np.int64, np.float16, ml_dtypes.bfloat16, np.float64]
)
def test_every_type(dtype: Any, target: str) -> None:
    x = (np.arange(3 * 37).reshape(3, 37) % 5 - (dtype not in (np.bool_, np.uint8, np.uint64))).astype(dtype)
    graph = Graph(x, np.array(19))
    (got,) = RUNNERS[target](graph.module(graph.add(MaskOp(graph[0], graph[1], 1, 1))), graph.inputs)
    np.testing.assert_array_equal(got, kept(x, 19, 1, 1))


def softmax(graph: Graph, x: SSAValue, n: SSAValue) -> SSAValue:
    return graph.add(SoftmaxOp(graph.add(MaskOp(x, n, 1, -np.inf)), 1))


def softmax_value(x: Array, n: int) -> Array:
    weights = np.exp(x[:, :n] - x[:, :n].max(1, keepdims=True))
    return np.pad(weights / weights.sum(1, keepdims=True), [(0, 0), (0, COLUMNS - n)])


def folds(kind: str, fill: float) -> Callable[[Graph, SSAValue, SSAValue], SSAValue]:
    return lambda graph, x, n: graph.add(ReductionOp(kind, graph.add(MaskOp(x, n, 1, fill)), [1], False))


def product(graph: Graph, x: SSAValue, n: SSAValue) -> SSAValue:
    """Both operands of a product masked along what it sums over."""
    other = graph.add(TransposeOp(x, [1, 0]))
    return graph.add(MatmulOp(graph.add(MaskOp(x, n, 1, 0.0)), graph.add(MaskOp(other, n, 0, 0.0))))


def epilogue(graph: Graph, x: SSAValue, n: SSAValue) -> SSAValue:
    """A mask behind a product, and functions around it."""
    clean = graph.add(MaskOp(x, n, 1, 0.0))
    result = graph.add(MatmulOp(graph.add(TransposeOp(clean, [1, 0])), clean))
    masked = graph.add(MaskOp(graph.add(UnaryOp("relu", result)), n, 0, 7.0))
    return graph.add(BinaryOp("add", masked, masked))


def epilogue_value(x: Array, n: int) -> Array:
    clean = kept(x, n, 1, 0.0).astype(np.float64)
    return 2 * kept(np.maximum(clean.T @ clean, 0), n, 0, 7.0)


def moved(graph: Graph, x: SSAValue, n: SSAValue) -> SSAValue:
    """Masks between a pad, a slice and a reshape, the last along other positions than the first."""
    masked = graph.add(MaskOp(x, n, 1, 3.0))
    padded = graph.add(PadOp("constant", masked, graph.add(CastOp(n, f32)), [0, 2, 1, 0]))
    flat = graph.add(ReshapeOp(padded, [12 * 39]))
    return graph.add(SliceOp(graph.add(MaskOp(flat, n, 0, -1.0)), [5], [80], [5]))


def moved_value(x: Array, n: int) -> Array:
    padded = np.pad(kept(x, n, 1, 3.0), [(0, 1), (2, 0)], constant_values=n)
    return kept(padded.reshape(-1), n, 0, -1.0)[5:405:5]


FUSED: dict[str, tuple[Callable[[Graph, SSAValue, SSAValue], SSAValue], Callable[[Array, int], Array]]] = {
    "softmax": (softmax, softmax_value),
    "sum": (folds("add", -0.0), lambda x, n: x[:, :n].sum(1)),
    "maximum": (folds("max", -np.inf), lambda x, n: x[:, :n].max(1)),
    "product": (product, lambda x, n: x[:, :n] @ x[:, :n].T),
    "epilogue": (epilogue, epilogue_value),
    "moved": (moved, moved_value),
}


@pytest.mark.parametrize("target", RUNNERS)
@pytest.mark.parametrize("name", FUSED)
def test_nothing_beyond_the_extent_comes_through(name: str, target: str) -> None:
    make, mean = FUSED[name]
    lengths, x = [1, 2, 17, 36, 37], random(ROWS, COLUMNS)
    graph = Graph(*(spoiled(x, n) for n in lengths), *(np.array(n) for n in lengths))
    results = [make(graph, graph[i], graph[len(lengths) + i]) for i in range(len(lengths))]
    for n, got in zip(lengths, RUNNERS[target](graph.module(*results), graph.inputs), strict=True):
        np.testing.assert_allclose(got, mean(x, n), rtol=0, atol=2e-5)
