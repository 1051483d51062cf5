"""Tuning reports from what a database holds, and from the groups of a model where there is one."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import numpy as np
from xdsl.dialects.builtin import TensorType

from treadle.dialects.schedule import ProgramOp, UseAttr
from treadle.errors import TreadleError
from treadle.passes.schedule.instance import group_of
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.database import Database, Dispatched, Entry, read_module
from treadle.schedules.search.programs import decisions_of, taken
from treadle.schedules.search.rejections import Ledger, survey, total
from treadle.schedules.search.trials import Trial
from treadle.shapes.decision_tree import tree_text
from treadle.tuning.tasks import GroupTask

# What a tuning report says, as values: of each group what was tried, what was chosen, and how good the model was.


@dataclass(frozen=True)
class Attempt:
    """A candidate that was tried; times in microseconds, or the reason why there is no measured one.

    kind: `default`, `chosen`, `timed` or `failed`
    """

    schedule: str
    kind: str
    round: int
    predicted_us: float | None
    us: float | None
    error: str | None = None


@dataclass(frozen=True)
class Rejection:
    """Candidates of a program that exceed one limit: how many, and the one that does so by least."""

    program: str
    limit: str
    count: int
    example: str


@dataclass(frozen=True)
class GroupReport:
    """One group on one kind of hardware.

    name: label and shapes; count: equal groups of the model; share: of the model's time; both None without a model
    chosen: the schedule that was kept; program: the entry's text
    attempts: in the order in which they were tried, the default first
    rejected: None if nobody counted
    """

    name: str
    anchor: str
    count: int | None
    share: float | None
    default_us: float | None
    best_us: float | None
    chosen: str
    program: str | None
    attempts: tuple[Attempt, ...]
    rejected: tuple[Rejection, ...] | None = None

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the default the best schedule is."""
        return self.default_us / self.best_us if self.default_us and self.best_us else None

    @property
    def compared(self) -> int:
        """Candidates with both times."""
        return len(self._both())

    @property
    def correlation(self) -> float | None:
        """Spearman's rank correlation of predicted and measured times; None for fewer than three."""
        pairs = self._both()
        return rank_correlation([p for p, _ in pairs], [m for _, m in pairs]) if len(pairs) > 2 else None

    @property
    def model_error(self) -> float | None:
        """The median of the factors, at least 1, between predicted and measured times."""
        factors = [max(p / m, m / p) for p, m in self._both()]
        return statistics.median(factors) if factors else None

    def _both(self) -> list[tuple[float, float]]:
        return [(each.predicted_us, each.us) for each in self.attempts if each.predicted_us and each.us]


