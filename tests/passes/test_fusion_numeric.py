"""From graphs to fused kernels, on random graphs: the kernels compute what the graph says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, f16, f32, i32
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

import treadle
from tests.helpers.arena_overlaps import overlaps
from tests.helpers.graphs import Array, Graph, name_arguments, random, run_passes
from tests.helpers.program_batch import C, CompiledProgram, PrintedProgram, ProgramBatch
from tests.helpers.random_graphs import WHOLE_STEPS, random_graph, sharing_graph
from tests.helpers.sampling import every
from treadle.backends.cuda.emulator import CHECKS
from treadle.backends.reference import evaluate_module
from treadle.backends.reference.run_module import run_module
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import (
    AttentionOp,
    BinaryOp,
    CastOp,
    ConvOp,
    FusedOp,
    GatherOp,
    MatmulOp,
    PadOp,
    ReductionOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    UnaryOp,
    WhereOp,
)
from treadle.dialects.registry import treadle_context
from treadle.passes.graph.fusion_group import is_anchor
from treadle.passes.graph.graph_conv_to_matmul import GraphConvToMatmulPass
from treadle.passes.graph.graph_define import GraphDefinePass
from treadle.passes.graph.graph_fuse import GraphFusePass
from treadle.passes.graph.graph_inline import GraphInlinePass
from treadle.passes.instruments import check_legal
from treadle.passes.loop.loop_fuse_epilogue import LoopFuseEpiloguePass
from treadle.passes.loop.loop_fuse_prologue import LoopFuseProloguePass
from treadle.passes.schedule.schedule_instantiate import ScheduleInstantiatePass
from treadle.passes.schedule.schedule_select import ScheduleSelectPass
from treadle.target import Target
from treadle.target.options import EPSILON, CompileOptions, Precision

TARGETS = ("cpu", "sm_80")
Draw = Callable[[int], tuple[Graph, list[SSAValue]]]


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


def assert_close(actual: Sequence[Array], expected: Sequence[Array], at: str = "") -> None:
    """Equal shapes and types, and values up to 1e-5 of the largest."""
    for new, old in zip(actual, expected, strict=True):
        assert (old.shape, old.dtype) == (new.shape, new.dtype)
        limit = 1e-5 * max(1.0, float(np.abs(old, dtype=np.float64).max(initial=0)))
        np.testing.assert_allclose(new, old, rtol=0, atol=limit, err_msg=at)


def check(graph: Graph, target: str, *results: SSAValue) -> ModuleOp:
    """The module as kernels, after comparing what it computes before and after."""
    module = graph.module(*results)
    before = evaluate_module(module, graph.inputs)
    run_passes(module, passes_for(target))
    check_legal(module, "kernels", "cpu" if target == "cpu" else "cuda")
    assert not [op for op in module.walk() if isinstance(op, FusedOp)]
    assert_close(run_module(module, graph.inputs), before)
    return module


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", every(2, range(20)))
def test_random_graphs(seed: int, target: str):
    graph, results = random_graph(seed)
    check(graph, target, *results)


def check_stages(graph: Graph, results: Sequence[SSAValue], target: str) -> ModuleOp:
    """What the compiler makes of a graph, compared at the stages whose IR can be evaluated; the planned module."""
    module = graph.module(*results)
    before = evaluate_module(module, graph.inputs)
    name_arguments(module, len(graph.inputs), len(results))
    done: str | None = None
    for stage in ("graph", "define", "fuse", "kernels", "plan"):
        lower(treadle_context(), module, Target.parse(target), after=done, to=stage)
        done = stage
        evaluated = (run_module if stage in ("kernels", "plan") else evaluate_module)(module, graph.inputs)
        assert_close(evaluated, before, f"after stage {stage}")
    assert not overlaps(module)
    return module


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", every(2, range(12)))
def test_random_graphs_on_the_whole_road(seed: int, target: str):
    check_stages(*random_graph(seed, WHOLE_STEPS), target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", every(2, range(16)))
def test_graphs_of_shared_results_on_the_whole_road(seed: int, target: str):
    check_stages(*sharing_graph(seed), target)


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_of_several_results_come_up(target: str):
    """The graphs above are of use: many of their kernels store more than one tensor, of anchors of every kind."""
    several: set[bool] = set()
    for seed in range(40):
        graph, results = sharing_graph(seed)
        module = graph.module(*results)
        lower(treadle_context(), module, Target.parse(target), to="fuse")
        groups = [op for op in module.walk() if isinstance(op, FusedOp) and len(op.outputs) > 1]
        several.update(is_anchor(op.body.block.ops.first) for op in groups if op.body.block.ops.first)
        if len(several) == 2:
            break
    assert several == {False, True}


@pytest.mark.parametrize("precision", ["f16", "bf16"])
@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_of_a_lower_precision(seed: int, precision: Precision):
    """Kernels compute what the narrow graph says, but for the order in which sums are rounded."""
    graph, results = random_graph(200 + seed, WHOLE_STEPS)
    module = graph.module(*results)
    name_arguments(module, len(graph.inputs), len(results))
    target, options = Target.parse("cpu"), CompileOptions(precision)
    lower(treadle_context(), module, target, to="graph", options=options)
    before = evaluate_module(module, graph.inputs)
    lower(treadle_context(), module, target, after="graph", to="kernels", options=options)
    for old, new in zip(before, run_module(module, graph.inputs), strict=True):
        limit = 4 * EPSILON[precision] * max(1.0, float(np.abs(old, dtype=np.float64).max(initial=0)))
        np.testing.assert_allclose(new, old, rtol=0, atol=limit)


DRAWS: Mapping[str, Draw] = {"chains": lambda seed: random_graph(seed, WHOLE_STEPS), "sharing": sharing_graph}
ON_CPU = [(draw, seed) for seed in range(100, 106) for draw in DRAWS]
QUICK = 6
"""Of those, the first ones are compiled in every run, together."""


def drawn(draw: str, seed: int) -> tuple[ModuleOp, Sequence[Array]]:
    """A graph as a module whose arguments have names, and its inputs."""
    graph, results = DRAWS[draw](seed)
    module = graph.module(*results)
    name_arguments(module, len(graph.inputs), len(results))
    return module, graph.inputs


@pytest.fixture(scope="module")
def on_cpu() -> ProgramBatch[PrintedProgram, CompiledProgram]:
    return ProgramBatch({f"{draw}.{seed}": lambda d=draw, s=seed: drawn(d, s)[0] for draw, seed in ON_CPU}, C, QUICK)


@pytest.mark.parametrize(
    ("draw", "seed"), [*ON_CPU[:QUICK], *(pytest.param(*each, marks=pytest.mark.slow) for each in ON_CPU[QUICK:])]
)
def test_random_graphs_compiled_for_the_cpu(
    draw: str, seed: int, on_cpu: ProgramBatch[PrintedProgram, CompiledProgram]
) -> None:
    module, inputs = drawn(draw, seed)
    assert_close(on_cpu[f"{draw}.{seed}"].run(inputs), evaluate_module(module, inputs))


@pytest.mark.parametrize("seed", [100, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(101, 109))])
def test_graphs_of_shared_results_on_the_emulator(seed: int) -> None:
    """With every check."""
    module, inputs = drawn("sharing", seed)
    expected = evaluate_module(module, inputs)
    model = treadle.compile(module, target="sm_80", device="emulator", checks=list(CHECKS))
    assert_close(model(*inputs), expected)
    assert not [finding for report in model.reports for finding in report.findings]


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
