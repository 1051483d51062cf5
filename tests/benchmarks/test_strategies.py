"""The comparison of strategies: curves only fall, and what does not apply has none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import strategies
from benchmarks.strategies import TASKS, Run, line, main, searched, task_of
from treadle.schedules.search.strategies import STRATEGIES
from treadle.target import Target

SLOW = [
    *((target, "nests", name) for target in ("cpu", "sm_80") for name in ("evolution", "evolution-annealed")),
    ("cpu", "nests", "walk-paper"),
    *(("sm_80", "nests", name) for name in ("walk", "walk-paper")),
]
CASES = [
    pytest.param(*task, strategy, marks=[pytest.mark.slow] if (*task, strategy) in SLOW else [])
    for task in TASKS
    for strategy in STRATEGIES
]


@pytest.mark.parametrize(("target", "programs", "strategy"), CASES)
def test_curves_fall(target: str, programs: str, strategy: str) -> None:
    points = searched(task_of((256, 256, 256), Target.parse(target), programs), strategy, 12, 0)
    applies = strategy != "exhaustive" if programs == "nests" else strategy not in ("greedy", "walk", "walk-paper")
    assert bool(points) == applies
    assert [point.trials for point in points] == ([8, 12] if applies else [])
    best = [point.best for point in points]
    assert best == sorted(best, reverse=True)
    assert ("does not apply" in line(Run("", target, programs, strategy, 0, points))) != applies


@pytest.mark.slow
def test_all_points_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(strategies.PRODUCTS, "4096^3", (64, 64, 64))
    path = tmp_path / "runs.json"
    main(["--trials", "4", "--seeds", "1", "--products", "4096^3", "--json", str(path)])
    runs = json.loads(path.read_text())
    tasks = [(run["target"], run["programs"], run["strategy"]) for run in runs]
    assert tasks == [(*task, strategy) for task in TASKS for strategy in STRATEGIES]
    assert len(capsys.readouterr().out.splitlines()) == len(runs)
