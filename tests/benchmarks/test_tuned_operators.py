"""Times, ratios and errors of tuned operators, and a whole run beside a peer that only speaks TVM's protocol."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks import tuned_operators, tvm_peer
from benchmarks.paper_operators import OPERATORS
from benchmarks.tuned_operators import Tuned, main, means_of, row_of, table_of
from benchmarks.tvm_peer import Searched
from tests.benchmarks.test_tvm_peer import FAKE
from treadle.bench.interleave import Times

TUNED = Tuned(
    "GRP",
    {"default": Times((12e-3, 8e-3), 1), "best": Times((4e-3, 4e-3), 1), "tvm": Times((2e-3, 8e-3), 1)},
    {"best": Searched(200, 61.4), "tvm": Searched(192, 80.0)},
    {"default": 0.0, "best": 1e-7, "tvm": 1e-3},
    ("nest3",),
)


def test_a_row_is_in_milliseconds() -> None:
    row = row_of(TUNED)
    assert row["ms"] == {"default": [12.0, 8.0], "best": [4.0, 4.0], "tvm": [2.0, 8.0]}
    assert row["ratios"] == {"default": 2.5, "tvm": 1.25}
    assert row["searches"] == {"best": [200, 61.4], "tvm": [192, 80.0]}
    assert row["wrong"] == ["tvm"]


def test_an_error_that_is_no_number_is_wrong() -> None:
    assert replace(TUNED, errors={"best": float("nan")}).wrong == ["best"]


def test_a_table_has_a_line_for_each_operator() -> None:
    console = Console(file=StringIO(), width=150)
    console.print(table_of([TUNED, replace(TUNED, times={**TUNED.times, "tvm": Times((1e-3, 1e-3), 1)})], 200))
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue().replace(" ", "")
    assert "│GRP│10.000│4.000│5.000│2.50│1.25│200,61│192,80│1e-03tvm│nest3│" in text
    assert "│geometricmean││││2.50│0.56│" in text
    assert means_of([TUNED]) == {"geometric_means": {"default": 2.5, "tvm": 1.25}}


def test_a_run_beside_a_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer answers with zeros, which is wrong: Treadle's own results are not."""
    small = replace(OPERATORS["SFM"], shapes=OPERATORS["SFM"].small)
    for module in (tuned_operators, tvm_peer):
        monkeypatch.setattr(module, "OPERATORS", {"SFM": small})
    (tmp_path / "worker.py").write_text(FAKE)
    monkeypatch.setattr(tuned_operators, "WORKER", tmp_path / "worker.py")
    monkeypatch.setattr(tuned_operators, "_BATCH_SECONDS", 1e-3)
    words = ["--operators", "SFM", "--trials", "1", "--seconds", "5", "--rounds", "2", "--threads", "1"]
    assert main([*words, "--tvm", sys.executable, "--output", str(tmp_path / "results")]) == 1
    (path,) = (tmp_path / "results").iterdir()
    written = json.loads(path.read_text())
    (row,) = written["results"]
    assert written["peer"] == {"tvm": "fake", "cost_model": "none"}
    assert row["wrong"] == ["tvm"]
    assert row["errors"]["best"] <= 256 * np.finfo(np.float32).eps
    assert row["ms"]["tvm"] == [1e-3, 1e-3]  # what it says of itself
    assert all(second > 0 for side in ("default", "best") for second in row["ms"][side])
