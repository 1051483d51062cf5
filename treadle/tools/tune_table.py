"""The table of a search: a line for each group, what was tried, and what it gained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table

from treadle.tuning.group import Group, model_seconds

_HEADINGS = ("share", "programs", "replayed", "rejected", "built", "timed", "default us", "best us", "ratio")

_NAMED = 3
"""Groups that a warning names."""


@dataclass(frozen=True)
class Budget:
    """What a search may take: seconds, and trials if they are limited."""

    seconds: float
    trials: int | None = None


def search_table(groups: Sequence[Group], current: Group | None, passed: float, budget: Budget) -> Table:
    """The groups in descending order of their part of the model's time; `passed` seconds of the budget are gone.

    `current` is the group that is being tuned; None if the search has ended.
    """
    default, _ = model_seconds(groups)
    table = Table(caption=_caption(groups, current, passed, budget), caption_justify="left")
    table.add_column("group", overflow="fold")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for group in sorted(groups, key=lambda each: -each.task.count * (each.default_seconds or 0.0)):
        table.add_row(*_row(group, default), style="bold" if group is current else None)
    return table


def limit_warnings(groups: Sequence[Group]) -> Iterator[str]:
    """The limits that reject nearly all candidates of a program: the rule that wrote it samples what is not legal."""
    for group in groups:
        ledger = group.search.explored.ledger
        for each in ledger.wasteful:
            of = f"{each.count} of {ledger.replayed_of(each.program)} candidates of @{each.program}"
            yield f"{group.task}: one limit rejects {of}: {each.limit}"


def model_lines(groups: Sequence[Group]) -> Iterator[str]:
    """What the whole model said of the schedules that are faster alone, and the outcome."""
    judged = [group for group in groups if group.in_model is not None]
    for group in judged:
        if group.in_model is not None:
            yield f"{group.task}: {group.in_model.text}"
    yield _outcome(groups, judged)


def _outcome(groups: Sequence[Group], judged: Sequence[Group]) -> str:
    """What of the search is in the database, and what is known of the whole model."""
    kept = [group for group in groups if group.confirmed]
    texts = [each.in_model.model for each in kept or judged if each.in_model is not None and each.in_model.model]
    if not kept:
        tried = f"; with schedules that are faster alone, {texts[-1]}" if texts else ""
        return f"no schedule is better than the default outside the noise: the defaults are kept{tried}"
    schedules = "1 schedule is" if len(kept) == 1 else f"{len(kept)} schedules are"
    if texts:
        return f"{schedules} kept; the whole model: {texts[-1]}"
    why = next((group.alone for group in kept if group.alone is not None), "")
    return f"{schedules} kept, compared with the defaults kernel by kernel, not in the whole model" + (
        f": {why}" if why else ""
    )


def time_warnings(groups: Sequence[Group], *, stale: bool) -> Iterator[str]:
    """The groups that the time did not suffice for, and the entries whose schedules could not be timed anew."""
    for group in groups:
        if group.dropped is not None:
            yield f"{group.task}: the default takes the place of a schedule that cannot be timed: {group.dropped}"
    left = [str(group.task) for group in groups if group.default_seconds is None]
    if left:
        named = ", ".join(left[:_NAMED]) + (f", and {len(left) - _NAMED} others" if len(left) > _NAMED else "")
        yield f"{named}: the time did not suffice" + (", the entries stay stale" if stale else "")


def _row(group: Group, whole: float) -> list[str]:
    first, best = group.default_seconds, group.best_seconds
    share = "" if first is None or not whole else f"{group.task.count * first / whole:.1%}"
    times = ["" if each is None else f"{each * 1e6:.1f}" for each in (first, best)]
    ratio = "" if first is None or best is None else f"{first / best:.2f}x"
    name = f"{group.task}  x{group.task.count}" if group.task.count > 1 else str(group.task)
    counts = (len(group.task.search.programs), group.ranked + group.rejected, group.rejected, group.built, group.trials)
    return [name, share, *map(str, counts), *times, ratio]


def _caption(groups: Sequence[Group], current: Group | None, passed: float, budget: Budget) -> str:
    """How far the search is, and what the kernels take that were timed."""
    default, best = model_seconds(groups)
    trials, failed = sum(group.trials for group in groups), sum(group.failures for group in groups)
    parts = [f"{len(groups)} groups, {trials} trials" + (f" ({failed} failed)" if failed else "")]
    parts.append(f"{clock(passed)} gone of {clock(budget.seconds)}")
    left = _left(trials, passed, budget)
    if current is not None and left is not None:
        parts.append(f"about {clock(left)} to go")
    timed = sum(group.default_seconds is not None for group in groups)
    which = "kernels" if timed == len(groups) else f"kernels of {timed} groups"
    return f"{', '.join(parts)}; {which}, alone: {default * 1e3:.4g} -> {best * 1e3:.4g} ms"


def _left(trials: int, passed: float, budget: Budget) -> float | None:
    """Seconds to the end: of the time, or of the trials at the pace so far, whatever comes first."""
    left = max(0.0, budget.seconds - passed)
    if budget.trials is None or not trials:
        return left
    return min(left, max(0, budget.trials - trials) * passed / trials)


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


__all__ = ["Budget", "clock", "limit_warnings", "model_lines", "search_table", "time_warnings"]
