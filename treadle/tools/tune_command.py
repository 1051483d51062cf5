"""`treadle tune`: searches schedules, shows each group's time and its gain, explains, and writes reports."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from treadle.api import resolve_target
from treadle.errors import TreadleError
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.database import Database
from treadle.schedules.search.database_files import open_database, slug
from treadle.schedules.search.rejections import Ledger, filled, rejection_lines, total
from treadle.support.output import output_stream, unescaped
from treadle.target import Target
from treadle.target.host import hardware_of
from treadle.tools.arguments import parse_shapes, parse_weights, read_constants
from treadle.tools.report_page import report_page
from treadle.tools.report_source import Report, database_report, model_report
from treadle.tuning.group_search import Group, model_seconds
from treadle.tuning.model import previews, tune
from treadle.tuning.preview import Predicted, Preview

# The table of a search: a line for each group, what was tried, and what it gained.

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
    if any(group.is_predicted for group in groups):
        count = f"{len(kept)} schedule{' is' if len(kept) == 1 else 's are'}"
        return f"{count} predicted to be faster than the default, and kept; nothing was built or timed"
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
    if any(group.is_predicted for group in groups):
        return f"{', '.join(parts)}; predicted, alone: {default * 1e3:.4g} -> {best * 1e3:.4g} ms"
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


# `treadle tune --dry-run` and `--explain GROUP`: what a search would try, what is rejected and why, and what the cost
# model makes of the rest. Nothing is built or timed.

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


_WIDTH, _WIDE = 1000, 220
"""Columns if the output is no terminal: as many as a table takes; and of an explanation, which is folded."""
_SEARCHED_SECONDS, _RANKED_SECONDS = 900.0, 60.0
"""Of a search and of a ranking, unless --seconds is given."""


def tune_command(args: argparse.Namespace) -> int:
    """Tunes a model for this machine, or says what a search would do.

    Without a model it writes the report of a database. On a terminal the table is updated during the search, else it is
    printed at the end.
    """
    is_preview = args.explain is not None or args.dry_run
    target = resolve_target(args.target or "cpu")
    if args.target not in (None, "cpu") and not target.is_cuda:
        accepted = "cpu, cuda, or a GPU such as sm_80"
        raise TreadleError(f"cannot time kernels for {args.target} here", "--target", accepted)
    if args.seconds is None:
        args.seconds = _RANKED_SECONDS if is_preview else _SEARCHED_SECONDS
    if args.stale:
        _check_stale(args)
    if args.model is None:
        return _report_database(args)
    if is_preview:
        return _preview(args, target)
    if args.resume:
        _check_records(Path(args.database), target)
    groups = _search(args, target)
    if not groups:
        print(
            f"nothing is stale: {args.database} has no entry of {args.model} that another version of treadle measured"
        )
    if args.report is not None:
        _write_report(args, groups)
    return 0


def _search(args: argparse.Namespace, target: Target) -> list[Group]:
    start, budget = time.monotonic(), Budget(args.seconds, args.trials)
    console = Console(file=unescaped(sys.stderr))
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def show(groups: Sequence[Group], current: Group | None) -> None:
            if console.is_terminal:
                live.update(search_table(groups, current, time.monotonic() - start, budget), refresh=True)

        groups = tune(
            args.model, Path(args.database), parse_shapes(args.shape), constants=read_constants(args.input),
            seconds=args.seconds, trials=args.trials,
            groups=args.groups or (), precision=args.precision or "f32", threads=args.threads, seed=args.seed,
            strategy=args.strategy, scheduler=args.scheduler, stale=args.stale,
            weights=parse_weights(args.weights), target=target, show=show,
        )  # fmt: skip
    if not groups:
        return []
    _console().print(search_table(groups, None, time.monotonic() - start, budget))
    for line in model_lines(groups):
        print(line)
    for line in (*limit_warnings(groups), *time_warnings(groups, stale=args.stale)):
        print(f"warning: {line}", file=sys.stderr)
    return groups


def _preview(args: argparse.Namespace, target: Target) -> int:
    """What a search would do, of all groups as a table, or of some in detail."""
    words = [args.explain] if args.explain is not None else args.groups or ()
    found = previews(
        args.model, parse_shapes(args.shape), constants=read_constants(args.input), groups=words,
        precision=args.precision or "f32", seed=args.seed, strategy=args.strategy, scheduler=args.scheduler,
        target=target, seconds=args.seconds,
    )  # fmt: skip
    if args.explain is None:
        _console().print(dry_run_table(_shown(found)))
        return 0
    console = _console(_WIDE)
    for each in found:
        print_explanation(console, each, *_known(Path(args.database), each, target))
    return 0


def _shown(found: Iterable[Preview]) -> list[Preview]:
    """All previews; on a terminal, those that there are are shown meanwhile."""
    console, previews = Console(file=sys.stderr), list[Preview]()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for each in found:
            previews.append(each)
            if console.is_terminal:
                live.update(dry_run_table(previews), refresh=True)
    return previews


def _known(folder: Path, preview: Preview, target: Target) -> tuple[Mapping[Candidate, str], Ledger]:
    """What a database knows of a group's candidates on this hardware: those that were measured, and the rejected."""
    if not folder.is_dir():
        return {}, Ledger()
    database, key = Database(folder), (preview.task.digest, hardware_of(target))
    measured = {
        Candidate(trial.program, trial.decisions): f"{trial.us:.1f}" if trial.us is not None else str(trial.error)
        for trial in database.trials(*key)
    }
    return measured, total(database.ledgers(*key, preview.task.texts).values())


def _check_stale(args: argparse.Namespace) -> None:
    """TreadleError for what measuring anew cannot be asked for together with, and for a database that is not there."""
    given = {"--dry-run": args.dry_run, "--explain": args.explain, "--resume": args.resume, "--report": args.report}
    for name, value in given.items():
        if value:
            raise TreadleError(f"{name} is given", "--stale", f"--stale without {name}")
    if args.model is None:
        raise TreadleError("there is no model", "--stale", "the model whose entries are measured anew")
    open_database(Path(args.database))


def _check_records(folder: Path, target: Target) -> None:
    """TreadleError if there is nothing that a search for this target could go on with."""
    here = folder / slug(hardware_of(target))
    if not any(here.glob("*.jsonl")):
        raise TreadleError("there are no records of an interrupted search", here, "the same command without --resume")


def _write_report(args: argparse.Namespace, groups: Sequence[Group]) -> None:
    name, tasks = Path(args.model).name, [group.task for group in groups]
    _write_page(args, model_report(name, tasks, Path(args.database), groups[0].hardware, args.seed))


def _report_database(args: argparse.Namespace) -> int:
    if args.report is None:
        raise TreadleError("there is no model", "tune", "a model to tune, or --report FILE for what a database holds")
    _write_page(args, database_report(Path(args.database)))
    return 0


def _write_page(args: argparse.Namespace, report: Report) -> None:
    page = report_page(report)
    for line in report.damaged:
        print(f"warning: left out of the report: {line}", file=sys.stderr)
    with output_stream(args.report) as stream:
        stream.write(page)


def _console(width: int = _WIDTH) -> Console:
    return Console(width=None if sys.stdout.isatty() else width, highlight=False)
