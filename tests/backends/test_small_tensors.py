"""Tensors so small that every index is a constant, as compiled C and on the emulator, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers.compiled import RUNNERS
from tests.helpers.graphs import Graph
from treadle.dialects.graph import ConcatOp, ConvOp, PadOp


@pytest.mark.parametrize("target", RUNNERS)
def test_constant_addresses_before_a_buffer(target: str) -> None:
    """What a tile does not take lies before the first element: the printer adds up its constant indices."""
    x, y, w = (np.arange(1, n + 1, dtype=np.float32) for n in (2, 3, 3))
    signal, kernel = x.reshape(1, 1, 2), w.reshape(1, 1, 3)
    graph = Graph(x, y, signal, kernel)
    zero = graph.constant(np.zeros((), np.float32))
    results: list[Any] = [
        graph.add(ConcatOp([graph[0], graph[1], graph[0], graph[0]], 0)),
        *(graph.add(PadOp("constant", graph[0], zero, [before, after])) for before in (1, 2, 3) for after in (0, 2)),
        graph.add(ConvOp(graph[2], graph[3], [1], [2, 2], [1], 1)),
    ]
    expected = [np.concatenate([x, y, x, x])]
    expected += [np.pad(x, (before, after)) for before in (1, 2, 3) for after in (0, 2)]
    expected.append(np.convolve(x, w[::-1]).reshape(1, 1, 4))
    for actual, wanted in zip(RUNNERS[target](graph.module(*results), graph.inputs), expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)
