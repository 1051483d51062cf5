"""`treadle tune`: the table of a search, what a dry run and an explanation say, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tests.tuning.small_model import write_model
from treadle.dialects.schedule import ProgramOp
from treadle.schedules.rules.templates import templates
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.database import Database, read_entry
from treadle.schedules.search.evolution import Evolution, Settings
from treadle.schedules.search.rejections import Ledger, Rejection
from treadle.schedules.search.strategies import STRATEGIES
from treadle.schedules.search.trials import Trial
from treadle.target.host import hardware_of, host_target
from treadle.target.options import CompileOptions
from treadle.tools.treadle_cli import main
from treadle.tools.tune_command import Budget, limit_warnings, search_table
from treadle.tuning.group_search import Group
from treadle.tuning.model import tasks_of_model

PATIENT = ("--seconds", "1e6")
"""As much time as a ranking takes, however busy the machine is."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.onnx")


def columns(line: str) -> list[str]:
    return [word.strip() for word in line.strip("│").split("│")]


def printed(groups: list[Group], current: Group | None, passed: float, budget: Budget) -> list[str]:
    """The lines of a table."""
    console = Console(width=160)
    with console.capture() as captured:
        console.print(search_table(groups, current, passed, budget))
    return captured.get().splitlines()


def counts(ranked: int, rejected: int) -> Any:
    """What a table reads of a search: one candidate could not be lowered, the others exceed a limit."""
    ledger = Ledger()
    ledger.accept("a", ranked + 1)
    if rejected:
        ledger.reject(Rejection("a", "accumulators", rejected - 1, 0.5, Candidate("a", {"n": 4}), "6, 2 too many"))
    failed = SimpleNamespace(failed=1 if rejected else 0)
    return SimpleNamespace(predictions=failed, explored=SimpleNamespace(ledger=ledger))


def test_the_table_has_the_groups_by_their_time(model: Path) -> None:
    tasks = tasks_of_model(model, host_target(), {}, CompileOptions(), rules=(templates,))
    product, softmax = (Group(task, "here", counts(*of)) for task, of in zip(tasks, [(1, 0), (40, 3)], strict=True))
    softmax = replace(softmax, default_seconds=9e-6, best_seconds=6e-6, built=9, trials=8)
    product = replace(product, default_seconds=3e-6, best_seconds=3e-6, trials=1, failures=1)
    lines = printed([product, softmax], product, 61, Budget(900, 18))
    rows = [columns(line) for line in lines if line.startswith("│")]
    assert rows == [
        ["softmax 20x48", "60.0%", "2", "43", "3", "9", "8", "9.0", "6.0", "1.50x"],
        ["unpack_matmul_relu 20x48  x2", "40.0%", "1", "2", "0", "0", "1", "3.0", "3.0", "1.00x"],
    ]
    (caption,) = [line.strip() for line in lines if "groups," in line]
    assert caption == (
        "2 groups, 9 trials (1 failed), 1:01 gone of 15:00, about 1:01 to go; kernels, alone: 0.015 -> 0.012 ms"
    )
    assert "about 13:59 to go" in "".join(printed([product], product, 61, Budget(900)))
    assert "to go" not in "".join(printed([product], None, 61, Budget(900)))


def test_a_limit_that_rejects_nearly_everything_is_named(model: Path) -> None:
    task, _ = tasks_of_model(model, host_target(), {}, CompileOptions(), rules=(templates,))
    few, most = (Group(task, "here", counts(*of)) for of in [(0, 10), (0, 11)])
    (line,) = limit_warnings([few, most])
    assert line == f"{task}: one limit rejects 10 of 11 candidates of @a: accumulators"


