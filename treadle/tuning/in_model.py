"""Confirms schedules in the whole model: what is faster alone may be slower among its neighbours.

Alone, a kernel finds its activations in a cache, and of many candidates the best one is partly the luckiest one. So a
model with the chosen schedules and one with the defaults are timed in turn, launch by launch: groups whose launches did
not become faster are dropped, then more of them, until the whole model is faster, or nothing is left. The default takes
part twice: what it differs from itself is the noise that a gain has to exceed.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from numpy.typing import NDArray

from treadle.api import compile as compiled
from treadle.backends.c.executor import CpuProgram
from treadle.backends.cuda.executor import CudaProgram
from treadle.bench.interleave import Disturbance, balanced_orders, busy_text, quartiles
from treadle.compiler.request import read_module
from treadle.dialects.host import LaunchOp
from treadle.dialects.location import name_nodes
from treadle.model import CompiledModel, load
from treadle.schedules.search.database import Database
from treadle.shapes.constants import Constants
from treadle.shapes.dim import Shapes
from treadle.target import Target
from treadle.tuning.child import CallEndedError, Child
from treadle.tuning.measure import random_inputs
from treadle.tuning.tasks import GroupTask

Array = NDArray[Any]

LEAST_SECONDS = 60.0
"""A search with less time confirms no schedule in the model: compiling it takes about as long."""
_TIMED_SECONDS = 15.0
"""About 36 rounds of a model of 70 ms, the slowest of the benchmarks'."""
_ROUNDS, _FEWEST_ROUNDS = 300, 6
_AGAIN = 2
"""The side that is the default once more."""
_PATIENCE = 60.0
_NOTCH = 1.57
"""Of a median of n values, plus or minus this times the distance of the quartiles over the root of n: where two such
ranges do not meet, the medians differ (McGill, Tukey and Larsen, Variations of Box Plots, 1978)."""


def reserved(seconds: float) -> float:
    """Seconds of a search that are kept for its model: a fifth, at most 180, for some attempts. Compiling and timing
    MobileNet-V2 took 58 and 78 s an attempt on two cores with seven other processes."""
    return min(seconds / 5, 180.0) if seconds >= LEAST_SECONDS else 0.0


@dataclass(frozen=True)
class Ratio:
    """How many times as fast as the default something is: the median of the rounds, and what it is at least."""

    median: float
    least: float

    @classmethod
    def of(cls, default: Sequence[float], tuned: Sequence[float]) -> Ratio:
        """Of times that belong together, round by round."""
        ratios = [before / after for before, after in zip(default, tuned, strict=True)]
        low, middle, high = quartiles(ratios)
        return cls(middle, middle - _NOTCH * (high - low) / len(ratios) ** 0.5)

    @property
    def most(self) -> float:
        """What it is at most, as far from the median as `least`."""
        return 2 * self.median - self.least


@dataclass(frozen=True)
class ModelTimes:
    """Seconds of a model with the default and with chosen schedules, round by round.

    calls: of a call; launches: of all launches that compute some nodes, by these; nothing on a GPU, where the time
        between two events is longer than many a kernel
    again: of a call with the default, opened a second time
    waited: the part of the threads' time in which they waited for a core
    """

    calls: tuple[Sequence[float], Sequence[float]]
    launches: tuple[Mapping[str, Sequence[float]], Mapping[str, Sequence[float]]]
    again: Sequence[float] = ()
    waited: float = 0.0

    @property
    def whole(self) -> Ratio:
        """Of calls."""
        return Ratio.of(*self.calls)

    @property
    def noise(self) -> float:
        """The factor, at least 1, up to which the default may seem faster or slower than itself."""
        if not self.again:
            return 1.0
        control = Ratio.of(self.calls[0], self.again)
        return max(1.0, control.most, 1 / control.least if control.least > 0 else inf)

    @property
    def is_faster(self) -> bool:
        """Whether the chosen schedules are faster by more than the default differs from itself."""
        return self.whole.least > self.noise

    @property
    def text(self) -> str:
        """What was measured of the whole model, in words."""
        before, after = (statistics.median(side) * 1e3 for side in self.calls)
        found = f"{before:.4g} -> {after:.4g} ms, {self.whole.median:.3f} times as fast"
        noise = f"; two runs of the default differ by {self.noise - 1:.1%} at most" if self.again else ""
        busy = busy_text(self.waited)
        return found + noise + (f"; {busy}" if busy else "")

    def of_nodes(self, nodes: Sequence[str]) -> Ratio | None:
        """Of the launches of some nodes; None where there are none."""
        sides = [[side[name] for name in dict.fromkeys(nodes) if name in side] for side in self.launches]
        if not all(sides):
            return None
        default, tuned = ([sum(each) for each in zip(*side, strict=True)] for side in sides)
        return Ratio.of(default, tuned)

    def gained(self, nodes: Sequence[str]) -> float:
        """Seconds of a call that the launches of some nodes take less."""
        before, after = (
            sum(statistics.median(side[name]) for name in dict.fromkeys(nodes) if name in side)
            for side in self.launches
        )
        return before - after


@dataclass(frozen=True)
class Verdict:
    """Whether a group's schedule is kept, and what the model says of it.

    model: what the last timing of the whole model that the group took part in says
    """

    kept: bool
    text: str
    model: str = ""


Timed = Callable[[Sequence[GroupTask]], ModelTimes]
"""Times a model whose groups of some tasks have their schedules of the database, and all others the default."""


