"""A progress bar on stderr for work of more than two seconds; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

PATIENCE = 2.0
"""Seconds without a bar."""

Tell = Callable[[str, float], None]


@contextmanager
def progress(console: Console | None = None) -> Generator[Tell]:
    """Yields `tell(what, part)`, to be called with what begins and the part (0 to 1) that is done."""
    screen = Console(file=sys.stderr) if console is None else console
    if not screen.is_terminal:
        yield lambda what, part: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    bar = Progress(*columns, console=screen, transient=True)
    task = bar.add_task("", total=1.0)
    started = time.monotonic()

    def tell(what: str, part: float) -> None:
        bar.update(task, description=what, completed=part)
        if not bar.live.is_started and time.monotonic() - started > PATIENCE:
            bar.start()

    try:
        yield tell
    finally:
        bar.stop()
