"""A layer over a range of lengths, with default and with constructed schedules."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.dynamic_lengths import DYNAMIC, PEER, main


def test_constructed_schedules_are_sides_of_their_own(tmp_path: Path) -> None:
    """Their results are compared with the peer's before anything is timed."""
    words = ["--models", "nt", "--onnx", str(tmp_path / "onnx"), "--output", str(tmp_path / "results")]
    brief = ["--longest", "3", "--lengths", "1", "--seconds", "0.01", "--turn", "0.001", "--compilations", "1"]
    assert main([*words, *brief, "--threads", "1", "--shapes", "2", "--construct", "greedy"]) == 0
    (path,) = (tmp_path / "results").iterdir()
    (row,) = json.loads(path.read_text())["results"]
    assert {DYNAMIC, PEER, "greedy"} <= row["ms"].keys()
