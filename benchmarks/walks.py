"""Gensor's walk against random draws, greedy construction and enumeration, by predicted times: its tables and figures.

    python -m benchmarks.walks [--target sm_89] [--operators M1 C2 ...] [--seeds 3] [--states 400]
    python -m benchmarks.walks --exact        # the Markov chain on all states of programs with few decisions
    python -m benchmarks.walks --ablation     # table VI: without the graph, and without virtual threads
    python -m benchmarks.walks --metrics --operators M2 U2 U3    # table V: what a kernel keeps busy
    python -m benchmarks.walks --times        # figure 8: how long a construction takes
    python -m benchmarks.walks --curves       # figure 10: the best after some seconds of each strategy

Prints predicted microseconds: of the default schedule; of the best of all schedules of the programs that are enumerated
(those with at most 2000 decisions, templates' included), in brackets where some program is not; of greedy
construction; and medians over the seeds of the best of random nests, and of what a walk finds in nests, which
predicts as many. What `--metrics` and `--times` print goes to `benchmarks/results/`, too. Source: Gensor (2025), tables
IV to VI, equations (4) to (6), figures 8 and 10.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from math import inf, prod
from pathlib import Path
from random import Random
from statistics import median

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from benchmarks.machine import describe_run
from benchmarks.result_files import RESULTS, write_results
from treadle import ir
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import ConvOp, FusedOp, MatmulOp, PoolOp
from treadle.dialects.loop import FuncOp
from treadle.dialects.loop.tiles import SECTOR_BYTES
from treadle.dialects.registry import treadle_context
from treadle.passes.loop.fetched_sectors import memory_transactions
from treadle.passes.schedule.construct import constructed, decision, search_of
from treadle.passes.schedule.schedule_select import default_schedule, placed
from treadle.schedules.gpu_time import GpuWork, resident_blocks
from treadle.schedules.rules.programs import programs
from treadle.schedules.rules.staging import staged
from treadle.schedules.rules.tiling import cross_thread, fused, tiled, unrolled
from treadle.schedules.search.candidate import Candidate, Measured, Task
from treadle.schedules.search.evolution import Evolution
from treadle.schedules.search.greedy import Greedy
from treadle.schedules.search.predict import Forecast
from treadle.schedules.search.state_graph import StateGraph, state_graph
from treadle.schedules.search.strategy import Explored
from treadle.schedules.search.walk import Walk, WalkSettings, levels_of
from treadle.target import Target

Shape = tuple[int, ...]


def _entry(*shapes: Shape) -> ir.Entry:
    return ir.Entry({f"x{n}": ir.tensor_type(np.float32, shape) for n, shape in enumerate(shapes)})


def _product(rows: int, terms: int, columns: int) -> ModuleOp:
    e = _entry((rows, terms), (terms, columns))
    return e.module({"y": e.add(MatmulOp(e["x0"], e["x1"]))})


def _convolution(x: Shape, w: Shape, stride: int) -> ModuleOp:
    e = _entry(x, w)
    return e.module({"y": e.add(ConvOp(e["x0"], e["x1"], [stride, stride], [0, 0, 0, 0], [1, 1], 1))})


def _pool(x: Shape, window: int, stride: int) -> ModuleOp:
    e = _entry(x)
    return e.module({"y": e.add(PoolOp("avg", e["x0"], [window] * 2, [stride] * 2, [0] * 4, [1, 1]))})


OPERATORS: Mapping[str, Callable[[], ModuleOp]] = {
    "C1": lambda: _convolution((128, 256, 30, 30), (256, 256, 3, 3), 2),
    "C2": lambda: _convolution((128, 128, 28, 28), (128, 128, 3, 3), 1),
    "C3": lambda: _convolution((128, 128, 58, 58), (128, 128, 3, 3), 2),
    "M1": lambda: _product(8192, 8192, 8192),
    "M2": lambda: _product(65536, 4, 1024),
    "M3": lambda: _product(65536, 1024, 4096),
    "V1": lambda: _product(16384, 16384, 1),
    "V2": lambda: _product(16384, 8192, 1),
    "V3": lambda: _product(16384, 1000, 1),
    "U2": lambda: _product(32768, 64, 2048),
    "U3": lambda: _product(16384, 32, 1024),
    "P1": lambda: _pool((16, 48, 48, 48), 2, 2),
    "P2": lambda: _pool((128, 168, 83, 83), 2, 2),
    "P3": lambda: _pool((128, 617, 21, 21), 3, 2),
}
"""Those of table IV, and of table V the second and the third; M2 is its first."""
_ENUMERATED = 2000
"""Decisions of the largest program that is enumerated."""
_F32_BYTES = 4
_CLOSE = 1.05
"""Of the optimum: what counts as found."""


@dataclass(frozen=True)
class Group:
    """An operator to schedule for a target.

    nests: its programs that tile; whole: all of them; default: the default schedule of the latter
    """

    module: ModuleOp
    group: FusedOp
    nests: Task
    whole: Task
    default: Candidate


def group_of(operator: str, target: Target) -> Group:
    """An operator of `OPERATORS` after stage `fuse`."""
    module = OPERATORS[operator]()
    lower(treadle_context(), module, target, to="fuse")
    group = [op for op in module.walk() if isinstance(op, FusedOp)][-1]
    whole, default = search_of(group, default_schedule(group, target), target)
    nests = Task(whole.anchor, target, tuple(each for each in whole.programs if each.template is None))
    return Group(module, group, nests, whole, default)


@dataclass(frozen=True)
class Times:
    """Predicted seconds, of what walks and draws find in the median.

    enumerated: the least of the programs that are enumerated, infinite without one; is_whole: whether all are
    """

    default: float
    enumerated: float
    is_whole: bool
    greedy: float
    random: float
    walk: float

    def __str__(self) -> str:
        default, enumerated, greedy, random, walk = (
            f"{each * 1e6:,.1f}" for each in (self.default, self.enumerated, self.greedy, self.random, self.walk)
        )
        best = "-" if self.enumerated == inf else enumerated if self.is_whole else f"({enumerated})"
        return f"default {default}, enumerated {best}, greedy {greedy}, random {random}, walk {walk} us"


def compared(operator: str, target: Target, seeds: int, settings: WalkSettings | None = None) -> Times:
    """The times of an operator of `OPERATORS`."""
    group = group_of(operator, target)
    forecast, walks, draws = Forecast(group.nests), list[float](), list[float]()
    for seed in range(seeds):
        walk = Walk(Explored(group.nests), forecast, str(seed), settings)
        walks.append(forecast.seconds(walk.propose(1)[0]))
        random = Explored(group.nests).draws(Random(f"draw {seed}"), list(group.nests.by_name))
        draws.append(_least(forecast, list(islice(random, walk.predicted))))
    few = tuple(each for each in group.whole.programs if _size(group.whole, each.sym_name.data) <= _ENUMERATED)
    enumerated = Task(group.whole.anchor, target, few)
    return Times(
        default=Forecast(group.whole).seconds(group.default),
        enumerated=_least(Forecast(enumerated), enumerated.distinct()),
        is_whole=len(few) == len(group.whole.programs),
        greedy=_least(forecast, Greedy(Explored(group.nests), forecast, "0").propose(1)),
        random=median(draws),
        walk=median(walks),
    )


def _size(task: Task, name: str) -> int:
    return task.samplers[name].size()


def _least(forecast: Forecast, candidates: Sequence[Candidate]) -> float:
    """The least predicted seconds; infinite if there are none."""
    return min((each for each in forecast(candidates) if each is not None), default=inf)


@dataclass(frozen=True)
class Exact:
    """What is known of a program's Markov chain without sampling.

    states, actions: of the graph; classes: of the last level, in which a walk ends; periods: of all levels' classes
    optimum: the least predicted seconds of all states; reached: of those that value iteration reaches from the smallest
        tiles
    met, ends: the probabilities that a walk from the smallest tiles meets a state within 5 % of the optimum, and that
        it ends in one
    stationary: the part of the stationary distribution, of the first step's probabilities, in such states
    """

    states: int
    actions: int
    classes: int
    periods: tuple[int, ...]
    optimum: float
    reached: float
    met: float
    ends: float
    stationary: float

    def __str__(self) -> str:
        times = f"optimum {self.optimum * 1e6:,.1f} us, reached {self.reached * 1e6:,.1f}"
        found = f"met {self.met:.1%}, ends {self.ends:.1%}, stationary {self.stationary:.1%}"
        periods = "periods " + " and ".join(map(str, self.periods))
        return f"{self.states} states, {self.actions} actions, {self.classes} last classes, {periods}; {times}; {found}"


def exact(task: Task, name: str, settings: WalkSettings | None = None) -> Exact:
    """The chain of a program of a task, by `treadle.schedules.search.state_graph`."""
    walk = Walk(Explored(task), Forecast(task), "0", settings)
    graph = state_graph(walk, name)
    start = walk.start(name, Random("exact"), "smallest")
    assert start is not None
    return _exact(graph, start)


def _exact(graph: StateGraph, start: Candidate) -> Exact:
    begin, last = graph.at(start), graph.states[-1][1]
    good = graph.seconds <= _CLOSE * graph.optimum
    payoffs, _ = graph.values()
    return Exact(
        states=len(graph.states),
        actions=len(graph.sources),
        classes=sum(graph.states[each[0]][1] == last for each in graph.classes),
        periods=tuple(sorted({graph.period(each) for each in graph.classes})),
        optimum=graph.optimum,
        reached=float((graph.seconds / payoffs) @ begin),
        met=float(graph.after(begin, goal=good)[good].sum()),
        ends=float(graph.after(begin)[good].sum()),
        stationary=float(graph.stationary(begin, 0)[good].sum()),
    )


@dataclass(frozen=True)
class Counters:
    """A kernel's predicted metrics of tables V and VI, on a GPU.

    seconds; flops: a second; compute: these as a part of the f32 peak; occupancy: resident warps over the most that fit
    memory: the part of the time for which global memory is busy; l2_hits: the part of the sectors that L2 has, where
        inputs come from global memory once and results are written without being fetched
    conflicts: repeated waves at banks of shared memory, of the worst warp of each access
    """

    seconds: float
    flops: float
    compute: float
    occupancy: float
    memory: float
    l2_hits: float
    conflicts: int

    def __str__(self) -> str:
        rates = f"{self.flops / 1e12:.2f} TFLOPS ({self.compute:.1%}), occupancy {self.occupancy:.1%}"
        memory = f"memory busy {self.memory:.1%}, L2 hits {self.l2_hits:.1%}"
        return f"{self.seconds * 1e6:,.1f} us, {rates}, {memory}, {self.conflicts} bank conflicts"


def without_virtual_threads(task: Task) -> Task:
    """The programs of the default rules' words of levels for GPUs but for that of virtual threads."""
    levels = tiled("SRSRRSRS"), tiled("SSRRSRS"), tiled("SSR", reuse=False)
    rules = (fused, cross_thread, *levels, staged("shared", ahead=True), unrolled)
    return Task(task.anchor, task.target, tuple(programs(task.anchor, task.target, rules)))


