"""`treadle.tune`: searches schedules for all kernels of a model, on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path

from treadle.compile_options import CompileOptions, parse_precision
from treadle.compile_request import CompileRequest, lowered_module
from treadle.environment import available_cores, load_environment
from treadle.errors import TreadleError
from treadle.host import host_target
from treadle.schedules.search.database import Database
from treadle.shapes import Shapes, normalized
from treadle.target import Target
from treadle.tuning.tasks import Task, tasks_of
from treadle.tuning.tuner import Group, Options, Show, Tuner

_LEAST_SECONDS = 1.0


def tune(
    model: str | Path,
    database: str | Path,
    shapes: Shapes | None = None,
    *,
    seconds: float = 900.0,
    trials: int | None = None,
    groups: Sequence[str] = (),
    precision: str = "f32",
    threads: int | None = None,
    seed: int = 0,
    executor: Executor | None = None,
    show: Show = lambda groups, current: None,
) -> list[Group]:
    """Searches schedules for a model's kernels on this machine's processor, and writes those that are faster to a
    database.

    model:    path of an .onnx file
    database: folder of tuned schedules, created if it is missing; pass it to `compile(..., database=...)`
    shapes:   as for `compile`
    seconds:  limit of the whole search; it ends earlier when all candidates were tried
    trials:   limit of the number of candidates that are timed
    groups:   tune only groups whose label contains one of these words; default: all
    threads:  of a call; default: the variable TREADLE_NUM_THREADS
    seed:     of the random choice of candidates
    executor: where candidates are built; default: a process for each core
    show:     called with all groups, and the one that is being tuned, after each change

    Every candidate is compared with the group's definition in float64 before it is timed. Raises TreadleError for
    arguments out of range, and what `compile` raises.
    """
    if seconds < _LEAST_SECONDS:
        raise TreadleError(f"seconds is {seconds:g}", "tune", f"at least {_LEAST_SECONDS:g}")
    if trials is not None and trials < 1:
        raise TreadleError(f"trials is {trials}", "tune", "a number from 1 upwards")
    target, options = host_target(), CompileOptions(parse_precision(precision))
    tasks = tasks_of_model(Path(model), target, normalized(shapes), options, groups)
    workers = load_environment().num_threads if threads is None else threads
    pool = ProcessPoolExecutor(available_cores(), get_context("spawn")) if executor is None else nullcontext(executor)
    with pool as builders:
        tuner = Tuner(
            tasks, target, Database(Path(database)), Options(seconds, workers, trials, seed), builders, show=show
        )
        return tuner.run()


def tasks_of_model(
    model: Path, target: Target, shapes: Shapes, options: CompileOptions, groups: Sequence[str] = ()
) -> list[Task]:
    """The tasks of the model's groups, or of those whose labels contain one of some words; TreadleError if there are
    none."""
    module = lowered_module(CompileRequest(model, target, shapes, options=options), "fuse")
    tasks = tasks_of(module)
    chosen = [task for task in tasks if not groups or any(word in task.label for word in groups)]
    if not chosen:
        raise TreadleError(f"no group is called {' or '.join(groups)}", model, [task.label for task in tasks])
    return chosen


__all__ = ["tasks_of_model", "tune"]
