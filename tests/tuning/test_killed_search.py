"""SIGKILL at random moments: the search that goes on afterwards ends with the records of one that nobody killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.waiting import HANGS
from tests.tuning.small_model import write_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("moments", "groups"), [(3, ["softmax"]), pytest.param(10, ["softmax", "matmul"], marks=pytest.mark.slow)]
)
def test_a_killed_search_goes_on(tmp_path: Path, moments: int, groups: list[str]) -> None:
    model, database, whole = write_model(tmp_path / "m.onnx"), tmp_path / "db", tmp_path / "whole"
    command = [sys.executable, "-m", "tests.tuning.killed_search", str(model), str(database), str(moments), *groups]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * HANGS)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= moments // 3, "most searches ended before they were killed"
    assert files(database) == files(whole)
    assert any(name.endswith(".jsonl") for name in files(whole))


def files(folder: Path) -> dict[str, bytes]:
    """All of a folder by name: records, entries, and whatever else was left."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
