"""`treadle tune`: searches schedules, shows each group's time and its gain, explains, and writes reports."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live

from treadle.api import resolve_target
from treadle.errors import TreadleError
from treadle.host import hardware_of, host_target
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.database import Database
from treadle.schedules.search.database_files import open_database, slug
from treadle.schedules.search.ledger import Ledger, total
from treadle.target import Target
from treadle.tools.arguments import parse_shapes, parse_weights
from treadle.tools.model_inputs import read_constants
from treadle.tools.output import output_stream
from treadle.tools.report_data import Report
from treadle.tools.report_page import report_page
from treadle.tools.report_source import database_report, model_report
from treadle.tools.terminal import unescaped
from treadle.tools.tune_preview import dry_run_table, print_explanation
from treadle.tools.tune_table import Budget, limit_warnings, model_lines, search_table, time_warnings
from treadle.tuning.group import Group
from treadle.tuning.model import previews, tune
from treadle.tuning.preview import Preview

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
    if args.target not in (None, "cpu") and not (is_preview and target.is_cuda):
        accepted = "cpu, or a GPU such as sm_80, whose schedules are ranked"
        if not is_preview:
            accepted = "cpu; with --dry-run or --explain also a GPU, whose schedules are ranked"
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
        _check_records(Path(args.database))
    groups = _search(args)
    if not groups:
        print(
            f"nothing is stale: {args.database} has no entry of {args.model} that another version of treadle measured"
        )
    if args.report is not None:
        _write_report(args, groups)
    return 0


def _search(args: argparse.Namespace) -> list[Group]:
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
            weights=parse_weights(args.weights), show=show,
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


def _check_records(folder: Path) -> None:
    """TreadleError if there is nothing that a search on this machine could go on with."""
    here = folder / slug(hardware_of(host_target()))
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


__all__ = ["tune_command"]