def ablation(operator: str, target: Target, seeds: int, settings: WalkSettings | None = None) -> dict[str, Counters]:
    """Table VI's three methods, and the walk by formulas (1) to (3): of walks the median of the seeds."""
    group = group_of(operator, target)
    plain = without_virtual_threads(group.nests)
    paper = replace(WalkSettings() if settings is None else settings, benefits="paper")
    found = {"greedy (no graph)": _counters(group, group.nests, [_greedy(group.nests)])}
    found["walk without virtual threads"] = _counters(group, plain, [_walk(plain, n, settings) for n in range(seeds)])
    found["walk"] = _counters(group, group.nests, [_walk(group.nests, n, settings) for n in range(seeds)])
    found["walk by printed formulas"] = _counters(
        group, group.nests, [_walk(group.nests, n, paper) for n in range(seeds)]
    )
    return found


def metrics(operator: str, target: Target, seeds: int, settings: WalkSettings | None = None) -> dict[str, Counters]:
    """Table V: Gensor's kernel beside what stands for Ansor's, and the default; of searches the median of the seeds."""
    group = group_of(operator, target)
    evolved = [Evolution(Explored(group.nests), Forecast(group.nests), str(n)).propose(1)[0] for n in range(seeds)]
    return {
        "default": _counters(group, group.whole, [group.default]),
        "evolution": _counters(group, group.nests, evolved),
        "walk": _counters(group, group.nests, [_walk(group.nests, n, settings) for n in range(seeds)]),
    }


