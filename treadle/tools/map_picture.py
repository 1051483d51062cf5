"""The layout of a task mapping's picture: which worker does which task of the grid, and when; no output."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from math import prod

from treadle.dialects.loop.tiles import WARP
from treadle.dialects.task.mapping import Mapping, Task, prove_cover
from treadle.errors import TreadleError

COLOURS = ("#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#99DDFF", "#44BB99", "#BBCC33", "#CCCC99")
"""Backgrounds for black text that colour-blind readers can distinguish, after Paul Tol's scheme 'light'
(https://sronpersonalpages.nl/~pault/)."""
MOST_VISITS = 1 << 20
"""The largest number of tasks, counted once for each worker that does them, of which a picture is made."""
_UNPRINTABLE = re.compile("[^\t\n\u0020-\u007e\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Cell:
    """One task: the workers that do it (several only where the mapping replicates), and its number among their
    tasks."""

    task: Task
    workers: tuple[int, ...]
    step: int
    colour: str

    @property
    def who(self) -> str:
        """The workers in few characters: `3`, `0-3`, `0,4`, `0,4..60`."""
        first, last = self.workers[0], self.workers[-1]
        if len(self.workers) > 2 and last - first == len(self.workers) - 1:
            return f"{first}-{last}"
        if len(self.workers) > 3:
            return f"{first},{self.workers[1]}..{last}"
        return ",".join(map(str, self.workers))


@dataclass(frozen=True)
class Slice:
    """The tasks that share all coordinates but the last two; a grid of one dimension is one row."""

    outer: Task
    rows: tuple[tuple[Cell, ...], ...]

    def route(self, worker: int) -> list[list[Task]]:
        """The route of `worker` through the slice: runs of tasks that it does directly after each other."""
        mine = sorted((c for row in self.rows for c in row if worker in c.workers), key=lambda c: c.step)
        runs: list[list[Task]] = []
        for before, cell in zip([None, *mine], mine, strict=False):
            if before is None or before.step != cell.step - 1:
                runs.append([])
            runs[-1].append(cell.task)
        return [run for run in runs if len(run) > 1]


@dataclass(frozen=True)
class Picture:
    """The picture of one mapping. `left_out` says what is not drawn; it is empty if everything is."""

    title: str
    facts: str
    slices: tuple[Slice, ...]
    left_out: str
    by_warp: bool = False
    """Whether the workers of a warp share a colour: several warps fill the mapping."""

    @property
    def cells(self) -> list[Cell]:
        """Every cell that is drawn."""
        return [cell for part in self.slices for row in part.rows for cell in row]


def picture(mapping: Mapping, limit: int, title: str = "", columns: int | None = None) -> Picture:
    """The picture of `mapping`, of at most `limit` slices, rows and columns (and at most `columns` columns).

    Raises TreadleError for a mapping that is no exact cover, naming the first task, and for one with no tasks or with
    more than MOST_VISITS.
    """
    _check(mapping)
    *outer, rows, width = (1, *mapping.shape) if mapping.rank == 1 else mapping.shape
    shown = _limited(tuple(outer), limit), min(rows, limit), min(width, limit, columns or limit)
    inside = (*(() if mapping.rank == 1 else (shown[1],)), shown[2])
    cells = _cells(mapping, shown[0], inside)
    slices = tuple(
        Slice(
            at,
            tuple(
                tuple(cells[*at, *row, column] for column in range(shown[2]))
                for row in itertools.product(*map(range, inside[:-1]))
            ),
        )
        for at in shown[0]
    )
    left_out = _left_out((prod(outer), rows, width), (len(shown[0]), *shown[1:]), limit)
    return Picture(printable(title), _facts(mapping), slices, left_out, _has_warps(mapping))


def _has_warps(mapping: Mapping) -> bool:
    return mapping.workers > WARP and mapping.workers % WARP == 0


def colour_of(worker: int, by_warp: bool = False) -> str:
    """The colour of a worker, or of its warp: that of the number's digits to the base 8, weighted so that numbers that
    differ by a power of two, which are often neighbours in a grid, seldom share one."""
    weight, total = 1, 0
    worker = worker // WARP if by_warp else worker
    while worker:
        total += weight * (worker % len(COLOURS))
        worker //= len(COLOURS)
        weight = 4 - weight
    return COLOURS[total % len(COLOURS)]


def printable(text: str) -> str:
    """`text` without control characters and those that XML does not allow."""
    return _UNPRINTABLE.sub("\ufffd", text)


def _check(mapping: Mapping) -> None:
    if mapping.rank == 0:
        raise TreadleError(f"{mapping} has no tasks", accepted="a mapping with a shape")
    if max(prod(mapping.shape), mapping.workers * prod(mapping.loops)) > MOST_VISITS:
        raise TreadleError(
            "the mapping has too many tasks to be checked and drawn",
            accepted=f"at most {MOST_VISITS}, counted for each worker that does them",
        )
    failure = prove_cover(mapping)
    if failure is not None:
        raise TreadleError(f"{mapping} is no exact cover: {failure}", accepted="each task done once")


def _limited(outer: tuple[int, ...], limit: int) -> list[Task]:
    return list(itertools.islice(itertools.product(*map(range, outer)), limit))


def _cells(mapping: Mapping, slices: list[Task], inside: tuple[int, ...]) -> dict[Task, Cell]:
    """The cells of some slices whose last coordinates are below `inside`."""
    wanted, depth = set(slices), mapping.rank - len(inside)
    doers: dict[Task, list[int]] = {}
    steps: dict[Task, int] = {}
    for worker in range(mapping.workers):
        for step, task in enumerate(mapping(worker)):
            if task[:depth] in wanted and all(t < d for t, d in zip(task[depth:], inside, strict=True)):
                doers.setdefault(task, []).append(worker)
                steps[task] = step  # replicas differ in nothing but their number, so all of them have this step
    by_warp = _has_warps(mapping)
    return {
        task: Cell(task, tuple(workers), steps[task], colour_of(workers[0], by_warp)) for task, workers in doers.items()
    }


def _facts(mapping: Mapping) -> str:
    shape, steps = " x ".join(map(str, mapping.shape)), prod(mapping.loops)
    workers = "1 worker" if mapping.workers == 1 else f"{mapping.workers} workers"
    return f"{mapping}: {shape} tasks, {workers}, {steps} {'step' if steps == 1 else 'steps'} each"


def _left_out(whole: tuple[int, int, int], shown: tuple[int, int, int], limit: int) -> str:
    names = ("slices", "rows", "columns")
    cut = [f"{name} 0 to {s - 1} of {w}" for name, s, w in zip(names, shown, whole, strict=True) if s < w]
    if not cut:
        return ""
    only_limited = all(s in (w, limit) for s, w in zip(shown, whole, strict=True))
    hint = f"--limit {max(whole)} draws all" if only_limited else "the terminal is too narrow, -o FILE.svg has room"
    return f"only {', '.join(cut)}; {hint}"
