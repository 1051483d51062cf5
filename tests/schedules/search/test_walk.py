"""Gensor's walk: its states and actions, its end, and what it finds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from random import Random

import numpy as np
import pytest
from xdsl.ir import Operation

from tests.helpers.graphs import Graph
from tests.schedules.nest.test_nest import program
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import ConvOp, FusedOp, MatmulOp, PoolOp
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import ProgramOp, UseAttr
from treadle.passes.schedule.instance import anchor_of
from treadle.passes.schedule.schedule_select import default_schedule
from treadle.schedules.nest.nest import Nest
from treadle.schedules.rules.programs import programs
from treadle.schedules.rules.tiling import default_rules
from treadle.schedules.search.candidate import Candidate, Measured, Task
from treadle.schedules.search.predict import Forecast, cpu_seconds
from treadle.schedules.search.strategy import Explored
from treadle.schedules.search.walk import Step, Walk, WalkSettings, actions, etir, levels_of
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.work.lowered import count_work
from treadle.target import Target

CPU, A100 = Target.parse("cpu"), Target.parse("sm_80")
Shape = tuple[int, ...]


def fused_of(operator: type[Operation] | str, shapes: Sequence[Shape]) -> FusedOp:
    """The group of an operator after stage `fuse`."""
    graph = Graph(*(np.broadcast_to(np.float32(0), shape) for shape in shapes))
    if operator is ConvOp:
        op: Operation = ConvOp(graph[0], graph[1], [1, 1], [1] * 4, [1, 1], 1)
    elif operator is PoolOp:
        op = PoolOp("avg", graph[0], [2, 2], [2, 2], [0] * 4, [1, 1])
    else:
        op = MatmulOp(graph[0], graph[1])
    module = graph.module(graph.add(op))
    lower(treadle_context(), module, CPU, after="graph", to="fuse")
    return [each for each in module.walk() if isinstance(each, FusedOp)][-1]


def product(m: int, k: int, n: int) -> FusedOp:
    return fused_of(MatmulOp, [(m, k), (k, n)])


def tilings(fused: FusedOp) -> Task:
    """The tiling programs of a group."""
    anchor = anchor_of(fused)
    found = (each for each in programs(anchor, CPU, default_rules(CPU)) if each.template is None)
    return Task(anchor, CPU, tuple(found))


def walk(task: Task, seed: str = "0", settings: WalkSettings | None = None) -> Walk:
    return Walk(Explored(task), Forecast(task), seed, settings)


THREADS = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%ri, %rj = schedule.sample_tile "registers" 2 from [1, 2, 4, 8] product 1 to 64
%ti, %tj = schedule.sample_tile "threads" 2 from [1, 2, 4, 8, 16] product 32 to 256 step 32
%vi, %vj = schedule.sample_tile "virtual" 2 from [1, 2, 4] product 1 to 8
%i0, %i1, %i2, %i3 = schedule.split %i by (%vi, %ti, %ri)
%j0, %j1, %j2, %j3 = schedule.split %j by (%vj, %tj, %rj)
%dk = schedule.sample_tile "depth" 1 from [4, 8, 16] product 1 to 32
%k0, %k1 = schedule.split %k by (%dk)
schedule.arrange block(%i0, %j0) repeat(%i1, %j1) thread(%i2, %j2) loop(%k0) loop(%k1) repeat(%i3, %j3)
"""
TAKEN = Candidate("p", {"registers": (4, 8), "threads": (8, 16), "virtual": (1, 2), "depth": (8,)})


def threads() -> tuple[Task, ProgramOp]:
    scheme = program(THREADS, "cuda")
    return Task(anchor_of(product(512, 512, 512)), A100, (scheme,)), scheme


def nest_of(task: Task, candidate: Candidate) -> Nest:
    nest = task.replay(candidate)
    assert isinstance(nest, Nest)
    return nest


def test_tiles_of_each_level_are_a_view_of_the_nest() -> None:
    """Blocks of 32 x 256 in steps of 8: virtual threads, threads, depth, registers."""
    task, scheme = threads()
    levels = levels_of(scheme)
    assert [each.labels for each in levels] == [("virtual",), ("threads",), ("depth",), ("registers",)]
    view = etir(nest_of(task, TAKEN), levels)
    assert view.tiles == ((32, 256, 512), (32, 128, 512), (4, 8, 8), (4, 8, 1))
    assert view.virtual == (1, 2, 1)
    # A block reads 32 rows of A and 2 x 128 columns of B at each step of 8 terms.
    assert view.footprints[:2] == (4 * (32 + 256) * 8,) * 2
    assert view.traffic[0] == 4 * ((32 + 256) * 512 + 32 * 256) * 16 * 2
    # The register tiles of a thread's 2 virtual ones read 4 of A and 2 x 8 of B, and have 64 of C, 128 x 32 times.
    assert view.footprints[-1] == 4 * (4 + 16 + 64)
    assert view.traffic[-1] == 4 * ((4 + 16) * 128 * 32 * 512 + 64 * 128 * 32)