CONSTRUCTED = ("greedy", "walk", "walk-paper", "evolution")
"""Strategies whose constructions are timed: Roller's, Gensor's, Gensor's by the printed formulas, MetaSchedule's."""


def construction_seconds(operator: str, target: Target, strategy: str, seed: int) -> float:
    """Processor seconds from a group without a schedule to the decision on it, as `--construct` makes it."""
    group = group_of(operator, target)
    start = time.process_time()
    task, default = search_of(group.group, default_schedule(group.group, target), target)
    decision(task, constructed(task, default, strategy, str(seed)))
    return time.process_time() - start


def _greedy(task: Task) -> Candidate:
    return Greedy(Explored(task), Forecast(task), "0").propose(1)[0]


def _walk(task: Task, seed: int, settings: WalkSettings | None = None) -> Candidate:
    return Walk(Explored(task), Forecast(task), str(seed), settings).propose(1)[0]


def _counters(group: Group, task: Task, found: Sequence[Candidate]) -> Counters:
    """Of the candidate whose time is the median."""
    forecast, target = Forecast(task), task.target
    times = sorted((forecast.seconds(each), n) for n, each in enumerate(found))
    seconds, number = times[len(times) // 2]
    work = forecast.work(task.replay(found[number]))
    assert isinstance(work, GpuWork)
    module = group.module.clone()
    fused_op = [op for op in module.walk() if isinstance(op, FusedOp)][-1]
    fused_op.schedule = placed(module, decision(task, found[number]))
    lower(treadle_context(), module, target, after="schedule", to="loops")
    kernel = [op for op in module.walk() if isinstance(op, FuncOp)][-1]
    flops, result = 2 * prod(task.workload.extents) / seconds, prod(task.anchor.shape) * _F32_BYTES
    return Counters(
        seconds=seconds,
        flops=flops,
        compute=flops / target.peak_f32,
        occupancy=resident_blocks(work, target) * work.warps / target.max_warps_per_multiprocessor,
        memory=work.bytes / target.peak_bandwidth / seconds,
        l2_hits=1 - min(1.0, (work.bytes - result) / (work.blocks * work.sectors * SECTOR_BYTES)),
        conflicts=sum(each.conflicts for each in memory_transactions(kernel)),
    )


SECONDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Processor seconds of a strategy, after which `curves` says what it has found."""


class _Over(Exception):
    """The time of a curve is over."""


class _Traced(Forecast):
    """Keeps the best predicted seconds after each of `SECONDS`."""

    def __init__(self, task: Task):
        super().__init__(task)
        self.start, self.best = time.process_time(), inf
        self.points: list[float] = []

    def __call__(self, candidates: Sequence[Candidate]) -> Sequence[float | None]:
        found: list[float | None] = []
        for candidate in candidates:
            found += super().__call__([candidate])
            while time.process_time() - self.start > SECONDS[len(self.points)]:
                self.points.append(self.best)
                if len(self.points) == len(SECONDS):
                    raise _Over
            self.best = min([self.best, *(each for each in found[-1:] if each is not None)])
        return found


def curves(task: Task, seed: int) -> dict[str, tuple[float, list[float]]]:
    """Of each strategy the seconds that it takes, and the best predicted seconds after each of `SECONDS`."""
    found: dict[str, tuple[float, list[float]]] = {}
    for name, run in _RUNS.items():
        traced = _Traced(task)
        with suppress(_Over):
            run(Explored(task), traced, seed)
        took = time.process_time() - traced.start
        found[name] = took, [*traced.points, *[traced.best] * (len(SECONDS) - len(traced.points))]
    return found


def _evolved(explored: Explored, traced: Forecast, seed: int) -> None:
    """Proposals of eight, whose predicted times are the measured ones, until the time is over."""
    evolution = Evolution(explored, traced, str(seed))
    while proposed := evolution.propose(8):
        times = Forecast(explored.task)(proposed)
        evolution.learn([Measured(each, seconds) for each, seconds in zip(proposed, times, strict=True)])


def _drawn(explored: Explored, traced: Forecast, seed: int) -> None:
    for candidate in explored.draws(Random(f"draw {seed}"), list(explored.task.by_name)):
        traced([candidate])


_RUNS: Mapping[str, Callable[[Explored, Forecast, int], object]] = {
    "greedy": lambda explored, traced, seed: Greedy(explored, traced, str(seed)).propose(1),
    "walk": lambda explored, traced, seed: Walk(explored, traced, str(seed)).propose(1),
    "evolution": _evolved,
    "random": _drawn,
}


def _show(name: str, target: Target, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Prints what is asked for of one operator; the rows of it that are written."""
    settings, rows = WalkSettings(sharpness=arguments.sharpness, states=arguments.states), list[dict[str, object]]()
    if arguments.exact:
        task = group_of(name, target).nests
        for program in task.programs:
            label = program.sym_name.data
            if levels_of(program) and _size(task, label) <= _ENUMERATED:
                print(f"{name} @{label}: {exact(task, label, settings)}", flush=True)
    elif arguments.ablation:
        for method, counters in ablation(name, target, arguments.seeds, settings).items():
            print(f"{name} {method}: {counters}", flush=True)
    elif arguments.metrics:
        for method, counters in metrics(name, target, arguments.seeds, settings).items():
            print(f"{name} {method}: {counters}", flush=True)
            rows.append({"operator": name, "method": method, **vars(counters)})
    elif arguments.times:
        for strategy in CONSTRUCTED:
            took = [construction_seconds(name, target, strategy, seed) for seed in range(arguments.seeds)]
            print(f"{name} {strategy}: {median(took):.2f} s", flush=True)
            rows.append({"operator": name, "strategy": strategy, "seconds": [round(each, 3) for each in took]})
    elif arguments.curves:
        runs = [curves(group_of(name, target).nests, seed) for seed in range(arguments.seeds)]
        for strategy in _RUNS:
            bests = [median(each) for each in zip(*(run[strategy][1] for run in runs), strict=True)]
            after = ", ".join(f"{s:g} s {b * 1e6:,.1f}" for s, b in zip(SECONDS, bests, strict=True))
            took = median(run[strategy][0] for run in runs)
            print(f"{name} {strategy}: {took:.2f} s; us after {after}", flush=True)
    else:
        print(f"{name}: {compared(name, target, arguments.seeds, settings)}", flush=True)
    return rows


def main(words: Sequence[str] | None = None) -> None:
    """Prints a line or several for each operator."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="sm_89")
    parser.add_argument("--operators", nargs="+", choices=tuple(OPERATORS), default=tuple(OPERATORS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--sharpness", type=float, default=WalkSettings.sharpness, metavar="X", help="0: as the paper")
    parser.add_argument("--states", type=int, default=WalkSettings.states, metavar="N", help="that a walk predicts")
    what = parser.add_mutually_exclusive_group()
    for option in ("exact", "ablation", "metrics", "times", "curves"):
        what.add_argument(f"--{option}", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR", help="of the results")
    arguments = parser.parse_args(words)
    target = Target.parse(arguments.target)
    if (arguments.ablation or arguments.metrics) and not target.is_cuda:
        parser.error("--ablation and --metrics are of GPUs: virtual threads and banks are theirs")
    rows = [row for name in arguments.operators for row in _show(name, target, arguments)]
    if rows:
        circumstances = describe_run() | {"target": str(target), "seeds": arguments.seeds, "states": arguments.states}
        what_is = "walks_metrics" if arguments.metrics else "walks_times"
        print(f"written to {write_results(what_is, circumstances, rows, arguments.output)}")


if __name__ == "__main__":
    main()
