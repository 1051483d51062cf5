"""Gensor's operators (2025, tables IV to VI) by predicted times, as `benchmarks/walks.py` prints them."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
import pytest

import treadle
from benchmarks import walks
from benchmarks.walks import (
    OPERATORS,
    ablation,
    compared,
    curves,
    exact,
    group_of,
    main,
    metrics,
    without_virtual_threads,
)
from tests.helpers.small_searches import search_little
from treadle.errors import TreadleError
from treadle.schedules.nest.nest import Nest
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.walk import WalkSettings
from treadle.target import Target

SM_89 = Target.parse("sm_89")
FAST = [("sm_89", "P1", 100, 1), ("avx2", "M3", 400, 3)]
"""Targets and operators of the usual suite, the states that their walks predict, and how many walks there are."""


def check(target: str, operator: str, seeds: int, settings: WalkSettings | None = None) -> None:
    """A walk is no worse than as many random draws, in the median, nor than 1.05 times the best of the programs that
    are enumerated, those of templates included."""
    times = compared(operator, Target.parse(target), seeds, settings)
    assert times.walk <= times.random
    assert times.walk <= 1.05 * times.enumerated
    assert times.walk <= times.greedy


OF_TABLE_IV = [name for name in OPERATORS if not name.startswith("U")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "operator"), [*(("sm_89", each) for each in OPERATORS), *(("avx2", each) for each in OF_TABLE_IV)]
)
def test_a_walk_is_no_worse_than_random_draws_greedy_construction_and_enumeration(target: str, operator: str) -> None:
    check(target, operator, seeds=3)


@pytest.mark.parametrize(("target", "operator", "states", "seeds"), FAST)
def test_shorter_walks(target: str, operator: str, states: int, seeds: int) -> None:
    check(target, operator, seeds=seeds, settings=WalkSettings(states=states))


@pytest.mark.slow
@pytest.mark.parametrize("operator", ["M1", "P1"])
def test_the_walk_gains_most_over_the_tree_and_some_by_virtual_threads(operator: str) -> None:
    """Table VI: without the graph, without virtual threads, and both."""
    found = ablation(operator, SM_89, seeds=3)
    tree, plain, walk = (found[name] for name in ("greedy (no graph)", "walk without virtual threads", "walk"))
    assert walk.seconds <= 1.01 * plain.seconds
    assert plain.seconds <= tree.seconds


def test_programs_without_virtual_threads() -> None:
    """Of 100 random states of each program none has some; with the default rules most have."""
    nests = group_of("M3", SM_89).nests
    for task, has_some in ((without_virtual_threads(nests), False), (nests, True)):
        virtual = 0
        for name, sampler in task.samplers.items():
            drawn = (Candidate(name, each) for n in range(20) if (each := sampler.draw(Random(n))) is not None)
            for candidate in drawn:
                with suppress(TreadleError):
                    nest = task.replay(candidate)
                    virtual += isinstance(nest, Nest) and len(nest.virtual) > 0
        assert (virtual > 0) == has_some


def test_the_metrics_of_table_vi(capsys: pytest.CaptureFixture[str]) -> None:
    """A pool moves its bytes at the memory's speed: that bounds the time, and is most of it."""
    main(["--operators", "P1", "--ablation", "--seeds", "1", "--states", "20"])
    methods = capsys.readouterr().out.splitlines()
    assert [line[: line.index(":")] for line in methods] == [
        "P1 greedy (no graph)", "P1 walk without virtual threads", "P1 walk", "P1 walk by printed formulas",
    ]  # fmt: skip
    busy = [float(line.split("memory busy ")[1].split("%")[0]) for line in methods]
    assert all(50 < each <= 100 for each in busy)
    assert all(line.endswith(" 0 bank conflicts") for line in methods)


def test_the_hits_of_table_v_are_those_of_the_emulators_sectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a product whose tiles are whole: each byte of its inputs misses once, whatever else is fetched or stored."""
    monkeypatch.setattr(walks, "OPERATORS", {"U3": lambda: walks._product(96, 32, 80)})
    x, w = (np.ones(shape, np.float32) for shape in ((96, 32), (32, 80)))
    with treadle.compile(walks.OPERATORS["U3"](), "sm_89", device="emulator", counters=True) as model:
        model(x, w)
        (report,) = model.reports
        assert report.counters is not None
        sectors = report.counters.total.global_sectors
    counters = metrics("U3", SM_89, 1, WalkSettings(states=10))["default"]
    assert counters.l2_hits == pytest.approx(1 - (x.nbytes + w.nbytes) / (32 * sectors))


def test_the_metrics_of_table_v(tmp_path: Path) -> None:
    main(["--operators", "M2", "--metrics", "--seeds", "1", "--states", "10", "--output", str(tmp_path)])
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("walks_metrics-")
    rows = json.loads(path.read_text())["results"]
    assert [row["method"] for row in rows] == ["default", "evolution", "walk"]
    for row in rows:
        assert row["flops"] * row["seconds"] == pytest.approx(2 * 65536 * 4 * 1024)
        assert 0 < row["compute"] < row["memory"] <= 1
        # All but the inputs: a megabyte of what moves, of which the result alone is 256.
        assert 255 / 256 < row["l2_hits"] < 1


def test_the_times_of_figure_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search_little(monkeypatch)
    monkeypatch.setattr(walks, "CONSTRUCTED", ("greedy", "evolution"))
    main(["--operators", "P1", "--times", "--seeds", "2", "--target", "avx2", "--output", str(tmp_path)])
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("walks_times-")
    rows = json.loads(path.read_text())["results"]
    assert [row["strategy"] for row in rows] == ["greedy", "evolution"]
    assert all(len(row["seconds"]) == 2 and min(row["seconds"]) > 0 for row in rows)


def test_the_chain_of_a_program_with_few_decisions() -> None:
    """Of V1's rows on the lanes of a CPU's vectors: a walk from the smallest tiles meets the optimum."""
    found = exact(group_of("V1", Target.parse("avx2")).nests, "nest3")
    assert (found.states, found.periods, found.classes) == (96, (2,), 4)
    assert found.reached == pytest.approx(found.optimum)
    assert found.ends <= found.met + 1e-12
    assert found.met == pytest.approx(1, abs=1e-3)
    assert str(found).startswith("96 states, 328 actions, 4 last classes, periods 2; optimum 8,370.0 us")


def test_curves_fall_with_the_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "SECONDS", (0.1, 0.3))
    found = curves(group_of("V1", Target.parse("avx2")).nests, 0)
    assert list(found) == ["greedy", "walk", "evolution", "random"]
    for seconds, bests in found.values():
        assert seconds > 0
        assert len(bests) == 2
        assert bests[1] <= bests[0]


def test_an_ablation_is_of_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--ablation", "--target", "avx2"])
    assert "--ablation and --metrics are of GPUs" in capsys.readouterr().err