def test_actions_of_figure_5() -> None:
    """(a) tiles grow and shrink along one dimension, (b) caching goes on to the next level, (c) virtual threads."""
    task, scheme = threads()
    levels, sampler = levels_of(scheme), task.samplers["p"]
    before = etir(nest_of(task, TAKEN), levels)

    def after(number: int) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
        """Each action of a level, with that level's tile and the virtual threads it leads to."""
        found: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
        for action in actions(scheme, sampler, TAKEN, levels, number):
            view = before if action.after is None else etir(nest_of(task, action.after), levels)
            found.append((action.kind, view.tiles[number], view.virtual))
        return found

    assert after(3) == [
        ("inverse tile", (2, 8, 1), (1, 2, 1)),
        ("tile", (8, 8, 1), (1, 2, 1)),
        ("inverse tile", (4, 4, 1), (1, 2, 1)),
    ]
    assert after(2) == [
        ("inverse tile", (4, 8, 4), (1, 2, 1)),
        ("tile", (4, 8, 16), (1, 2, 1)),
        ("cache", (4, 8, 8), (1, 2, 1)),
    ]
    assert [(kind, virtual) for kind, _, virtual in after(0)] == [
        ("virtual", (2, 2, 1)), ("virtual", (1, 1, 1)), ("virtual", (1, 4, 1)), ("cache", (1, 2, 1)),
    ]  # fmt: skip


def test_tiles_of_a_level_reach_one_another() -> None:
    """Irreducible within a level: what an action does, another one undoes."""
    task, scheme = threads()
    levels, sampler = levels_of(scheme), task.samplers["p"]
    for number in range(len(levels)):
        for action in actions(scheme, sampler, TAKEN, levels, number):
            if action.after is not None:
                back = [each.after for each in actions(scheme, sampler, action.after, levels, number)]
                assert TAKEN in back


@pytest.mark.parametrize("benefits", ["model", "paper"])
def test_a_hundred_steps_end_in_the_last_level(benefits: str) -> None:
    task = tilings(product(512, 512, 512))
    name = next(iter(task.by_name))
    settings = WalkSettings(benefits="paper" if benefits == "paper" else "model")
    walker = walk(task, settings=settings)
    steps = walker.walk(name, Random(0), walker.start(name, Random(0), "smallest"))
    levels = [step.level for step in steps]
    assert len(steps) == 100
    assert levels == sorted(levels)
    assert levels[-1] == len(levels_of(task.by_name[name])) - 1
    assert all(isinstance(task.replay(step.candidate), Nest) for step in steps)
    kept = [n for n, step in enumerate(steps) if step.is_kept]
    assert len(kept) > 5
    assert kept[-1] < 40


def default_seconds(fused: FusedOp) -> float:
    """What the model says of the schedule without a search."""
    fused.schedule = default_schedule(fused, CPU)
    module = fused.get_toplevel_object()
    lower(treadle_context(), module, CPU, after="schedule", to="loops")  # pyright: ignore[reportArgumentType]
    (kernel,) = [op for op in module.walk() if isinstance(op, FuncOp)]
    return cpu_seconds(count_work(kernel, CPU), CPU)


@pytest.mark.parametrize("extents", [(65536, 4, 1024), pytest.param((512, 512, 512), marks=pytest.mark.slow)])
def test_a_walk_beats_the_default(extents: tuple[int, int, int]) -> None:
    """The first one is M2 of the paper's table IV; `benchmarks/strategies.py` times walks."""
    task = tilings(product(*extents))
    best, *_ = walk(task).propose(4)
    seconds = Forecast(task).seconds(best)
    assert seconds is not None
    assert seconds < 0.95 * default_seconds(product(*extents))


TABLE_IV = {
    "C2": (ConvOp, [(128, 128, 28, 28), (128, 128, 3, 3)]),
    "M1": (MatmulOp, [(8192, 8192), (8192, 8192)]),
    "M3": (MatmulOp, [(65536, 1024), (1024, 4096)]),
    "V1": (MatmulOp, [(16384, 16384), (16384, 1)]),
    "V3": (MatmulOp, [(16384, 1000), (1000, 1)]),
    "P1": (PoolOp, [(16, 48, 48, 48)]),
    "P3": (PoolOp, [(128, 617, 21, 21)]),
}
TABLE_V = {"32768": (32768, 64, 2048), "16384": (16384, 32, 1024)}
"""Its first product is M2."""


