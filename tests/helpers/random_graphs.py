"""Random graphs of operators, small enough for the interpreter of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import numpy as np
from xdsl.dialects.builtin import TensorType, f16, f32
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph, random
from treadle.dialects.graph import (
    AttentionOp,
    BinaryOp,
    BroadcastOp,
    CastOp,
    ConcatOp,
    ConstantOp,
    ConvOp,
    LayerNormOp,
    MatmulOp,
    PadOp,
    PoolOp,
    ReductionOp,
    ReshapeOp,
    RmsNormOp,
    SliceOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
    WhereOp,
)
from treadle.passes.graph.definition_analysis import shape_of

Step = Callable[[Random, Graph, list[SSAValue]], SSAValue | None]


def _unary(choose: Random, graph: Graph, values: list[SSAValue]) -> SSAValue:
    kind = choose.choice(["relu", "tanh", "sigmoid", "neg", "abs", "erf"])
    return graph.add(UnaryOp(kind, choose.choice(values)))


def _binary(choose: Random, graph: Graph, values: list[SSAValue]) -> SSAValue:
    x = choose.choice(values)
    partners = [v for v in values if shape_of(v) == shape_of(x)]
    channel = [shape_of(x)[1], *[1] * (len(shape_of(x)) - 2)]
    bias = graph.constant(random(*channel, seed=choose.randrange(9)))
    return graph.add(BinaryOp(choose.choice(["add", "mul", "sub", "max"]), x, choose.choice([*partners, bias])))


def _conv(choose: Random, graph: Graph, values: list[SSAValue]) -> SSAValue | None:
    x = choose.choice(values)
    shape = shape_of(x)
    if len(shape) != 4 or min(shape[2:]) < 3:
        return None
    groups = choose.choice([1, 1, 1, shape[1]])
    kernel = choose.choice([1, 3])
    channels = shape[1] if groups > 1 else choose.choice([1, 3, 5])
    weights = graph.constant(random(channels, shape[1] // groups, kernel, kernel) / kernel)
    pad, stride = choose.choice([0, kernel // 2]), choose.choice([1, 2])
    return graph.add(ConvOp(x, weights, [stride, stride], [pad] * 4, [1, 1], groups))


def _matmul(choose: Random, graph: Graph, values: list[SSAValue]) -> SSAValue:
    x = choose.choice(values)
    shape = shape_of(x)
    partners = [v for v in values if shape_of(v)[:-1] == (*shape[:-2], shape[-1]) and shape_of(v)[-1] < 40]
    weights = graph.constant(random(shape[-1], choose.choice([1, 4, 33])) / shape[-1])
    return graph.add(MatmulOp(x, choose.choice([*partners, weights])))


def _pool(choose: Random, graph: Graph, values: list[SSAValue]) -> SSAValue | None:
    x = choose.choice(values)
    if len(shape_of(x)) != 4 or min(shape_of(x)[2:]) < 2:
        return None
    kind, pad = choose.choice(["max", "avg"]), choose.choice([0, 1])
    return graph.add(PoolOp(kind, x, [2, 2], [2, 1], [pad, 0, pad, 0], [1, 1]))


def _reduction(choose: Random, graph: Graph, values: list[SSAValue]) -> SSAValue:
    x = choose.choice(values)
    rank = len(shape_of(x))
    dims = choose.choice([[rank - 1], [1], list(range(1, rank))])
    return graph.add(ReductionOp(choose.choice(["add", "max", "mean"]), x, dims, keep=True))


def _reshape(choose: Random, graph: Graph, values: list[SSAValue]) -> SSAValue:
    x = choose.choice(values)
    shape = list(shape_of(x))
    if choose.random() < 0.5:
        return graph.add(ReshapeOp(x, [shape[0], int(np.prod(shape[1:]))]))
    return graph.add(ReshapeOp(x, [*shape[:-2], shape[-1], shape[-2]]))


def _transpose(choose: Random, graph: Graph, values: list[SSAValue]) -> SSAValue:
    x = choose.choice(values)
    perm = list(range(len(shape_of(x))))
    choose.shuffle(perm)
    return graph.add(TransposeOp(x, perm))


def _concat(choose: Random, graph: Graph, values: list[SSAValue]) -> SSAValue:
    x = choose.choice(values)
    partners = [v for v in values if shape_of(v) == shape_of(x)]
    return graph.add(ConcatOp([x, choose.choice(partners)], choose.randrange(len(shape_of(x)))))


def _pad(choose: Random, graph: Graph, values: list[SSAValue]) -> SSAValue:
    x = choose.choice(values)
    rank = len(shape_of(x))
    pads = [0] * (2 * rank)
    pads[choose.randrange(2 * rank)] = 1
    mode = choose.choice(["constant", "edge"])
    return graph.add(PadOp(mode, x, graph.constant(np.float32(0.5)), pads))


def _slice(choose: Random, graph: Graph, values: list[SSAValue]) -> SSAValue:
    x = choose.choice(values)
    shape = list(shape_of(x))
    starts, sizes, steps = [0] * len(shape), list(shape), [1] * len(shape)
    d = choose.randrange(len(shape))
    if choose.random() < 0.5:
        starts[d], steps[d] = shape[d] - 1, -1
    else:
        starts[d], sizes[d] = shape[d] // 2, shape[d] - shape[d] // 2
    return graph.add(SliceOp(x, starts, sizes, steps))


def _broadcast(choose: Random, graph: Graph, values: list[SSAValue]) -> SSAValue | None:
    x = choose.choice(values)
    shape = shape_of(x)
    return graph.add(BroadcastOp(x, [2, *shape])) if len(shape) < 4 and np.prod(shape) <= LARGEST // 2 else None


def _softmax(choose: Random, graph: Graph, values: list[SSAValue]) -> SSAValue:
    x = choose.choice(values)
    return graph.add(SoftmaxOp(x, choose.randrange(len(shape_of(x)))))


def _norm(choose: Random, graph: Graph, values: list[SSAValue]) -> SSAValue:
    x = choose.choice(values)
    width = shape_of(x)[-1]
    scale, bias = (graph.constant(random(width, seed=n)) for n in range(2))
    dim = len(shape_of(x)) - 1
    if choose.random() < 0.5:
        return graph.add(RmsNormOp(x, scale, dim, 1e-2))
    return graph.add(LayerNormOp(x, scale, bias, dim, 1e-2))


def _attention(choose: Random, graph: Graph, values: list[SSAValue]) -> SSAValue:
    x = choose.choice(values)
    partners = [v for v in values if shape_of(v) == shape_of(x)]
    keys, vectors = choose.choice(partners), choose.choice(partners)
    return graph.add(AttentionOp(x, keys, vectors, scale=0.5, causal=choose.random() < 0.5))


def _projections(choose: Random, graph: Graph, values: list[SSAValue]) -> SSAValue:
    """Parallel products of one value: two, added up after a product of their own."""
    x = choose.choice(values)
    width = shape_of(x)[-1]
    a, b = (graph.add(MatmulOp(x, graph.constant(random(width, 4, seed=n) / width))) for n in range(2))
    a = graph.add(BinaryOp("add", a, graph.constant(random(4))))
    square = graph.constant(random(4, 4))
    return graph.add(BinaryOp("add", *(graph.add(MatmulOp(v, square)) for v in (a, b))))


def _select(choose: Random, graph: Graph, values: list[SSAValue]) -> SSAValue:
    x = choose.choice(values)
    other = choose.choice([v for v in values if shape_of(v) == shape_of(x)])
    positive = graph.add(BinaryOp("gt", x, graph.constant(np.float32(0.1))))
    return graph.add(WhereOp(positive, x, other))


def _rounded(choose: Random, graph: Graph, values: list[SSAValue]) -> SSAValue:
    """Of an input only: what was computed may round to either side."""
    return graph.add(CastOp(graph.add(CastOp(choose.choice(values[:2]), f16)), f32))


def _shared(choose: Random, graph: Graph, values: list[SSAValue]) -> SSAValue:
    """Two functions of the newest value, and their sum: all three may be read further on."""
    x = values[-1]
    values.append(graph.add(UnaryOp(choose.choice(["relu", "tanh"]), x)))
    values.append(graph.add(BinaryOp("mul", values[-1], choose.choice([x, values[-1]]))))
    return graph.add(BinaryOp("add", values[-1], choose.choice([x, values[-2]])))


STEPS: tuple[Step, ...] = (
    _unary, _binary, _binary, _conv, _matmul, _pool, _reduction, _reshape, _transpose, _concat, _pad, _slice,
)  # fmt: skip
WHOLE_STEPS: tuple[Step, ...] = (
    _unary, _binary, _matmul, _reduction, _reshape, _transpose, _concat, _pad, _slice,
    _broadcast, _softmax, _norm, _attention, _projections,
)  # fmt: skip
"""Steps of the graphs that take the whole road."""
SHARING_STEPS: tuple[Step, ...] = (*WHOLE_STEPS, _conv, _pool, _select, _rounded, *(_shared,) * 4)
"""Steps of the graphs whose intermediate results are read in several places."""
LARGEST = 400
"""Elements of an intermediate tensor: the interpreter is slow."""


def random_graph(seed: int, steps: Sequence[Step] = STEPS) -> tuple[Graph, list[SSAValue]]:
    """A graph of at most eight steps, and what it returns: everything that nothing reads."""
    choose = Random(seed)
    shape = choose.choice([(1, 3, 5, 6), (2, 4, 4, 4), (1, 2, 7, 3), (6, 10), (3, 4, 5)])
    graph = Graph(random(*shape), random(*shape, seed=1))
    values = [graph[0], graph[1]]
    for _ in range(8):
        added = choose.choice(steps)(choose, graph, values)
        if added is not None and np.prod(shape_of(added)) <= LARGEST:
            values.append(added)
    return graph, [v for v in values[2:] if not list(v.uses)]


def sharing_graph(seed: int) -> tuple[Graph, list[SSAValue]]:
    """As `random_graph`, but shared results are common, and some of those that are read are returned, too."""
    graph, results = random_graph(seed, SHARING_STEPS)
    choose = Random(seed)
    inner = [op.results[0] for op in graph.block.ops if op.results and op.results[0] not in results]
    computed = [value for value in inner if not isinstance(value.owner, ConstantOp)]
    chosen = [value for value in computed if choose.random() < 0.15 and np.prod(shape_of(value)) <= LARGEST]
    floats = [value for value in chosen if isinstance(value.type, TensorType) and value.type.element_type == f32]
    return graph, [*results, *floats]


__all__ = ["SHARING_STEPS", "STEPS", "WHOLE_STEPS", "random_graph", "sharing_graph"]
