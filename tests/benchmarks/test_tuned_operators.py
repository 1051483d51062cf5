"""The sums and ratios of tuned operators."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from benchmarks.tuned_operators import Tuned, row_of, table_of

TUNED = Tuned("GRP", 12e-3, 1.5e-3, 200, ("nest3",))


def test_a_row_is_in_milliseconds() -> None:
    row = {"operator": "GRP", "default_ms": 12.0, "best_ms": 1.5, "ratio": 8.0, "trials": 200, "programs": ["nest3"]}
    assert row_of(TUNED) == row


def test_a_table_has_a_line_for_each_operator() -> None:
    console = Console(file=StringIO(), width=120)
    console.print(table_of([TUNED], 200))
    assert isinstance(console.file, StringIO)
    assert "GRP grouped convolution │  12.000 │ 1.500 │  8.00 │    200 │ nest3" in console.file.getvalue()