SLOW = [pytest.mark.slow]
OF_TABLE_IV = [pytest.param(label, marks=[] if label in ("M1", "P1") else SLOW) for label in TABLE_IV]
OF_TABLE_V = [pytest.param(label, marks=[] if label == "32768" else SLOW) for label in TABLE_V]


@pytest.mark.parametrize("label", OF_TABLE_IV)
def test_operators_of_table_iv(label: str) -> None:
    operator, shapes = TABLE_IV[label]
    task = tilings(fused_of(operator, shapes))
    random, forecast = Explored(task), Forecast(task)
    name = next(iter(task.by_name))
    drawn = sorted(s for s in forecast(list(islice(random.draws(Random(0), [name]), 20))) if s is not None)
    (best, *_) = walk(task, settings=WalkSettings(states=100)).propose(1)
    seconds = forecast.seconds(best)
    assert seconds is not None
    assert seconds <= drawn[len(drawn) // 4]


@pytest.mark.parametrize("label", OF_TABLE_V)
def test_unbalanced_products_of_table_v(label: str) -> None:
    task = tilings(product(*TABLE_V[label]))
    (best, *_) = walk(task, settings=WalkSettings(states=400)).propose(1)
    seconds = Forecast(task).seconds(best)
    assert seconds is not None
    assert seconds < 1.01 * default_seconds(product(*TABLE_V[label])), (
        "the template's register tiles fill the registers"
    )


def test_all_programs_of_a_gpu_are_looked_at() -> None:
    """Also where walks over some of them would meet as many states as are wanted; the best is as good as a template's
    default."""
    graph = Graph(*(np.zeros(shape, np.float32) for shape in ((784, 512), (512, 128))))
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    lower(treadle_context(), module, A100, after="graph", to="fuse")
    anchor = anchor_of(next(op for op in module.walk() if isinstance(op, FusedOp)))
    found = programs(anchor, A100, default_rules(A100))
    task = Task(anchor, A100, tuple(each for each in found if each.template is None))
    forecast = SeenBy(task)
    (best,) = Walk(Explored(task), forecast, "0", WalkSettings(states=150)).propose(1)
    assert {each.program for each in forecast.seen} == set(task.by_name)
    default = UseAttr.get("matmul_simt", TEMPLATES["matmul_simt"].default(anchor, A100))
    assert forecast.seconds(best) < 1.25 * forecast.seconds_of(default)


class SeenBy(Forecast):
    """Keeps the candidates that it predicts."""

    def __init__(self, task: Task):
        super().__init__(task)
        self.seen: list[Candidate] = []

    def __call__(self, candidates: Sequence[Candidate]) -> Sequence[float | None]:
        self.seen += candidates
        return super().__call__(candidates)


def test_one_seed_gives_one_walk_and_nothing_is_proposed_twice() -> None:
    task = tilings(product(64, 64, 64))
    settings = WalkSettings(states=50)
    first, second, other = (walk(task, seed, settings).propose(6) for seed in ("a", "a", "b"))
    assert first == second != other
    again = walk(task, "a", settings)
    again.learn([Measured(first[0], 1e-3)])
    assert first[0] not in again.propose(6)
    following = again.propose(6)
    assert len({*following, *first}) > len(following)


def test_by_printed_formulas_the_list_of_algorithm_1_is_ranked() -> None:
    """Only states that the list keeps are predicted, and proposed, the fastest first."""
    task = tilings(product(64, 64, 64))
    forecast = SeenBy(task)
    walker = KeptBy(Explored(task), forecast, "0", WalkSettings(benefits="paper", states=30))
    found = walker.propose(20)
    assert len(found) == 20
    assert {*forecast.seen} == walker.kept >= {*found}
    times = forecast(found)
    assert times == sorted(times, key=lambda time: time or 0)
    assert len({step for step in walker.met if step not in walker.kept}) > 0


class KeptBy(Walk):
    """Remembers which states walks met, and which of them the paper's list keeps."""

    met: set[Candidate]
    kept: set[Candidate]

    def walk(self, name: str, random: Random, start: Candidate | None) -> list[Step]:
        steps = super().walk(name, random, start)
        self.met = getattr(self, "met", set()) | {step.candidate for step in steps}
        self.kept = getattr(self, "kept", set()) | {step.candidate for step in steps if step.is_kept}
        return steps


def test_templates_have_no_tiles_to_walk_over() -> None:
    fused = product(64, 64, 64)
    anchor = anchor_of(fused)
    found = tuple(each for each in programs(anchor, CPU, default_rules(CPU)) if each.template is not None)
    assert walk(Task(anchor, CPU, found)).propose(4) == []
