"""A progress bar on stderr for work of more than two seconds; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from treadle.support.output import unescaped
from treadle.support.progress import Progress, no_progress

PATIENCE = 2.0
"""Seconds without a bar."""


@contextmanager
def progress_bar(console: Console | None = None) -> Generator[Progress]:
    """Yields what shows the progress that it is called with."""
    screen = Console(file=unescaped(sys.stderr)) if console is None else console
    if not screen.is_terminal:
        yield no_progress
        return
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    bar = Bar(*columns, console=screen, transient=True)
    task = bar.add_task("", total=1.0)
    started = time.monotonic()

    def show(step: str, fraction: float) -> None:
        bar.update(task, description=step, completed=fraction)
        if not bar.live.is_started and time.monotonic() - started > PATIENCE:
            bar.start()

    try:
        yield show
    finally:
        bar.stop()
