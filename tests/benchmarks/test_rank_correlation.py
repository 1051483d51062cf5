"""The table of rank correlations: by hand on three kernels, and from a database's records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from benchmarks.rank_correlation import LEAST_TRIALS, Group, main, quality, table
from treadle.errors import TreadleError
from treadle.schedules.search.database import Database
from treadle.schedules.search.learned import Learned
from treadle.schedules.search.trials import Trial
from treadle.schedules.work.cpu_work import Body, Reuse, Work
from treadle.target import Target
from treadle.target.host import hardware_of, host_target

CPU = Target.parse("cpu")
RECORDS = Path(__file__).parents[2] / "benchmarks/records/random"
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
    found = quality(Learned(), list(zip(KERNELS, seconds, strict=True)), CPU)
    assert (found.correlation, found.favourite) == pytest.approx(expected, abs=1e-4)


def group(folder: str, name: str, times: list[float]) -> Group:
    return Group(folder, f"{name}-{name * 12}", list(zip(KERNELS, times, strict=True)))


def test_each_group_has_a_line_and_all_have_a_median() -> None:
    groups = [group("x", "a", [1, 2, 3, 4]), group("x", "b", [4, 3, 2, 1])]
    lines = table(groups, CPU).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["a-" + "a" * 12, "b-" + "b" * 12, "median"]
    assert lines[3] == f"| b-{'b' * 12} | 4 | -1.00 | -1.00 | - | 4.00x | 4.00x | - |"
    assert lines[4] == "| median | 8 | 0.00 | 0.00 | - | 2.50x | 2.50x | - |"


def test_a_group_is_not_learned_from_where_it_is_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not under another name in another database either; what is learned from the other databases is a column."""
    learned: list[list[str]] = []

    def learn(self: Learned, results: dict[str, list[tuple[Work, float]]], target: Target) -> None:
        learned.append(sorted(name[0] for name in results))

    monkeypatch.setattr(Learned, "learn", learn)
    same = [group("x", "a", [1, 2, 3, 4]), group("x", "b", [1, 2, 3, 4]), group("y", "a", [1, 2, 3, 4])]
    lines = table([*same, group("y", "c", [4, 3, 2, 1])], CPU).splitlines()
    assert learned == [["b", "c"], ["c"], ["a", "c"], ["a", "c"], ["b", "c"], ["b"], ["a", "b"], ["a", "b"]]
    assert lines[-3:] == [
        "| median of x | 8 | 1.00 | 1.00 | 1.00 | 1.00x | 1.00x | 1.00x |",
        "| median of y | 8 | 0.00 | 0.00 | 0.00 | 2.50x | 2.50x | 2.50x |",
        "| median | 16 | 1.00 | 1.00 | 1.00 | 1.00x | 1.00x | 1.00x |",
    ]


TRIALS = [Trial("p", {"n": n}, us=float(n), work=KERNELS[n % 4]) for n in range(1, 13)]


def test_a_database_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Database(tmp_path).add_trials("0" * 12, "matmul", hardware_of(host_target()), TRIALS)
    main([str(tmp_path)])
    assert f"| matmul-{'0' * 12} | 12 |" in capsys.readouterr().out


def test_each_machine_has_a_table_and_its_own_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for model, machine in (("x", "one"), ("x", "two"), ("y", "two")):
        Database(tmp_path / model).add_trials("0" * 12, model, machine, TRIALS)
    for machine in ("one", "two"):
        Database(tmp_path / "x").keep_target(machine, replace(CPU, l2_bytes=CPU.l2_bytes * 2))
    main([str(tmp_path / "x"), str(tmp_path / "y")])
    one, two = capsys.readouterr().out.split("two\n")
    assert one.startswith("one\n")
    assert [text.count("-000000000000 |") for text in (one, two)] == [1, 2]


def test_records_of_an_unknown_machine_are_rejected(tmp_path: Path) -> None:
    Database(tmp_path).add_trials("0" * 12, "matmul", "another machine", TRIALS)
    with pytest.raises(TreadleError, match="the records of another-machine do not say what target it is"):
        main([str(tmp_path)])


def test_the_analytic_model_ranks_the_records_that_are_kept() -> None:
    """The median of all groups is 0.7 or more, which docs/tuning.md claims; each record's work is one of today's."""
    found: list[float] = []
    for folder in sorted(RECORDS.iterdir()):
        database = Database(folder)
        for hardware in database.measured():
            target = database.target(hardware)
            assert target is not None
            groups = database.measured_works(hardware).values()
            found += [quality(Learned(), each, target).correlation for each in groups if len(each) >= LEAST_TRIALS]
    assert len(found) >= 11
    assert median(found) >= 0.7