@dataclass(frozen=True)
class Report:
    """facts: what holds for all groups, such as the machine, each with its name
    damaged: what could not be read of the database, each with its file
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    groups: tuple[GroupReport, ...]
    damaged: tuple[str, ...] = ()


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's: of the ranks, equal values having their mean rank; None if all values of a side are equal."""
    ranks = _ranks(one), _ranks(other)
    if any(np.ptp(each) == 0 for each in ranks):
        return None
    return float(np.corrcoef(*ranks)[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    _, inverse, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


T = TypeVar("T")

_DIGEST = 12
_LIST = re.compile(r"\[([^\[\]]{60,})\]")


@dataclass
class _Readable:
    """What can be read of a database; of the rest, a line that names the file."""

    database: Database
    damaged: dict[str, None] = field(default_factory=dict[str, None])

    def entry(self, digest: str, hardware: str) -> Entry | None:
        return self._or(None, lambda: self.database.find(digest, hardware))

    def trials(self, digest: str, hardware: str) -> list[Trial]:
        return self._or([], lambda: self.database.trials(digest, hardware))

    def searched(self, digest: str, hardware: str, texts: Mapping[str, str] | None = None) -> Ledger:
        """What searches have rejected."""
        return self._or(Ledger(), lambda: total(self.database.ledgers(digest, hardware, texts).values()))

    def _or(self, otherwise: T, read: Callable[[], T]) -> T:
        try:
            return read()
        except TreadleError as error:
            self.damaged[str(error)] = None
            return otherwise


def model_report(model: str, tasks: Sequence[GroupTask], folder: Path, hardware: str, seed: int) -> Report:
    """The groups of a model on one kind of hardware, those that take most of its time first."""
    database = _Readable(Database(folder))
    groups = [_of_task(task, database, hardware, seed) for task in tasks]
    entries = [entry for task in tasks if (entry := database.entry(task.digest, hardware)) is not None]
    default, best = (sum((g.count or 1) * (time(g) or 0.0) for g in groups) for time in (_default, _best))
    facts = [("machine", hardware), *_facts(entries)]
    if default and best:
        facts.append(("kernels", f"{default / 1e3:.4g} -> {best / 1e3:.4g} ms, {default / best:.2f} times as fast"))
        groups = [replace(g, share=(g.count or 1) * (g.default_us or 0.0) / default) for g in groups]
    ordered = tuple(sorted(groups, key=lambda g: -(g.share or 0.0)))
    return Report(f"Tuning of {model}", tuple(facts), ordered, tuple(database.damaged))


def database_report(folder: Path) -> Report:
    """All groups of a database, for every kind of hardware. TreadleError if there are none."""
    database = _Readable(Database(folder))
    found = list(_known(folder))
    if not found:
        raise TreadleError("there are no records", folder, "a database that `treadle tune` wrote")
    groups: list[GroupReport] = []
    entries: list[Entry] = []
    for hardware, name, digest in found:
        entry = database.entry(digest, hardware)
        entries += [] if entry is None else [entry]
        group = _group(_name(entry, name), digest, entry, database.trials(digest, hardware))
        ledger = database.searched(digest, hardware)
        rejected = _rejected(ledger) if ledger.replayed else None
        groups.append(replace(group, anchor=f"{hardware}-{digest}", rejected=rejected))
    machines = {hardware: hardware for hardware, _, _ in found}
    machines |= {entry.path.parent.name: entry.record.hardware for entry in entries}
    facts = (("machine" if len(machines) == 1 else "machines", "; ".join(machines.values())), *_facts(entries))
    ordered = tuple(sorted(groups, key=lambda g: -(g.default_us or 0.0)))
    return Report(f"Tuned schedules in {folder}", facts, ordered, tuple(database.damaged))


def _of_task(task: GroupTask, database: _Readable, hardware: str, seed: int) -> GroupReport:
    entry = database.entry(task.digest, hardware)
    group = _group(str(task), task.digest, entry, database.trials(task.digest, hardware))
    programs = task.search.by_name
    searched = database.searched(task.digest, hardware, task.texts).of(programs)
    others = tuple(program for name, program in programs.items() if name not in searched.programs)
    surveyed = survey(Task(task.search.anchor, task.search.target, others), seed).ledger
    rejected = _rejected(total([searched, surveyed]))
    chosen = task.default if entry is None else _candidate(entry)
    if chosen.program in programs and (entry is None or isinstance(entry.schedule, UseAttr)):
        with suppress(TreadleError):  # an edited entry's choices may be none of the program's: its text stays
            group = replace(group, chosen=_abridged(_text(programs[chosen.program], chosen)))
    return replace(group, count=task.count, rejected=rejected)


def _text(program: ProgramOp, chosen: Candidate) -> str:
    """A program with the decisions that it has samples for."""
    known = {sample.label.data for sample in program.samples}
    return str(taken(program, {name: value for name, value in chosen.decisions.items() if name in known}))


def _rejected(ledger: Ledger) -> tuple[Rejection, ...]:
    """Why candidates were rejected, that of the closest one in its own words."""
    return tuple(
        Rejection(each.program, each.limit, each.count, f"{each.closest}: {each.reason}") for each in ledger.rejections
    )


def _abridged(program: str) -> str:
    """A program's text, of long lists of values the first and the last."""
    return _LIST.sub(lambda found: f"[{_ends(found[1].split(', '))}]", program)


def _ends(words: Sequence[str]) -> str:
    return ", ".join((*words[:6], "...", words[-1]))


def _group(name: str, digest: str, entry: Entry | None, trials: Sequence[Trial]) -> GroupReport:
    default = next((trial for trial in trials if trial.round == 0), None)
    default_us = default.us if entry is None and default is not None else None
    best_us = default_us
    if entry is not None:
        default_us, best_us = entry.record.default_us, entry.record.us
    times = _comparable(trials)
    attempts = tuple(_attempt(trial, us, entry) for trial, us in zip(trials, times, strict=True))
    if entry is not None:
        chosen = str(entry.schedule)
        if isinstance(entry.schedule, Dispatched):
            chosen = "\n".join([tree_text(entry.schedule.tree), *map(str, entry.schedule.kernels)])
    else:
        chosen = "none: nothing was timed" if default is None else str(Candidate(default.program, default.decisions))
    text = None if entry is None else entry.path.read_text()
    return GroupReport(name, f"group-{digest}", None, None, default_us, best_us, chosen, text, attempts)


def _comparable(trials: Sequence[Trial]) -> list[float | None]:
    """Times that can be compared, in microseconds: a trial's is relative to that of the best one so far, which was
    timed together with it. Between two rounds the machine may have become slower."""
    best: float | None = None
    found: list[float | None] = []
    for _, group in groupby(trials, lambda trial: trial.round):
        before = best
        for trial in group:
            time = trial.us
            if time is not None and before is not None and trial.reference_us:
                time = time / trial.reference_us * before
            found.append(time)
            best = min((each for each in (best, time) if each is not None), default=None)
    return found


def _attempt(trial: Trial, us: float | None, entry: Entry | None) -> Attempt:
    candidate = Candidate(trial.program, trial.decisions)
    kind = "default" if trial.round == 0 else "timed"
    if trial.us is None:
        kind = "failed"
    elif entry is not None and _is_chosen(candidate, entry):
        kind = "chosen"
    return Attempt(str(candidate), kind, trial.round, trial.predicted_us, us, trial.error)


def _is_chosen(candidate: Candidate, entry: Entry) -> bool:
    """Whether a candidate gives the entry's schedule: a template's knobs that follow are no decisions."""
    chosen = _candidate(entry)
    decisions = {name: chosen.decisions.get(name) for name in candidate.decisions}
    return candidate.program == chosen.program and decisions == dict(candidate.decisions)


def _candidate(entry: Entry) -> Candidate:
    schedule = entry.schedule
    if isinstance(schedule, Dispatched):
        schedule = schedule.kernels[0]
    if isinstance(schedule, ProgramOp):
        return Candidate(schedule.sym_name.data, decisions_of(schedule))
    return Candidate(schedule.template.data, schedule.knobs())


def _known(folder: Path) -> Iterator[tuple[str, str, str]]:
    """The folder of the hardware, the label and the digest of each group that has an entry or records."""
    paths = sorted(folder.glob("*/*.jsonl")) + sorted(folder.glob("*/*.mlir"))
    yield from dict.fromkeys(
        (path.parent.name, path.stem[: -_DIGEST - 1], path.stem[-_DIGEST:])
        for path in paths
        if path.stem[-_DIGEST - 1 : -_DIGEST] == "-" and not path.name.startswith(".")
    )


def _name(entry: Entry | None, label: str) -> str:
    """The label, and where there is an entry the shapes of the results."""
    if entry is None:
        return label
    group = group_of(read_module(entry.path))
    shapes = ("x".join(map(str, t.get_shape())) for t in group.outputs.types if isinstance(t, TensorType))
    return f"{group.label.data} {' x '.join(shapes)}"


def _facts(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    """What the entries' records say besides times, each value once."""
    names = (("compiler", "compiler"), ("sources", "sources"), ("measured", "date"))
    found = ((name, dict.fromkeys(str(getattr(entry.record, field)) for entry in entries)) for name, field in names)
    return [(name, ", ".join(values)) for name, values in found if values]


def _default(group: GroupReport) -> float | None:
    return group.default_us


def _best(group: GroupReport) -> float | None:
    return group.best_us
