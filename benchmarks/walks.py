"""Gensor's walk against as many random draws, and the default, by predicted times: the operators of its table IV.

    python -m benchmarks.walks [--target sm_89] [--operators M1 C2 ...] [--seeds 3] [--sharpness 1]

Prints predicted microseconds: of the default schedule, and medians over the seeds of what a walk finds in nests, and of
the best of as many random nests as the walk predicted. Source: Gensor (2025), table IV.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from random import Random
from statistics import median

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from treadle import ir
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import ConvOp, FusedOp, MatmulOp, PoolOp
from treadle.dialects.registry import treadle_context
from treadle.passes.schedule.construct import search_of
from treadle.passes.schedule.schedule_select import default_schedule
from treadle.schedules.search.candidate import Task
from treadle.schedules.search.predict import Forecast
from treadle.schedules.search.strategy import Explored
from treadle.schedules.search.walk import Walk, WalkSettings
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
    "P1": lambda: _pool((16, 48, 48, 48), 2, 2),
    "P2": lambda: _pool((128, 168, 83, 83), 2, 2),
    "P3": lambda: _pool((128, 617, 21, 21), 3, 2),
}


def compared(
    module: ModuleOp, target: Target, seeds: int, settings: WalkSettings | None = None
) -> tuple[float, float, float]:
    """Predicted seconds: of the default, of walks, of random draws."""
    lower(treadle_context(), module, target, to="fuse")
    fused = [op for op in module.walk() if isinstance(op, FusedOp)][-1]
    whole, default = search_of(fused, default_schedule(fused, target), target)
    task = Task(whole.anchor, target, tuple(each for each in whole.programs if each.template is None))
    forecast, walks, draws = Forecast(task), list[float](), list[float]()
    for seed in range(seeds):
        walk = Walk(Explored(task), forecast, str(seed), settings)
        walks.append(forecast.seconds(walk.propose(1)[0]))
        drawn = islice(Explored(task).draws(Random(f"draw {seed}"), list(task.by_name)), walk.predicted)
        draws.append(min(each for each in forecast(list(drawn)) if each is not None))
    return Forecast(whole).seconds(default), median(walks), median(draws)


def main(words: Sequence[str] | None = None) -> None:
    """Prints a line for each operator."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="sm_89")
    parser.add_argument("--operators", nargs="+", choices=tuple(OPERATORS), default=tuple(OPERATORS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--sharpness", type=float, default=WalkSettings.sharpness, metavar="X", help="0: as the paper")
    arguments = parser.parse_args(words)
    for name in arguments.operators:
        settings = WalkSettings(sharpness=arguments.sharpness)
        times = compared(OPERATORS[name](), Target.parse(arguments.target), arguments.seeds, settings)
        default, walk, draw = (each * 1e6 for each in times)
        print(f"{name}: default {default:.1f}, walk {walk:.1f}, random {draw:.1f} us", flush=True)


if __name__ == "__main__":
    main()
