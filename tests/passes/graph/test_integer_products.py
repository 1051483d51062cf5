"""`MatMul` of integers: what `treadle check` calls supported is scheduled on both targets."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from tests.frontends.onnx.models import model, node
from tests.helpers.compiled import RUNNERS
from tests.helpers.graphs import Graph
from treadle.dialects.graph import MatmulOp
from treadle.frontends.onnx import check_model, import_model

SHAPES = [
    ((5, 7), (7, 9)),
    ((2, 3, 4, 5), (2, 3, 5, 6)),
    ((17, 64), (64, 40)),
    ((1, 300), (300, 1)),
    ((3, 4, 5), (5, 6)),
]


@pytest.mark.parametrize("runner", RUNNERS)
def test_products_wrap(runner: str) -> None:
    rng = np.random.default_rng(0)
    inputs = [
        rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
        for dtype in (np.int8, np.int16, np.int32, np.int64)
        for pair in SHAPES
        for shape in pair
    ]
    graph = Graph(*inputs)
    products = [graph.add(MatmulOp(graph[n], graph[n + 1])) for n in range(0, len(inputs), 2)]
    weights = rng.integers(-9, 9, (64, 40)).astype(np.int32)
    left = next(n for n, x in enumerate(inputs) if x.dtype == np.int32 and x.shape == (17, 64))
    packed = graph.add(MatmulOp(graph[left], graph.constant(weights)))
    results = RUNNERS[runner](graph.module(*products, packed), inputs)
    with np.errstate(all="ignore"):
        expected = [np.matmul(a, b) for a, b in zip(inputs[::2], inputs[1::2], strict=True)]
        expected.append(inputs[left] @ weights)
    for actual, right in zip(results, expected, strict=True):
        assert actual.dtype == right.dtype
        np.testing.assert_array_equal(actual, right)


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_node_that_is_supported_runs(runner: str) -> None:
    proto = model(
        [node("MatMul", "a b", "m"), node("Add", "m m", "y")], {"a": [3, 4], "b": [4, 5]}, element=TensorProto.INT64
    )
    data = proto.SerializeToString()
    assert all(report.supported for report in check_model(data))
    a, b = np.arange(12).reshape(3, 4), np.arange(20).reshape(4, 5) - 7
    (y,) = RUNNERS[runner](import_model(data), [a, b])
    np.testing.assert_array_equal(y, 2 * (a @ b))
