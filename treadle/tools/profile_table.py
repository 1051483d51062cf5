"""The emulator's counters, as one table for each kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from treadle.backends.cuda.emulator import Counters, LineCounters, Report

_PRINTED_WIDTH = 118
"""Columns where the output is no terminal."""
_FEWEST_OF_TEXT = 16


@dataclass(frozen=True)
class _Column:
    heading: str
    value: Callable[[LineCounters], int | None]
    show: Callable[[LineCounters], str]


def print_profile(reports: Sequence[Report]) -> None:
    """Prints the counters of each kernel; launches of a kernel that counted the same share a table."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PRINTED_WIDTH)
    counted = ((report.kernel, report.counters) for report in reports)
    launches = Counter((kernel, counters) for kernel, counters in counted if counters is not None)
    for (kernel, counters), times in launches.items():
        blocks, threads = (" x ".join(map(str, extents)) for extents in (counters.grid, counters.block))
        count = "1 launch" if times == 1 else f"{times} launches, each"
        console.print(f"\n{kernel}: {count} of {blocks} blocks of {threads} threads", markup=False, soft_wrap=True)
        console.print(profile_table(counters, console.width))


def profile_table(counters: Counters, width: int) -> Table:
    """A row for the total and one for each line, in the text's order; columns of zeros are left out."""
    rows = [counters.total, *counters.lines]
    columns = [column for column in _COLUMNS if column.value(rows[0]) != 0]
    cells = [[column.show(row) for column in columns] for row in rows]
    names = ["total", *(str(row.line or "?") for row in counters.lines)]
    taken = max(map(len, names)) + sum(_widest(column, cells, n) + 1 for n, column in enumerate(columns)) + 2
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("line", justify="right", no_wrap=True)
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    table.add_column(" text", no_wrap=True)
    for name, row, shown in zip(names, rows, cells, strict=True):
        table.add_row(
            name, *shown, Text(" " + _shortened(counters.text(row.line), max(width - taken, _FEWEST_OF_TEXT)))
        )
    return table


def _widest(column: _Column, cells: Sequence[Sequence[str]], number: int) -> int:
    return max(*(len(part) for part in column.heading.split("\n")), *(len(row[number]) for row in cells))


def _shortened(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"


def _number(number: int | None) -> str:
    """Exact up to six digits, then four of them; nothing for zero."""
    if number is None:
        return "?"
    if number == 0:
        return ""
    for factor, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M")):
        if number >= factor:
            return f"{number / factor:.4g}{unit}"
    return str(number)


def _column(heading: str, value: Callable[[LineCounters], int | None]) -> _Column:
    return _Column(heading, value, lambda row: _number(value(row)))


def _each(heading: str, value: Callable[[LineCounters], int]) -> _Column:
    """A count for each access of a warp to global memory."""

    def show(row: LineCounters) -> str:
        return f"{value(row) / row.global_requests:.2f}" if row.global_requests else ""

    return _Column(heading, value, show)


_COLUMNS = (
    _column("global\naccesses", lambda row: row.global_requests),
    _each("sectors\neach", lambda row: row.global_sectors),
    _each("ideal\neach", lambda row: row.global_ideal),
    _column("bytes\nread", lambda row: row.global_read),
    _column("bytes\nwritten", lambda row: row.global_written),
    _column("shared\naccesses", lambda row: row.shared_requests),
    _column("bank\nconflicts", lambda row: row.bank_conflicts),
    _column("bytes\nread", lambda row: row.shared_read),
    _column("bytes\nwritten", lambda row: row.shared_written),
    _column("flop", lambda row: row.operations),
    _column("special", lambda row: row.special),
    _column("barriers", lambda row: row.barriers),
    _column("waits", lambda row: row.waits),
)