def verdicts(tasks: Sequence[GroupTask], timed: Timed, left: Callable[[], float]) -> dict[str, Verdict]:
    """What is kept of some tasks' schedules, by digest.

    left: seconds that remain; an attempt is not begun unless they are as many as the last one took
    Where launches are not timed, of a model that is not faster the first half of the tasks is dropped.
    """
    found: dict[str, Verdict] = {}
    waiting, ratios, took = list(tasks), {}, 0.0
    while waiting and took <= max(left(), 0.0):
        start = time.monotonic()
        try:
            times = timed(waiting)
        except CallEndedError as error:
            return found | {each.digest: Verdict(False, f"dropped: the model failed, {error}") for each in waiting}
        took = time.monotonic() - start
        ratios = {each.digest: times.of_nodes(each.nodes) for each in waiting}
        said = {digest: _text(ratio) if times.launches[0] else "" for digest, ratio in ratios.items()}
        dropped = [each for each in waiting if times.launches[0] and not _is_faster(ratios[each.digest])]
        whole = times.whole
        if not dropped and times.is_faster:
            kept = f"in a model {whole.median:.3f} times as fast"
            return found | {t.digest: Verdict(True, f"{said[t.digest]}{kept}", times.text) for t in waiting}
        why = "not faster in the model"
        if not dropped:
            dropped = sorted(waiting, key=lambda each: times.gained(each.nodes))[: (len(waiting) + 1) // 2]
            why = f"a model with it and others is not certainly faster ({whole.median:.3f}x)"
        found |= {each.digest: Verdict(False, f"dropped: {said[each.digest]}{why}", times.text) for each in dropped}
        waiting = [each for each in waiting if each.digest not in found]
    why = "dropped: no time was left to confirm it in the model"
    return found | {each.digest: Verdict(False, why) for each in waiting}


def _is_faster(ratio: Ratio | None) -> bool:
    return ratio is not None and ratio.least > 1


def _text(ratio: Ratio | None) -> str:
    return "no launch, " if ratio is None else f"{ratio.median:.3f}x, "


@dataclass(frozen=True)
class ModelTimer:
    """Times a model on this machine, in a child process; TreadleError as `compile` raises it."""

    model: Path
    target: Target
    shapes: Shapes | None
    constants: Constants | None
    precision: str
    threads: int
    database: Database
    hardware: str

    def __call__(self, tasks: Sequence[GroupTask]) -> ModelTimes:
        child = Child()
        with TemporaryDirectory() as scratch:
            for task in tasks:
                entry = self.database.path_of(task.digest, self.hardware)
                assert entry is not None, "a confirmed schedule is in the database"
                folder = Path(scratch) / entry.parent.name
                folder.mkdir(exist_ok=True)
                shutil.copy(entry, folder)
            default, tuned = self._compiled(None), self._compiled(Path(scratch))
        try:
            call = partial(model_times, (default.folder, tuned.folder), self.threads, _TIMED_SECONDS)
            return child.call(call, 2 * _TIMED_SECONDS + _PATIENCE)
        finally:
            child.close()

    def _compiled(self, database: Path | None) -> CompiledModel:
        return compiled(
            self.model,
            self.target,
            self.shapes,
            constants=self.constants,
            precision=self.precision,
            threads=self.threads,
            database=database,
        )


def model_times(folders: tuple[Path, Path], threads: int, seconds: float) -> ModelTimes:
    """Times two artifacts of one model in turn, and the first one opened once more, for about `seconds`.

    Before each timing stands a call that brings back what the others have put out of the caches.
    """
    default, tuned = folders
    models = [load(folder, threads) for folder in (default, tuned, default)]
    names = [_launched(model) for model in models[:2]]
    programs = [_opened(model) for model in models]
    calls: tuple[list[float], list[float], list[float]] = ([], [], [])
    launches: tuple[dict[str, list[float]], dict[str, list[float]]] = ({}, {})
    inputs, end = random_inputs(programs[0].inputs), time.perf_counter() + seconds
    disturbance, orders = Disturbance(threads), itertools.cycle(balanced_orders((0, 1, 2)))
    for turn, order in zip(range(_ROUNDS), orders, strict=False):
        if turn >= _FEWEST_ROUNDS and time.perf_counter() > end:
            break
        for side in order:
            program = programs[side]
            calls[side].append(_call(program, inputs))
            if side == _AGAIN or not isinstance(program, CpuProgram):
                continue
            each = program.launch_seconds(inputs, len(names[side]))
            for name, taken in _by_name(names[side], each).items():
                launches[side].setdefault(name, []).append(taken)
    waited = disturbance.part()
    for model in models:
        model.close()
    return ModelTimes(calls[:2], launches, calls[_AGAIN], waited)


def _launched(model: CompiledModel) -> list[str]:
    """The nodes that each launch of a model computes, in order."""
    module = read_module(model.artifact.module_text(), str(model.artifact.folder))
    return [name_nodes(op.location) for op in module.walk() if isinstance(op, LaunchOp)]


def _opened(model: CompiledModel) -> CpuProgram | CudaProgram:
    program = model.open()
    assert isinstance(program, CpuProgram | CudaProgram)
    return program


def _call(program: CpuProgram | CudaProgram, inputs: Sequence[Array]) -> float:
    """Seconds of a call, which another one stands before; on a GPU, of its launches as one graph."""
    if isinstance(program, CudaProgram):
        return program.measure(inputs, 1)[0]
    program.run(inputs)
    start = time.perf_counter()
    program.run(inputs)
    return time.perf_counter() - start


def _by_name(names: Sequence[str], seconds: Sequence[float]) -> dict[str, float]:
    found = dict.fromkeys(names, 0.0)
    for name, each in zip(names, seconds, strict=True):
        found[name] += each
    return found


__all__ = [
    "LEAST_SECONDS",
    "ModelTimer",
    "ModelTimes",
    "Ratio",
    "Timed",
    "Verdict",
    "model_times",
    "reserved",
    "verdicts",
]
