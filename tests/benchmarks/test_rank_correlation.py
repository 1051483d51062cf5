"""The table of rank correlations: by hand on three kernels, and from a database's records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.rank_correlation import main, quality, table
from treadle.host import hardware_of, host_target
from treadle.schedules.search.database import Database
from treadle.schedules.search.learned import Learned
from treadle.schedules.search.trials import Trial
from treadle.schedules.search.work import Body, Reuse, Work
from treadle.target import Target

CPU = Target.parse("cpu")
WORK = Work(4, 1, (Body(1000.0, 8.0, 4.0, 1.0),), (Reuse(0.0, 1024.0),), 2.0)
KERNELS = [replace(WORK, bodies=(Body(executions, 8.0, 4.0, 1.0),)) for executions in (1e3, 1e4, 1e5, 1e6)]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0], (1.0, 1.0)),
        ([4.0, 3.0, 2.0, 1.0], (-1.0, 4.0)),
        ([2.0, 1.0, 3.0, 4.0], (0.8, 2.0)),
        ([1.0, 1.0, 3.0, 3.0], (0.8944, 1.0)),
    ],
)
def test_a_ranking_by_hand(seconds: list[float], expected: tuple[float, float]) -> None:
    """Spearman's; the last one has two pairs of equal times: 4 / sqrt(5 * 4)."""
    assert quality(Learned(), list(zip(KERNELS, seconds, strict=True)), CPU) == pytest.approx(expected, abs=1e-4)


def test_each_group_has_a_line_and_all_have_a_median() -> None:
    groups = {
        name: list(zip(KERNELS, times, strict=True)) for name, times in (("a", [1, 2, 3, 4]), ("b", [4, 3, 2, 1]))
    }
    lines = table({name: [(w, float(t)) for w, t in each] for name, each in groups.items()}, CPU).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["a", "b", "median"]
    assert lines[3] == "| b | 4 | -1.00 | -1.00 | 4.00x | 4.00x |"
    assert lines[4] == "| median | 8 | 0.00 | 0.00 | 2.50x | 2.50x |"


def test_a_database_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trials = [Trial("p", {"n": n}, us=float(n), work=KERNELS[n % 4]) for n in range(1, 13)]
    Database(tmp_path).add_trials("0" * 12, "matmul", hardware_of(host_target()), trials)
    main([str(tmp_path)])
    assert f"| matmul-{'0' * 12} | 12 |" in capsys.readouterr().out
