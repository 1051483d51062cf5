"""Small graphs whose kernels show what is hard about a GPU: overhanging tiles, barriers, prologues, batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph, random
from treadle.dialects.graph import (
    BinaryOp,
    ConcatOp,
    ConvOp,
    MatmulOp,
    PoolOp,
    ReductionOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
)


@dataclass(frozen=True)
class Case:
    """A graph of one input: its shape in a test that runs slowly, and where it is compiled code."""

    build: Callable[[Graph], SSAValue]
    small: tuple[int, ...]
    large: tuple[int, ...]


def product(graph: Graph) -> SSAValue:
    """Tiles that overhang on every side, more steps than one, an epilogue."""
    terms = graph[0].type.get_shape()[1]  # pyright: ignore[reportAttributeAccessIssue]
    scores = graph.add(MatmulOp(graph[0], graph.constant(random(terms, 2 * terms + 1))))
    return graph.add(UnaryOp("relu", graph.add(BinaryOp("add", scores, graph.constant(random(2 * terms + 1))))))


def slices(graph: Graph) -> SSAValue:
    """Terms that several blocks share out, if there are many of them; an epilogue behind their sum."""
    terms = graph[0].type.get_shape()[1]  # pyright: ignore[reportAttributeAccessIssue]
    scores = graph.add(MatmulOp(graph[0], graph.constant(random(terms, 26))))
    return graph.add(UnaryOp("tanh", graph.add(BinaryOp("mul", scores, graph.constant(np.float32(1 / terms))))))


def convolution(graph: Graph) -> SSAValue:
    """im2col as a prologue whose border is a predicate."""
    filters = graph.constant(random(5, 3, 3, 3))
    return graph.add(UnaryOp("tanh", graph.add(ConvOp(graph[0], filters, [2, 2], [1] * 4, [1, 1], 1))))


def depthwise(graph: Graph) -> SSAValue:
    """Definitions with small reductions inside, a thread an element."""
    filtered = graph.add(ConvOp(graph[0], graph.constant(random(3, 1, 3, 3)), [1, 1], [1] * 4, [1, 1], 3))
    return graph.add(PoolOp("max", filtered, [2, 2], [2, 2], [0] * 4, [1, 1]))


def attention(graph: Graph) -> SSAValue:
    """A transposed right operand, a softmax as reductions, a batch."""
    keys = graph.add(TransposeOp(graph[0], [0, 2, 1]))
    weights = graph.add(SoftmaxOp(graph.add(MatmulOp(graph[0], keys)), 2))
    return graph.add(MatmulOp(weights, graph[0]))


def squeeze(graph: Graph) -> SSAValue:
    """A mean over rows, and a product of one row that whole blocks reduce."""
    mean = graph.add(ReductionOp("mean", graph[0], [0], keep=True))
    return graph.add(UnaryOp("sigmoid", graph.add(MatmulOp(mean, graph.constant(random(70, 21))))))


def joined(graph: Graph) -> SSAValue:
    """Predicates that choose between inputs."""
    return graph.add(ConcatOp([graph[0], graph.add(UnaryOp("exp", graph[0]))], 1))


CASES = {
    "product": Case(product, (9, 11), (67, 37)),
    "slices": Case(slices, (5, 40), (37, 1031)),
    "convolution": Case(convolution, (1, 3, 5, 7), (1, 3, 19, 23)),
    "depthwise": Case(depthwise, (1, 3, 4, 6), (1, 3, 14, 10)),
    "attention": Case(attention, (2, 5, 3), (2, 33, 20)),
    "squeeze": Case(squeeze, (33, 70), (45, 70)),
    "joined": Case(joined, (2, 5, 3), (3, 5, 7)),
}
