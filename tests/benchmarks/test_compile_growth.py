"""The table of how compilation time grows, on models of a few nodes."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.compile_growth import GrowthRow, growth_table, main


def test_rows_have_seconds_and_a_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--models", "chain", "--nodes", "4", "8", "--json", "--output", str(tmp_path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    first, second = shown["results"]
    assert (first["nodes"], first["ratio"], second["nodes"]) == (4, 1.0, 8)
    assert first["cpu_s"] > 0 and first["compiler_s"] > 0 and first["wall_s"] > 0
    assert second["ratio"] == pytest.approx(second["ms_a_node"] / first["ms_a_node"], rel=0.01, abs=1e-3)
    (path,) = tmp_path.glob("compile_growth-*.json")
    assert json.loads(path.read_text())["results"] == shown["results"] and shown["cpu"] and shown["commit"]


def test_a_row_of_the_table() -> None:
    screen = StringIO()
    Console(file=screen, width=120).print(growth_table([GrowthRow("wide", 200, 1.0, 0.5, 2.0, 1.25)], "cpu"))
    cells = [each.strip() for each in screen.getvalue().splitlines()[-2].strip("│").split("│")]
    assert cells == ["wide", "200", "1.00", "0.50", "2.00", "7.50", "1.25"]
