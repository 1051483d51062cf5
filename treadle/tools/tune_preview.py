"""`treadle tune --dry-run` and `--explain GROUP`: what a search would try, what is rejected and why, and what the cost
model makes of the rest. Nothing is built or timed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.ledger import Ledger, filled
from treadle.tools.rejection_lines import rejection_lines
from treadle.tuning.preview import Predicted, Preview

_CAPTION = "predicted times; nothing was built or timed"
_SHOWN = 10
"""Candidates of a ranking that are explained."""
_LEAST_SHARE = 0.005
"""Terms of a predicted time that are a smaller part of it are left out."""


def dry_run_table(previews: Iterable[Preview]) -> Table:
    """A line for each group: its candidates, and the predicted times of the default and of the best one drawn."""
    table = Table(caption=_CAPTION, caption_justify="left")
    table.add_column("group", overflow="fold")
    for heading in ("count", "programs", "replayed", "rejected", "ranked", "default us", "best us", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in previews:
        survey, (default, best) = each.survey, (each.default.seconds, each.best.seconds)
        replayed, rejected = survey.ledger.replayed, survey.ledger.rejected
        counts = (each.task.count, len(survey.all), replayed, rejected, len(each.ranked))
        ratio = "" if default is None or best is None else f"{default / best:.2f}x"
        if not each.is_complete:
            table.caption = f"{_CAPTION}; *: the time did not suffice for all that a search looks at (--seconds)"
        table.add_row(
            f"{each.task}{'' if each.is_complete else ' *'}", *map(str, counts), _us(default), _us(best), ratio
        )
    return table


def print_explanation(
    console: Console, preview: Preview, measured: Mapping[Candidate, str], searched: Ledger | None = None
) -> None:
    """Why candidates of a group are rejected, and why the others are ranked as they are.

    measured: of candidates that a database knows, their time in microseconds or why they have none
    searched: what a database knows of candidates that searches have looked at
    """
    for line in _rejections(preview, Ledger() if searched is None else searched):
        console.print(Text(line), soft_wrap=True)
    console.print(_ranking(preview, measured))
    for each in [each for each in preview.ranked if each.error is not None][:_SHOWN]:
        console.print(Text(f"  {each.candidate} cannot be lowered: {each.error}"), soft_wrap=True)


def _rejections(preview: Preview, searched: Ledger) -> Iterator[str]:
    """What searches have counted; of a program that none has looked at, what a sample of its candidates says."""
    survey, task = preview.survey, preview.task
    ledger = filled(searched, survey.ledger)
    yield f"{task}, {task.count} {'group' if task.count == 1 else 'groups'}"
    if not preview.is_complete:
        yield "  the time did not suffice for all that a search looks at (--seconds)"
    for name, size in survey.all.items():
        replayed = ledger.replayed_of(name)
        of = "all" if replayed == size else f"{replayed} drawn"
        of = f"{replayed} that searches have looked at" if name in searched.programs else of
        yield f"  @{name}: {size} candidates; of {of}, {ledger.accepted[name]} are legal"
        yield from rejection_lines(ledger, name)


def _ranking(preview: Preview, measured: Mapping[Candidate, str]) -> Table:
    """The first candidates of the ranking and the default, with the terms of their predicted times."""
    shown = [each for each in preview.ranked if each.error is None][:_SHOWN]
    rows = [("default", preview.default), *((str(n), each) for n, each in enumerate(shown, 1))]
    terms = _terms([each for _, each in rows])
    title = (
        f"the first {len(shown)} of {len(preview.ranked)} that a search draws, by predicted us and what that is made of"
    )
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("rank")
    for heading in ("us", *terms, *(["measured us"] if measured else [])):
        table.add_column(heading, justify="right")
    table.add_column("candidate", overflow="fold")
    for rank, each in rows:
        parts = [_us(each.terms.get(term)) for term in terms]
        known = [measured.get(each.candidate, "")] if measured else []
        table.add_row(rank, _us(each.seconds), *parts, *known, Text(str(each.candidate)))
    return table


def _terms(rows: Sequence[Predicted]) -> list[str]:
    """The terms that matter for some row, in the model's order."""
    names = dict.fromkeys(name for each in rows for name in each.terms)
    return [
        name for name in names if any(each.terms.get(name, 0) > _LEAST_SHARE * (each.seconds or 0) for each in rows)
    ]


def _us(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:.1f}"


__all__ = ["dry_run_table", "print_explanation"]
