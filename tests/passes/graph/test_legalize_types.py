"""graph-legalize-types: what a product's matrix depends on is found out without looking at all of a model."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import bf16

from tests.helpers.graphs import Graph, random
from treadle.dialects.graph import BinaryOp, CastOp, MatmulOp
from treadle.dialects.registry import treadle_context
from treadle.passes.graph.graph_legalize_types import GraphLegalizeTypesPass


def test_a_product_of_values_behind_many_residuals() -> None:
    """Twice as many paths lead to an input with each: none but the first is followed, and not to its end."""
    graph = Graph(random(4, 4))
    value = graph[0]
    for _ in range(2000):
        value = graph.add(BinaryOp("add", value, value))
    narrow = graph.add(CastOp(value, bf16))
    module = graph.module(graph.add(MatmulOp(narrow, narrow)))
    GraphLegalizeTypesPass().apply(treadle_context(), module)
    (product,) = [op for op in module.walk() if isinstance(op, MatmulOp)]
    assert product.precision is None


def test_constants_behind_many_operators_are_not_looked_for() -> None:
    graph = Graph(random(4, 4))
    value = graph.add(CastOp(graph.constant(np.ones((4, 4), np.uint8)), bf16))
    for _ in range(20):
        value = graph.add(BinaryOp("add", value, value))
    module = graph.module(graph.add(MatmulOp(graph.add(CastOp(graph[0], bf16)), value)))
    GraphLegalizeTypesPass().apply(treadle_context(), module)
    (product,) = [op for op in module.walk() if isinstance(op, MatmulOp)]
    assert product.precision is None
