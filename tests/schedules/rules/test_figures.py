"""MetaSchedule's figures (NeurIPS 2022) as rules and programs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from tests.helpers.graphs import Graph
from tests.schedules.rules.scheduled import CPU, GPU, anchor, groups_of, take
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import MatmulOp, UnaryOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import UseAttr
from treadle.errors import TreadleError
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.nest.nest import Nest
from treadle.schedules.nest.replay import nest_of
from treadle.schedules.nest.workload import workload_of
from treadle.schedules.rules import Draft, Rule, programs
from treadle.schedules.rules.programs import drafts
from treadle.schedules.rules.staging import staged
from treadle.schedules.rules.templates import templates, tensor_cores
from treadle.schedules.rules.tiling import fused, tensorized, tiled, unrolled, vectorised
from treadle.schedules.search.programs import replay
from treadle.schedules.template import LimitError


def dense_relu(rows: int = 16, terms: int = 32, columns: int = 64) -> ModuleOp:
    graph = Graph(np.zeros((rows, terms), np.float32), np.zeros((terms, columns), np.float32))
    return graph.module(graph.add(UnaryOp("relu", graph.add(MatmulOp(graph[0], graph[1])))))


def two_levels(places: str) -> Rule:
    """Figure 3: both axes of Dense are tiled, then it is decided where relu is computed.

    places: where the reduction stands, and so relu behind it: `in` each tile, or at the `end` of each element
    """

    def rule(draft: Draft) -> Sequence[Draft]:
        draft, ((i, j), (k,)) = draft.axes()
        draft, (ti, tj) = draft.sample_tile("tile", 2, [2, 4, 8], (8, 32), of=(i, j))
        draft, (i0, i1) = draft.split(i, [ti])
        draft, (j0, j1) = draft.split(j, [tj])
        if places == "end":
            return [draft.arrange([("block", [i0, j0]), ("repeat", [i1, j1]), ("loop", [k])])]
        return [draft.arrange([("block", [i0, j0]), ("loop", [k]), ("repeat", [i1, j1])])]

    return rule


def loops_around(op: Operation) -> list[Operation]:
    """Outermost first."""
    found: list[Operation] = []
    parent = op.parent_op()
    while parent is not None:
        found = [parent, *found] if parent.name == "scf.for" else found
        parent = parent.parent_op()
    return found


@pytest.mark.parametrize(("places", "beside_the_reduction"), [("end", True), ("in", False)])
def test_figure_3_relu_lands_where_the_reduction_ends(places: str, beside_the_reduction: bool) -> None:
    module = dense_relu()
    (group,) = groups_of(module, CPU)
    (draft,) = drafts(anchor_of(group), CPU, [two_levels(places)], "0")
    take(module, group, draft, "p")
    lower(treadle_context(), module, CPU, after="schedule", to="loops")
    (relu,) = [op for op in module.walk() if op.name == "arith.maximumf"]
    (product,) = [op for op in module.walk() if op.name == "arith.mulf"]
    around, reduction = loops_around(relu), [loop for loop in loops_around(product) if loop not in loops_around(relu)]
    assert len(around) == 2, "the tile of both axes"
    assert (reduction[0].parent_op() is around[-1]) == beside_the_reduction


@pytest.mark.parametrize("word", ["SSRSR", "SSRSRS", "SRS", "SRSRSRSS"])
def test_figure_4_levels_of_any_word(word: str) -> None:
    of = anchor("GMM", small=False)
    (draft,) = drafts(of, CPU, [tiled(word)], "0")
    assert draft.nest is not None
    kinds = ["S" if not group.levels[0].axis.is_reduction else "R" for group in draft.nest.groups]
    assert "".join(kinds) == word
    assert [len(group.levels) for group in draft.nest.groups] == [2 if kind == "S" else 1 for kind in word]
    roles = [group.role for group in draft.nest.groups]
    assert roles == ["block", *("repeat" if kind == "S" else "loop" for kind in word[1:])]


def test_figure_4_on_a_gpu_has_threads_in_front_of_the_reduction() -> None:
    of = anchor("GMM", GPU, small=False)
    (draft,) = drafts(of, GPU, [tiled("SSSRRSRS")], "0")
    assert draft.nest is not None
    roles = [group.role for group in draft.nest.groups]
    assert roles == ["block", "repeat", "thread", "loop", "loop", "repeat", "loop", "repeat"]
    assert draft.nest.threads % 32 == 0


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("STR", "no tiling is called 'STR'; accepted: a word of S and R that begins with S"),
        ("RSS", "no tiling is called 'RSS'"),
        ("", "no tiling is called ''"),
    ],
)
def test_what_is_no_word(word: str, says: str) -> None:
    with pytest.raises(TreadleError) as caught:
        tiled(word)
    assert says in str(caught.value)


def test_a_gpu_needs_two_spatial_levels_first() -> None:
    with pytest.raises(TreadleError, match="SRRS has 1 S before the first loop; accepted: two for a GPU"):
        programs(anchor("GMM", GPU), GPU, [tiled("SRRS")])


def test_figure_5_composed_modules_multiply() -> None:
    """A template; a tiling, with its operands staged in two ways or not; each of these is vectorised and unrolled."""
    of, rules = anchor("GMM"), [templates, fused, tiled("SSRSRS"), staged("register", alone=True), vectorised, unrolled]
    counts = [len(programs(of, CPU, rules[: n + 1])) for n in range(len(rules))]
    assert counts == [1, 1, 2, 4, 4, 4]
    names = [program.sym_name.data for program in programs(of, CPU, rules)]
    assert len(set(names)) == len(names) and "matmul_cpu" in names


def test_programs_that_differ_in_values_only_are_one() -> None:
    of = anchor("GMM")
    assert len(programs(of, CPU, [tiled("SRS")])) == 1
    assert len({str(draft) for seed in "abc" for draft in drafts(of, CPU, [tiled("SRS")], seed)}) > 1


def python_decides(draft: Draft) -> Sequence[Draft]:
    """Figure 6: a loop and a branch of Python, on a value that was sampled."""
    draft, ((i, j), (k,)) = draft.axes()
    draft, count = draft.sample("levels", [1, 2])
    factors = [4] * (2 if draft.value(count) == 2 else 1)
    draft, levels = draft.split(i, factors)
    return [draft.arrange([("block", [levels[0], j]), *(("repeat", [level]) for level in levels[1:]), ("loop", [k])])]


def test_figure_6_two_runs_of_one_program_give_two_traces() -> None:
    of = anchor("GMM")
    runs = [draft for seed in "0123" for draft in drafts(of, CPU, [python_decides], seed)]
    traces = {len(draft.instructions[2].results): draft for draft in runs}
    assert sorted(traces) == [2, 3]
    for draft in traces.values():
        assert not any(op.regions for op in draft.instructions), "no control flow is left"
        program = draft.program("p", with_decisions=True)
        assert nest_of(program, draft.decisions, workload_of(of), CPU) == draft.nest
    assert len(programs(of, CPU, [python_decides])) == 2


def free(draft: Draft) -> Sequence[Draft]:
    """Two sides of a register tile, sampled apart, so that the largest together exceed the limit."""
    draft, ((i, j), (k,)) = draft.axes()
    draft, rows = draft.sample("rows", [4, 64])
    draft, columns = draft.sample("columns", [16, 64])
    draft, (i0, i1) = draft.split(i, [rows])
    draft, (j0, j1) = draft.split(j, [columns])
    return [draft.arrange([("block", [i0, j0]), ("loop", [k]), ("repeat", [i1, j1])])]


def test_figure_7_a_mutation_beyond_a_limit_is_rejected_with_the_limit() -> None:
    of = anchor("GMM")
    (program,) = programs(of, CPU, [free])
    workload = workload_of(of)
    assert nest_of(program, {"rows": 4, "columns": 64}, workload, CPU).accumulators == 256
    with pytest.raises(LimitError) as caught:
        nest_of(program, {"rows": 64, "columns": 64}, workload, CPU)
    assert (caught.value.used, caught.value.allowed) == (4096, 1024)
    assert "accumulators" in str(caught.value)
    (tile,) = programs(of, CPU, [tiled("SRS")])
    with pytest.raises(TreadleError, match="sample 'registers' takes"):
        nest_of(tile, {"registers": (16, 96)}, workload, CPU)


def half(rows: int, terms: int, columns: int) -> ModuleOp:
    graph = Graph(np.zeros((rows, terms), np.float16), np.zeros((terms, columns), np.float16))
    return graph.module(graph.add(UnaryOp("gelu", graph.add(MatmulOp(graph[0], graph[1])))))


def test_appendix_a3_tensor_cores_are_one_instruction() -> None:
    """Its dense layer of BERT-large: 1024 x 1024 x 4096. What A.3 takes 70 instructions for is the template's."""
    (group,) = groups_of(half(1024, 1024, 4096), GPU)
    found = programs(anchor_of(group), GPU, [tensor_cores, tiled("SSSRRSRS")])
    by_name = {program.sym_name.data: program for program in found}
    assert len(by_name) == 2 and "matmul_mma" in by_name, "the generic space stays beside it (figure 10)"
    # Its decisions: rows 8 x (1, 2, 2, 2) x 16, columns 1 x (32, 4, 2, 1) x 16, terms 32 x (2, 1) x 16, of which the
    # first are blocks or steps, and 2 x 4 of the others warps.
    decisions = {"block": (128, 128), "warps": (2, 4), "block_k": 32, "stages": 2, "group": 1}
    replayed = replay(by_name["matmul_mma"], decisions, anchor_of(group), GPU)
    assert isinstance(replayed, UseAttr) and replayed.knobs() == {**decisions, "fragments": 1, "split_k": 1}


