"""Small anchors by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from xdsl.ir import Operation

from tests.helpers.graphs import Graph
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp, MatmulOp, ReductionOp, SoftmaxOp, UnaryOp
from treadle.dialects.registry import treadle_context
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.template import Anchor
from treadle.target import Target

ANCHORS: Mapping[str, Callable[[Graph], Operation]] = {
    "matmul": lambda graph: MatmulOp(graph[0], graph[1]),
    "relu": lambda graph: UnaryOp("relu", graph[0]),
    "softmax": lambda graph: SoftmaxOp(graph[0], 1),
    "sum": lambda graph: ReductionOp("add", graph[0], [1], keep=False),
}


def anchor(name: str, rows: int = 24, columns: int = 40) -> Anchor:
    """The anchor of one operator on `rows` x `columns` (and its transpose, for a product), scheduled for the CPU."""
    graph = Graph(np.zeros((rows, columns), np.float32), np.zeros((columns, rows), np.float32))
    module = graph.module(graph.add(ANCHORS[name](graph)))
    lower(treadle_context(), module, Target.parse("cpu"), after="graph", to="fuse")
    (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    return anchor_of(fused)


__all__ = ["ANCHORS", "anchor"]
