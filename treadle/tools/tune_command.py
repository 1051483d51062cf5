"""`treadle tune`: searches schedules, and shows each group's time and its gain."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from treadle.errors import TreadleError
from treadle.tools.arguments import parse_shapes
from treadle.tuning.model import tune
from treadle.tuning.tuner import Group, model_seconds

_WIDTH = 140
"""Columns if the output is no terminal."""


def tune_command(args: argparse.Namespace) -> int:
    """Tunes a model for this machine. On a terminal the table is updated during the search, else it is printed at the
    end."""
    if args.target not in (None, "cpu"):
        raise TreadleError(f"cannot time kernels for {args.target} here", "--target", "cpu")
    start = time.monotonic()
    console = Console(file=sys.stderr)

    def table(groups: Sequence[Group], current: Group | None = None) -> Table:
        return _table(groups, current, time.monotonic() - start, args.seconds)

    with Live(console=console, auto_refresh=False, transient=True) as live:

        def show(groups: Sequence[Group], current: Group | None) -> None:
            if console.is_terminal:
                live.update(table(groups, current), refresh=True)

        groups = tune(
            args.model, Path(args.database), parse_shapes(args.shape), seconds=args.seconds, trials=args.trials,
            groups=args.groups or (), precision=args.precision or "f32", threads=args.threads, seed=args.seed,
            scheduler=args.scheduler, show=show,
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table(groups))
    return 0


def _table(groups: Sequence[Group], current: Group | None, passed: float, seconds: float) -> Table:
    """A line for each group, in descending order of its time, and the total."""
    default, best = model_seconds(groups)
    trials = sum(group.trials for group in groups)
    left = max(0.0, seconds - passed)
    title = f"kernels {default * 1e3:.2f} -> {best * 1e3:.2f} ms"
    caption = f"{trials} trials, {_clock(passed)} gone" + (f", {_clock(left)} left" if current is not None else "")
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    table.add_column("group", no_wrap=True, overflow="ellipsis")
    for heading in ("count", "share", "ranked", "timed", "rejected", "default us", "best us", "gain"):
        table.add_column(heading, justify="right", no_wrap=True)
    for group in sorted(groups, key=lambda each: -each.task.count * (each.default_seconds or 0.0)):
        table.add_row(*_row(group, default), style="bold" if group is current else None)
    return table


def _row(group: Group, whole: float) -> list[str]:
    first, best = group.default_seconds, group.best_seconds
    share = "" if first is None or not whole else f"{group.task.count * first / whole:.1%}"
    times = ["" if each is None else f"{each * 1e6:.1f}" for each in (first, best)]
    gain = "" if first is None or best is None else f"{first / best:.2f}x"
    counts = [str(group.task.count), share, str(group.ranked), str(group.trials), str(group.failures)]
    return [str(group.task), *counts, *times, gain]


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


__all__ = ["tune_command"]