def test_appendix_a3_tiles_on_tensor_cores() -> None:
    """Its decisions again, as levels around a product of a warp: sample_perfect_tile of five levels of rows and columns
    and four of terms, the last of which are 16; copies to shared memory at the outermost loop, by vectors of 8."""
    (group,) = groups_of(half(1024, 1024, 4096), GPU)
    of, rules = anchor_of(group), [tensorized("SSRRSRS"), staged("shared", ahead=True), unrolled]
    program = next(p for p in programs(of, GPU, rules) if "async" in str(p))
    decisions = {
        "threads": (2, 4), "tile": (2, 2), "registers": (2, 1), "depth 0": (2,), "depth 1": (1,), "vector": 8,
        "buffers": 2, "unroll": 16,
    }  # fmt: skip
    nest = replay(program, decisions, of, GPU)
    assert isinstance(nest, Nest) and nest.product is not None
    trips = [[level.trips for level in nest.levels if level.axis == axis] for axis in nest.axes]
    assert trips == [[8, 2, 2, 2, 16], [32, 4, 2, 1, 16], [32, 2, 1, 16]]
    assert (nest.grid, nest.threads, nest.accumulators) == (8 * 32, 32 * 2 * 4, 128 * 128 // 256)


def test_appendix_a3_tiles_as_levels() -> None:
    """Its sample_perfect_tile: five levels of each spatial axis, three of the reduction."""
    (group,) = groups_of(half(1024, 1024, 4096), GPU)
    of = anchor_of(group)
    (draft,) = drafts(of, GPU, [tiled("SSSRRSRS")], "0")
    text = str(draft.program("a3"))
    for name, size in (("virtual", 2), ("threads", 2), ("tile", 2), ("registers", 2), ("depth 0", 1), ("depth 1", 1)):
        assert f'schedule.sample_tile "{name}" {size} from' in text
    assert "arrange block(%i0, %j0) repeat(%i1, %j1) thread(%i2, %j2) loop(%k0) loop(%k1) repeat(%i3, %j3)" in text
