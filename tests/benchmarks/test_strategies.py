"""The comparison of strategies: curves only fall, and what does not apply has none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import strategies
from benchmarks.strategies import Run, line, main, searched, task_of
from treadle.schedules.search.strategies import STRATEGIES
from treadle.target import Target

SLOW = ("cpu", "evolution")
CASES = [
    pytest.param(target, strategy, marks=[pytest.mark.slow] if (target, strategy) == SLOW else [])
    for target in ("cpu", "sm_80")
    for strategy in STRATEGIES
]


@pytest.mark.parametrize(("target", "strategy"), CASES)
def test_curves_fall(target: str, strategy: str) -> None:
    points = searched(task_of((256, 256, 256), Target.parse(target)), strategy, 12, 0)
    applies = (target, strategy) not in [("cpu", "exhaustive"), ("sm_80", "walk")]
    assert bool(points) == applies
    assert [point.trials for point in points] == ([8, 12] if applies else [])
    best = [point.best for point in points]
    assert best == sorted(best, reverse=True)
    assert ("does not apply" in line(Run("", target, strategy, 0, points))) != applies


@pytest.mark.slow
def test_all_points_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(strategies.PRODUCTS, "4096^3", (64, 64, 64))
    path = tmp_path / "runs.json"
    main(["--trials", "4", "--seeds", "1", "--products", "4096^3", "--json", str(path)])
    runs = json.loads(path.read_text())
    assert [(run["target"], run["strategy"]) for run in runs] == [(t, s) for t in ("cpu", "sm_80") for s in STRATEGIES]
    assert len(capsys.readouterr().out.splitlines()) == len(runs)
