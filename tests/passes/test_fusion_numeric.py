"""From graphs to fused kernels, on random graphs: the kernels compute what the graph says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, f16, f32, i32
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

import treadle
from tests.helpers.graphs import Array, Graph, name_arguments, random, run_passes
from treadle.backends.reference import evaluate_module
from treadle.backends.reference.run_module import run_module
from treadle.compiler import lower
from treadle.dialects.graph import (
    AttentionOp,
    BinaryOp,
    BroadcastOp,
    CastOp,
    ConcatOp,
    ConvOp,
    FusedOp,
    GatherOp,
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
from treadle.dialects.registry import treadle_context
from treadle.passes.graph.graph_conv_to_matmul import GraphConvToMatmulPass
from treadle.passes.graph.graph_define import GraphDefinePass
from treadle.passes.graph.graph_fuse import GraphFusePass
from treadle.passes.graph.graph_inline import GraphInlinePass
from treadle.passes.graph.properties import shape_of
from treadle.passes.legality import check_legal
from treadle.passes.loop.loop_fuse_epilogue import LoopFuseEpiloguePass
from treadle.passes.loop.loop_fuse_prologue import LoopFuseProloguePass
from treadle.passes.schedule.schedule_instantiate import ScheduleInstantiatePass
from treadle.passes.schedule.schedule_select import ScheduleSelectPass
from treadle.settings import EPSILON, Precision, Settings
from treadle.target import Target

TARGETS = ("cpu", "sm_80")


def passes_for(target: str) -> list[ModulePass]:
    """From graph operators to kernels."""
    return [
        GraphConvToMatmulPass(),
        GraphDefinePass(),
        GraphInlinePass(),
        GraphFusePass(),
        ScheduleSelectPass(target),
        ScheduleInstantiatePass(target),
        LoopFuseProloguePass(),
        LoopFuseEpiloguePass(),
    ]


def check(graph: Graph, target: str, *results: SSAValue) -> ModuleOp:
    """The module as kernels, after comparing what it computes before and after."""
    module = graph.module(*results)
    before = evaluate_module(module, graph.inputs)
    run_passes(module, passes_for(target))
    check_legal(module, "kernels", "cpu" if target == "cpu" else "cuda")
    assert not [op for op in module.walk() if isinstance(op, FusedOp)]
    for old, new in zip(before, run_module(module, graph.inputs), strict=True):
        assert (old.shape, old.dtype) == (new.shape, new.dtype)
        limit = 1e-5 * max(1.0, float(np.abs(old, dtype=np.float64).max(initial=0)))
        np.testing.assert_allclose(new, old, rtol=0, atol=limit)
    return module


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


STEPS: tuple[Step, ...] = (
    _unary, _binary, _binary, _conv, _matmul, _pool, _reduction, _reshape, _transpose, _concat, _pad, _slice,
)  # fmt: skip
WHOLE_STEPS: tuple[Step, ...] = (
    _unary, _binary, _matmul, _reduction, _reshape, _transpose, _concat, _pad, _slice,
    _broadcast, _softmax, _norm, _attention, _projections,
)  # fmt: skip
"""Steps of the graphs that take the whole road."""
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


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(20))
def test_random_graphs(seed: int, target: str):
    graph, results = random_graph(seed)
    check(graph, target, *results)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_on_the_whole_road(seed: int, target: str):
    """What the compiler makes of a graph, at the stages whose IR can be evaluated."""
    graph, results = random_graph(seed, WHOLE_STEPS)
    module = graph.module(*results)
    before = evaluate_module(module, graph.inputs)
    name_arguments(module, len(graph.inputs), len(results))
    done: str | None = None
    for stage in ("graph", "define", "fuse", "kernels"):
        lower(treadle_context(), module, Target.parse(target), after=done, to=stage)
        done = stage
        evaluated = (run_module if stage == "kernels" else evaluate_module)(module, graph.inputs)
        for old, new in zip(before, evaluated, strict=True):
            limit = 1e-5 * max(1.0, float(np.abs(old, dtype=np.float64).max(initial=0)))
            np.testing.assert_allclose(new, old, rtol=0, atol=limit, err_msg=f"after stage {stage}")


@pytest.mark.parametrize("precision", ["f16", "bf16"])
@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_of_a_lower_precision(seed: int, precision: Precision):
    """Kernels compute what the narrow graph says, but for the order in which sums are rounded."""
    graph, results = random_graph(200 + seed, WHOLE_STEPS)
    module = graph.module(*results)
    name_arguments(module, len(graph.inputs), len(results))
    target, settings = Target.parse("cpu"), Settings(precision)
    lower(treadle_context(), module, target, to="graph", settings=settings)
    before = evaluate_module(module, graph.inputs)
    lower(treadle_context(), module, target, after="graph", to="kernels", settings=settings)
    for old, new in zip(before, run_module(module, graph.inputs), strict=True):
        limit = 4 * EPSILON[precision] * max(1.0, float(np.abs(old, dtype=np.float64).max(initial=0)))
        np.testing.assert_allclose(new, old, rtol=0, atol=limit)


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_compiled_for_the_cpu(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path))
    graph, results = random_graph(100 + seed, WHOLE_STEPS)
    module = graph.module(*results)
    expected = evaluate_module(module, graph.inputs)
    name_arguments(module, len(graph.inputs), len(results))
    for old, new in zip(expected, treadle.compile(module, threads=1)(*graph.inputs), strict=True):
        limit = 1e-5 * max(1.0, float(np.abs(old, dtype=np.float64).max(initial=0)))
        np.testing.assert_allclose(new, old, rtol=0, atol=limit)


def kernel_count(module: ModuleOp) -> int:
    return sum(op.name == "loop.kernel" for op in module.walk())


@pytest.mark.parametrize("target", TARGETS)
def test_a_convolution_with_its_neighbours_is_one_kernel(target: str):
    graph = Graph(random(1, 3, 6, 7))
    weights, bias = graph.constant(random(5, 3, 3, 3)), graph.constant(random(5, 1, 1))
    y = graph.add(ConvOp(graph[0], weights, [2, 1], [1, 1, 1, 1], [1, 1], 1))
    y = graph.add(UnaryOp("relu", graph.add(BinaryOp("add", y, bias))))
    module = check(graph, target, graph.add(ReshapeOp(y, [5, 21])))
    # The filter's transpose reads a constant: the compiler folds it before this point.
    assert kernel_count(module) <= 2


@pytest.mark.parametrize("target", TARGETS)
def test_a_product_with_a_computed_square(target: str):
    """One producer feeds both operands."""
    graph = Graph(random(5, 5))
    moved = graph.add(TransposeOp(graph[0], [1, 0]))
    check(graph, target, graph.add(MatmulOp(moved, moved)))


@pytest.mark.parametrize("target", TARGETS)
def test_a_residual_is_read_in_the_epilogue(target: str):
    graph = Graph(random(9, 7), random(7, 35), random(9, 35))
    y = graph.add(BinaryOp("add", graph.add(MatmulOp(graph[0], graph[1])), graph[2]))
    y = graph.add(TransposeOp(graph.add(UnaryOp("gelu", y)), [1, 0]))
    assert kernel_count(check(graph, target, y)) == 1


def test_whole_attention_takes_slices_as_prologues_and_heads_as_epilogue():
    """Queries, keys and values are parts of one tensor; the result's heads are put side by side."""
    graph = Graph(random(5, 24), random(5, 5))
    heads: list[SSAValue] = []
    for n in range(3):
        part = graph.add(SliceOp(graph[0], [0, 8 * n], [5, 8], [1, 1]))
        heads.append(graph.add(TransposeOp(graph.add(ReshapeOp(part, [5, 2, 4])), [1, 0, 2])))
    y = graph.add(AttentionOp(*heads, mask=graph[1], scale=0.5, causal=True, guard=True))
    y = graph.add(ReshapeOp(graph.add(TransposeOp(y, [1, 0, 2])), [5, 8]))
    assert kernel_count(check(graph, "sm_80", y)) == 1


