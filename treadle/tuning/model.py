"""`treadle.tune`: searches schedules for all kernels of a model, on this machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path

from treadle.api import resolve_target
from treadle.backends.cuda.gpu_probe import why_no_gpu
from treadle.compiler.request import CompileRequest, lowered_module
from treadle.environment import available_cores, load_environment
from treadle.errors import TreadleError
from treadle.schedules.joint import Weights
from treadle.schedules.rules.programs import Rule, programs
from treadle.schedules.search.database import PREDICTED, Database
from treadle.schedules.search.learned import MISSING, Analytic, can_learn
from treadle.schedules.search.strategies import STRATEGIES
from treadle.shapes.constants import Constants
from treadle.shapes.dim import Shapes, normalized
from treadle.target import Target
from treadle.target.options import CompileOptions, parse_precision
from treadle.tuning.candidates import Left
from treadle.tuning.group_search import Group, Options
from treadle.tuning.in_model import LEAST_SECONDS, ModelTimer, reserved
from treadle.tuning.measure import LocalMeasurer, Measurer, RemoteMeasurer
from treadle.tuning.preview import Preview, preview
from treadle.tuning.ranged import RangedTuner
from treadle.tuning.tasks import GroupTask, cluster, default_programs, stale_entries, tasks_of
from treadle.tuning.tuner import PredictedTuner, Show, Tuner
from treadle.tuning.workers import ChildPool, Workers, this_machine

_LEAST_SECONDS = 1.0
_BUILD_SECONDS = 30.0
"""For lowering or compiling one candidate: of 40 random ones of four groups of MobileNet-V2 the compiler took 2.3 CPU
seconds or less for half of them, and 11.6 for the slowest."""


def tune(
    model: str | Path,
    database: str | Path,
    shapes: Shapes | None = None,
    *,
    constants: Constants | None = None,
    seconds: float = 900.0,
    trials: int | None = None,
    groups: Sequence[str] = (),
    precision: str = "f32",
    threads: int | None = None,
    seed: int = 0,
    strategy: str = next(iter(STRATEGIES)),
    rules: Sequence[Rule] | None = None,
    executor: Executor | None = None,
    measurer: Measurer | None = None,
    scheduler: str | None = None,
    stale: bool = False,
    weights: Weights | None = None,
    target: str | Target = "cpu",
    show: Show = lambda groups, current: None,
) -> list[Group]:
    """Searches schedules for a model's kernels on this machine's processor or GPU, and writes those that are faster to
    a database.

    model:    path of an .onnx file
    database: folder of tuned schedules, created if it is missing; pass it to `compile(..., database=...)`
    shapes:   as for `compile`, as are constants
    seconds:  limit of the whole search; it ends earlier when all candidates were tried
    trials:   limit of the number of candidates that are timed
    groups:   tune only groups whose label contains one of these words; default: all
    threads:  of a call; default: the variable TREADLE_NUM_THREADS
    seed:     of the random choice of candidates
    strategy: how they are chosen: `evolution`, `evolution-annealed`, `exhaustive`, `greedy`, `random`, `walk` or
        `walk-paper`
    rules:    write the schedule programs among which a group's schedule is searched; default: `default_rules`
    executor: where candidates are built, any `concurrent.futures.Executor` on machines like this one; default: a
        process for each core
    measurer: what times them; default: a process of this machine
    scheduler: the address of a Dask scheduler, instead: its workers build and time, and schedules are for their kind of
        machine
    stale:    search nothing, but time anew the database's entries for groups of this model that were measured with
        other versions of treadle, each together with its default; the groups of these entries are returned
    weights:  of a model with ranges, how often the values of a symbol occur: `{"seq": {37: 120, 128: 44}}`; default:
        values spread over the range
    target:   "cpu", "cuda" for this machine's GPU, or a GPU such as "sm_89". Kernels for one that is not here are
        neither built nor timed: what is predicted to be faster is written, and marked as predicted
    show:     called with all groups, and the one that is being tuned, after each change

    Every candidate is compared with the group's definition in float64 before it is timed. Raises TreadleError for
    arguments out of range, and what `compile` raises.
    """
    started = time.monotonic()
    _check(seconds, trials, strategy)
    given = resolve_target(target)
    with ExitStack() as stack:
        workers = stack.enter_context(_workers(executor, scheduler, given))
        if measurer is None:
            measurer = LocalMeasurer() if scheduler is None else RemoteMeasurer(workers)
            stack.callback(measurer.close)
        how = _how(measurer, given)
        is_predicted = how == PREDICTED
        if not stale and not is_predicted and not can_learn():
            print(f"warning: {MISSING}", file=sys.stderr)
        target, options = workers.machine.target, CompileOptions(parse_precision(precision))
        tasks = tasks_of_model(Path(model), target, normalized(shapes), options, groups, rules, weights, constants)
        is_ranged = any(task.points for task in tasks)
        if is_ranged and stale:
            raise TreadleError("the model has a range", "tune", "a search, which measures its entries anew")
        if is_predicted and (stale or is_ranged):
            what = "--stale" if stale else "a model with a range"
            raise TreadleError(
                f"{what} needs kernels that are timed", "tune", f"a machine with a GPU for {target.name}"
            )
        own = load_environment().num_threads if scheduler is None else target.cores
        is_here = isinstance(measurer, LocalMeasurer) and not (is_predicted or stale or is_ranged)
        search = Options(
            seconds, own if threads is None else threads, trials, seed, strategy,
            reserved(seconds) if is_here else 0.0, started, how,
        )  # fmt: skip
        folder = Database(Path(database))
        if is_predicted:
            return PredictedTuner(tasks, folder, search, workers, measurer, show, Analytic()).run()
        run = _Run(folder, search, workers, measurer, show)
        if stale:
            return run.remeasured(tasks)
        hardware = workers.machine.hardware
        timer = ModelTimer(Path(model), target, shapes, constants, precision, search.threads, folder, hardware)
        return run.searched(tasks, timer)


@dataclass(frozen=True)
class _Run:
    """What a search is made with: see `Tuner`."""

    database: Database
    options: Options
    workers: Workers
    measurer: Measurer
    show: Show

    def searched(self, tasks: Sequence[GroupTask], timer: ModelTimer) -> list[Group]:
        """The groups after a search; `timer`: times the whole model, if seconds were reserved for that."""
        is_ranged = any(task.points for task in tasks)
        kind = RangedTuner if is_ranged else Tuner
        tuner = kind(tasks, self.database, self.options, self.workers, self.measurer, show=self.show)
        found = tuner.run()
        if self.options.reserved:
            self.measurer.close()  # its process has the device, and the next one wants it
            tuner.confirm_in_model(timer)
        for group in found:
            group.alone = None if self.options.reserved else _why_alone(is_ranged, self.options.seconds)
        return found

    def remeasured(self, tasks: Sequence[GroupTask]) -> list[Group]:
        """The groups of stale entries, whose schedules were timed anew."""
        entries = stale_entries(tasks, self.database, self.workers.machine)
        if not entries:
            return []
        stale = [each.task for each in entries]
        tuner = Tuner(stale, self.database, self.options, self.workers, self.measurer, show=self.show)
        return tuner.remeasure([each.candidate for each in entries])


def _how(measurer: Measurer, target: Target) -> str:
    """How times of a GPU's kernels come about: on which device, or by prediction where none runs the target's code."""
    if not target.is_cuda or not isinstance(measurer, LocalMeasurer):
        return ""
    return PREDICTED if why_no_gpu() is not None else measurer.device(target) or PREDICTED


def _why_alone(is_ranged: bool, seconds: float) -> str:
    """Why a search does not compare whole models."""
    if is_ranged:
        return "the model has a range"
    if seconds < LEAST_SECONDS:
        return f"the search had {seconds:g} seconds; it takes {LEAST_SECONDS:g} or more"
    return "kernels were measured elsewhere"


def _check(seconds: float, trials: int | None, strategy: str) -> None:
    """TreadleError for arguments out of range."""
    if seconds < _LEAST_SECONDS:
        raise TreadleError(f"seconds is {seconds:g}", "tune", f"at least {_LEAST_SECONDS:g}")
    if strategy not in STRATEGIES:
        raise TreadleError(f"there is no strategy {strategy!r}", "tune", list(STRATEGIES))
    if trials is not None and trials < 1:
        raise TreadleError(f"trials is {trials}", "tune", "a number from 1 upwards")


def previews(
    model: str | Path,
    shapes: Shapes | None = None,
    *,
    constants: Constants | None = None,
    groups: Sequence[str] = (),
    precision: str = "f32",
    seed: int = 0,
    strategy: str = next(iter(STRATEGIES)),
    executor: Executor | None = None,
    scheduler: str | None = None,
    target: Target | None = None,
    seconds: float = inf,
) -> Generator[Preview]:
    """What a search would begin with, group by group; arguments as for `tune`. Nothing is built or timed.

    target:  a GPU, which need not be there; default: the workers' processor
    seconds: for all of it but the compiler's passes; groups share them evenly
    """
    options, given = CompileOptions(parse_precision(precision)), normalized(shapes)
    with _workers(executor, scheduler, target) as workers:
        tasks = tasks_of_model(Path(model), workers.machine.target, given, options, groups, constants=constants)
        for task, left in _sharing(tasks, seconds):
            yield preview(task, workers, strategy, seed, left)


def _sharing(tasks: Sequence[GroupTask], seconds: float) -> Iterator[tuple[GroupTask, Left]]:
    """Tasks, each with what says how much is left of its part of the seconds that are left when it begins."""
    end = time.monotonic() + seconds
    for number, task in enumerate(tasks):
        now = time.monotonic()
        until = now + (end - now) / (len(tasks) - number)
        yield task, partial(_until, until)


def _until(end: float) -> float:
    return end - time.monotonic()


@contextmanager
def _workers(executor: Executor | None, scheduler: str | None, target: Target | None) -> Generator[Workers]:
    """The caller's workers, a cluster's, or one of this machine for each core."""
    if scheduler is not None and target is not None and target.is_cuda:
        raise TreadleError("a cluster's workers do not time kernels for GPUs yet", "--scheduler", "--target cpu")
    if scheduler is not None:
        with cluster(scheduler) as workers:
            yield workers
    elif executor is not None:
        if not isinstance(executor, Executor):  # pyright: ignore[reportUnnecessaryIsInstance]  # of untyped callers
            given = f"executor is {type(executor).__name__}"
            raise TreadleError(given, "tune", "a concurrent.futures.Executor on machines like this one")
        yield Workers(executor, this_machine(target))
    else:
        own = ChildPool(available_cores(), _BUILD_SECONDS)
        try:
            yield Workers(own, this_machine(target), own.abandon)
        finally:
            own.shutdown(wait=False)  # what is wanted has ended


def tasks_of_model(
    model: Path,
    target: Target,
    shapes: Shapes,
    options: CompileOptions,
    groups: Sequence[str] = (),
    rules: Sequence[Rule] | None = None,
    weights: Weights | None = None,
    constants: Constants | None = None,
) -> list[GroupTask]:
    """The tasks of the model's groups, or of those whose labels contain one of some words; TreadleError if there are
    none."""
    module = lowered_module(CompileRequest(model, target, shapes, options=options, constants=constants), "fuse")
    written = default_programs if rules is None else partial(programs, rules=rules)
    tasks = tasks_of(module, target, written, weights)
    chosen = [task for task in tasks if not groups or any(word in task.label for word in groups)]
    if not chosen:
        raise TreadleError(f"no group is called {' or '.join(groups)}", model, [task.label for task in tasks])
    return chosen


__all__ = ["previews", "tasks_of_model", "tune"]