@pytest.fixture
def nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three candidates are drawn, and whoever builds or times anything fails."""

    def built(*arguments: object, **options: object) -> None:
        raise AssertionError("a preview builds nothing")

    monkeypatch.setitem(STRATEGIES, "evolution", partial(Evolution, settings=Settings(population=8, generations=1)))
    monkeypatch.setattr("treadle.tuning.candidates.build_library", built)
    monkeypatch.setattr("treadle.tuning.measure.timings", built)
    monkeypatch.setattr("treadle.schedules.search.rejections.MOST", 50)


@pytest.mark.usefixtures("nothing_is_built")
def test_a_dry_run_ranks_and_leaves_nothing(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(model), "--database", str(tmp_path / "db"), "--dry-run", *PATIENT]) == 0
    rows = [columns(line) for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    (product, softmax) = sorted(rows, reverse=True)
    assert product[:2] == ["unpack_matmul_relu 20x48", "2"]
    assert int(product[2]) > 1, "a template and nests"
    assert softmax[:3] == ["softmax 20x48", "1", "2"]
    assert int(product[4]) > 0, "tiles that overrun a chunk are rejected"
    for row in rows:
        default, best, ratio = float(row[6]), float(row[7]), float(row[8].rstrip("x"))
        assert 0 < best <= default
        assert ratio == pytest.approx(default / best, rel=0.05)
        assert int(row[5]) >= 4
    assert not (tmp_path / "db").exists()


@pytest.mark.usefixtures("nothing_is_built")
def test_an_explanation_has_limits_terms_and_what_was_measured(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, _ = tasks_of_model(model, host_target(), {}, CompileOptions())
    trial = Trial(task.default.program, task.default.decisions, 0, 123.4)
    program, ledger = next(name for name in task.search.by_name if name != "matmul_cpu"), Ledger()
    ledger.reject(Rejection(program, "accumulators", 70, 0.5, Candidate(program, {"n": 4}), "6, 2 too many"))
    ledger.accept(program, 7)
    key, texts = (task.digest, task.label, hardware_of(host_target())), task.texts
    Database(tmp_path / "db").add_trials(*key, [trial], programs=texts, ledgers={"random 0 1": ledger})
    assert main(["tune", str(model), "--database", str(tmp_path / "db"), "--explain", "matmul", *PATIENT]) == 0
    out = capsys.readouterr().out
    assert "unpack_matmul_relu 20x48, 2 groups" in out
    assert "softmax" not in out
    assert "candidates; of 50 drawn" in out, "of programs that no search has looked at"
    assert "candidates; of 77 that searches have looked at, 7 are legal" in out
    assert "    70 rejected: accumulators, at least 50.0% too much, more than nine tenths of all\n" in out
    assert f"      the closest: @{program} {{n = 4}}: 6, 2 too many" in out
    assert "@matmul_cpu: " in out
    assert re.search(r"^    \d+ rejected: rows of a chunk's tiles, at least \d+\.\d% too much$", out, re.M)
    assert "the closest: @matmul_cpu {rows = " in out
    (heading,) = [line for line in out.splitlines() if line.startswith("rank")]
    for name in ("us", "arithmetic", "from L3", "launch", "measured us", "candidate"):
        assert name in heading
    (default,) = [line for line in out.splitlines() if line.startswith("default")]
    assert "123.4" in default
    assert str(task.default) in default
    assert out.count(str(task.default)) == 1, "the default is no candidate of its own search"
    numbers = [float(word) for word in default.split()[1 : default.split().index("123.4")]]
    assert numbers[0] == pytest.approx(sum(numbers[1:]), abs=0.05 * len(numbers))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--explain", "pool"], "no group is called pool; accepted: "),
        (["--dry-run", "--strategy", "guess"], "there is no strategy 'guess'; accepted: evolution, "),
        (["--resume"], "there are no records of an interrupted search; accepted: the same command without --resume"),
    ],
)
def test_what_is_not_there_is_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert main(["tune", str(model), "--database", str(tmp_path / "db"), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert not (tmp_path / "db").exists()


@pytest.mark.usefixtures("nothing_is_built")
def test_schedules_of_a_gpu_are_ranked_without_one(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["tune", str(model), "--database", str(tmp_path / "db"), "--target", "sm_80"]
    assert main([*arguments, "--dry-run", "--groups", "matmul", *PATIENT]) == 0
    (row,) = [columns(line) for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert row[0] == "matmul_relu 20x48"
    assert int(row[5]) >= 4
    assert 0 < float(row[7]) <= float(row[6])
    assert main([*arguments[:-1], "avx2", "--dry-run"]) == 2
    assert "accepted: cpu, cuda, or a GPU such as sm_80" in capsys.readouterr().err


@pytest.mark.usefixtures("nothing_is_built")
def test_what_is_predicted_for_a_gpu_that_is_not_here_is_kept_and_used(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.tuning.model.why_no_gpu", lambda: "no GPU: none in this test")
    monkeypatch.setattr("treadle.passes.schedule.construct.LEAST_GAIN", -1.0)
    folder = tmp_path / "db"
    arguments = ["tune", str(model), "--database", str(folder), "--target", "sm_89"]
    assert main([*arguments, "--groups", "matmul", *PATIENT]) == 0
    out = capsys.readouterr().out
    assert "1 schedule is predicted to be faster than the default, and kept; nothing was built or timed" in out
    (path,) = folder.glob("*/*.mlir")
    entry = read_entry(path)
    assert (entry.record.how, entry.record.target) == ("predicted", "sm_89")
    compiled = ["compile", str(model), "--target", "sm_89", "--to", "schedule", "-o", "-"]
    assert main([*compiled, "--database", str(folder)]) == 0
    scheduled = entry.schedule
    named = f"schedule @{scheduled.sym_name.data}" if isinstance(scheduled, ProgramOp) else f"schedule {scheduled}"
    assert named in capsys.readouterr().out
    path.unlink()
    asked = iter([1.0] * 2)
    monkeypatch.setattr("treadle.tuning.tuner.PredictedTuner._left", lambda self: next(asked, 0.0))
    assert main([*arguments, "--groups", "matmul", *PATIENT]) == 0
    assert path.exists(), "what was predicted when the time ended counts"
    capsys.readouterr()
    measured = path.read_text().replace('"predicted"', '"measured elsewhere"')
    path.write_text(measured)
    assert main([*arguments, "--groups", "matmul", *PATIENT]) == 0
    assert path.read_text() == measured, "what was measured stays"
    capsys.readouterr()
    assert main([*arguments, "--stale"]) == 2
    assert "--stale needs kernels that are timed; accepted: a machine with a GPU for sm_89" in capsys.readouterr().err
    assert main([*arguments, "--scheduler", "tcp://127.0.0.1:1"]) == 2
    assert "a cluster's workers do not time kernels for GPUs yet" in capsys.readouterr().err


@pytest.mark.usefixtures("nothing_is_built")
def test_greedy_construction_tunes_and_compiles(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.tuning.model.why_no_gpu", lambda: "no GPU: none in this test")
    monkeypatch.setattr("treadle.passes.schedule.construct.LEAST_GAIN", -1000.0)
    folder = tmp_path / "db"
    arguments = ["tune", str(model), "--database", str(folder), "--target", "sm_89", "--strategy", "greedy"]
    assert main([*arguments, "--groups", "matmul", *PATIENT]) == 0
    assert "1 schedule is predicted to be faster than the default" in capsys.readouterr().out
    assert len(list(folder.glob("*/*.mlir"))) == 1
    compiled = ["compile", str(model), "--target", "sm_89", "--to", "schedule", "-o", "-", "--construct", "greedy"]
    assert main(compiled) == 0
    assert "schedule @nest" in capsys.readouterr().out


@pytest.mark.usefixtures("nothing_is_built")
@pytest.mark.parametrize("target", ["cpu", "sm_80"])
def test_a_ranking_ends_when_its_time_is_up(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Whatever the clock says of the rest: no time is left after some questions."""
    asked = iter([1.0] * 12)
    monkeypatch.setattr("treadle.tuning.model._until", lambda end: next(asked, 0.0))
    arguments = ["tune", str(model), "--database", str(tmp_path / "db"), "--target", target, "--dry-run"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    rows = [columns(line) for line in out.splitlines() if line.startswith("│")]
    assert all(row[0].endswith(" *") for row in rows)
    assert "the time did not suffice" in out