@pytest.mark.parametrize("target", TARGETS)
def test_a_padded_operand_keeps_its_padding(target: str):
    """The prologue's own predicate and the tile's are both obeyed, and their values differ."""
    graph = Graph(random(3, 5), random(7, 4))
    one = graph.constant(np.float32(1.0))
    padded = graph.add(PadOp("constant", graph[0], one, [1, 1, 1, 1]))
    y = graph.add(MatmulOp(padded, graph[1]))
    assert kernel_count(check(graph, target, y)) == 1


@pytest.mark.parametrize("target", TARGETS)
def test_integer_divisions_never_divide_by_a_placeholder(target: str):
    numbers = np.arange(1, 40, dtype=np.int32)
    graph = Graph(numbers, numbers[:13])
    divided = graph.add(BinaryOp("div", graph[0], graph.constant(np.int32(3))))
    padded = graph.add(PadOp("constant", divided, graph.constant(np.int32(1)), [2, 0]))
    short = graph.add(SliceOp(padded, [0], [13], [3]))
    y = graph.add(BinaryOp("div", graph.add(BinaryOp("mul", short, short)), graph[1]))
    check(graph, target, graph.add(CastOp(y, f32)), graph.add(CastOp(y, i32)))


@pytest.mark.parametrize("target", TARGETS)
def test_rows_chosen_by_indices_feed_a_reduction(target: str):
    ids: Array = np.array([3, -1, 0], np.int64)
    graph = Graph(random(4, 40), ids)
    rows = graph.add(GatherOp(graph[0], graph[1], 0))
    total = graph.add(ReductionOp("add", graph.add(UnaryOp("exp", rows)), [1], keep=False))
    mask = graph.add(BinaryOp("gt", total, graph.constant(np.float32(60.0))))
    half = graph.add(CastOp(graph.add(WhereOp(mask, total, graph.constant(np.float32(0.0)))), f16))
    check(graph, target, graph.add(CastOp(half, f32)))
