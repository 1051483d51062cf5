"""The search strategies on one task and one cost model: the best schedule found against trials and seconds.

    python benchmarks/strategies.py --trials 64 --json results.json

A trial's result is what the model predicts from the candidate's value, so that strategies are compared with each other
and not with the noise of timings, and a GPU's without a device. The programs are the nests that the rules write; for
GPUs another task has the product's template, whose space is small enough to be enumerated. Seconds are those of the
strategy itself: to compare them, run this on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from xdsl.dialects.builtin import ModuleOp, TensorType, f32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region

from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp, MatmulOp
from treadle.dialects.registry import treadle_context
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.rules.programs import programs
from treadle.schedules.rules.tiling import default_rules
from treadle.schedules.search.candidate import Measured, Task
from treadle.schedules.search.predict import Forecast
from treadle.schedules.search.programs import template_program
from treadle.schedules.search.strategies import STRATEGIES
from treadle.schedules.search.strategy import Explored
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

PRODUCTS = {
    "4096^3": (4096, 4096, 4096),
    "BERT's feed-forward": (128, 768, 3072),
    "ResNet-50's 1 x 1, 28 x 28": (784, 512, 128),
    "ResNet-50's 3 x 3, 56 x 56": (3136, 576, 64),
}
"""Rows, terms and columns: a square, and three layers."""
TASKS = (("cpu", "nests"), ("sm_80", "nests"), ("sm_80", "matmul_simt"))
"""Targets, and the programs among which is searched: the rules' nests, or those of a template."""
_BATCH = 8
"""Candidates of a proposal."""
_MOST_ENUMERATED = 1000
"""Candidates of the largest space that is searched exhaustively."""


@dataclass(frozen=True)
class Point:
    """After so many trials, and so many seconds of the search: the best seconds of the kernel so far."""

    trials: int
    seconds: float
    best: float


@dataclass(frozen=True)
class Run:
    """One strategy on one product; no points where it does not apply."""

    product: str
    target: str
    programs: str
    strategy: str
    seed: int
    points: tuple[Point, ...]


def task_of(extents: tuple[int, int, int], target: Target, kind: str = "nests") -> Task:
    """A product with its nests, or with the program of a template."""
    m, k, n = extents
    block = Block(arg_types=[TensorType(f32, (m, k)), TensorType(f32, (k, n))])
    block.add_op(product := MatmulOp(*block.args))
    block.add_op(ReturnOp(product.result))
    types = [arg.type for arg in block.args], [product.result.type]
    module = ModuleOp([FuncOp("main", types, Region(block))])
    lower(treadle_context(), module, target, after="graph", to="fuse")
    (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    anchor = anchor_of(fused)
    if kind != "nests":
        return Task(anchor, target, (template_program(TEMPLATES[kind], anchor, target),))
    tilings = (each for each in programs(anchor, target, default_rules(target)) if each.template is None)
    return Task(anchor, target, tuple(tilings))


def searched(task: Task, strategy: str, trials: int, seed: int) -> tuple[Point, ...]:
    """The curve of one strategy."""
    if strategy == "exhaustive" and _size(task) > _MOST_ENUMERATED:
        return ()
    forecast, points, best = Forecast(task), list[Point](), float("inf")
    start, tried = time.process_time(), 0
    search = STRATEGIES[strategy](Explored(task), forecast, str(seed))
    while tried < trials and (proposed := search.propose(min(_BATCH, trials - tried))):
        times = forecast(proposed)
        search.learn([Measured(each, seconds) for each, seconds in zip(proposed, times, strict=True)])
        best = min([best, *(seconds for seconds in times if seconds is not None)])
        tried += len(proposed)
        points.append(Point(tried, time.process_time() - start, best))
    return tuple(points)


def _size(task: Task) -> int:
    """Decisions of the task's programs, up to a few more than may be enumerated."""
    count = 0
    for sampler in task.samplers.values():
        for _ in sampler.enumerate():
            count += 1
            if count > _MOST_ENUMERATED:
                return count
    return count


def compared(trials: int, seeds: int, products: Sequence[str] = tuple(PRODUCTS)) -> list[Run]:
    """All strategies on all products and targets."""
    found: list[Run] = []
    for product in products:
        for name, kind in TASKS:
            task = task_of(PRODUCTS[product], Target.parse(name), kind)
            for strategy, seed in itertools.product(STRATEGIES, range(seeds)):
                found.append(Run(product, name, kind, strategy, seed, searched(task, strategy, trials, seed)))
                print(line(found[-1]), flush=True)
    return found


def line(run: Run) -> str:
    """A row: the best after 8 trials, after all, and what that took."""
    head = f"{run.product:28} {run.target:6} {run.programs:12} {run.strategy:10} {run.seed:2}"
    finite = [point for point in run.points if np.isfinite(point.best)]
    if not finite:
        return f"{head}  does not apply"
    first, last = finite[0], finite[-1]
    return f"{head} {first.best * 1e3:10.3f} {last.best * 1e3:10.3f} ms {last.trials:5} trials {last.seconds:8.2f} s"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--products", nargs="+", choices=list(PRODUCTS), default=list(PRODUCTS))
    parser.add_argument("--json", type=Path, help="where all points go")
    given = parser.parse_args(arguments)
    runs = compared(given.trials, given.seeds, given.products)
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")


if __name__ == "__main__":
    main()
