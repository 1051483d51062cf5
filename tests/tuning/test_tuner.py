"""Whole searches on small groups: what they find, keep and say. Times are real; nothing here asks who wins."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle
from tests.helpers.small_searches import search_little
from tests.tuning.small_model import write_model
from treadle.backends.c.compiler import Unit
from treadle.dialects.schedule import ProgramOp, UseAttr
from treadle.errors import TreadleError
from treadle.passes.schedule.schedule_select import default_schedule
from treadle.schedules.rules.templates import templates
from treadle.schedules.rules.tiling import tiled, vectorised
from treadle.schedules.search import database, learned
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.database import Database
from treadle.schedules.search.evolution import Evolution, Settings
from treadle.schedules.search.learned import Learned
from treadle.schedules.search.programs import decisions_of
from treadle.schedules.search.strategies import STRATEGIES
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.work.cpu_work import Work
from treadle.target import Target
from treadle.target.host import hardware_of, host_target
from treadle.target.options import CompileOptions
from treadle.tools.treadle_cli import main
from treadle.tuning import candidates, tuner
from treadle.tuning.group_search import Group, GroupSearch, Options, least_seconds
from treadle.tuning.measure import Comparison, Timing
from treadle.tuning.model import tasks_of_model, tune
from treadle.tuning.workers import OutOfTimeError, Workers, this_machine

PATIENCE = 600
"""Seconds of a search that its trials end, however busy the machine is."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.onnx")


@pytest.fixture(autouse=True)
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that cost a test little."""
    search_little(monkeypatch)
    monkeypatch.setattr(tuner, "MEASURED", 2)


@dataclass
class Fake:
    """A measurer whose times are numbers that decide nothing but the order, without running anything."""

    answer: Callable[[Comparison], list[Timing]]

    def measure(self, comparison: Comparison) -> list[Timing]:
        return self.answer(comparison)

    def close(self) -> None: ...


def by_digest(comparison: Comparison) -> list[Timing]:
    """Instead of times: numbers from 1 to 2 that a library's bytes decide."""
    digests = [hashlib.sha256(library).digest() for library in comparison.libraries]
    return [Timing((1 + digest[0] / 256) * 1e-6) for digest in digests]


def search(model: Path, folder: Path, answer: Callable[[Comparison], list[Timing]], **options: Any) -> list[Group]:
    with ThreadPoolExecutor(2) as executor:
        options.setdefault("rules", (templates,))
        return tune(model, folder, seconds=PATIENCE, executor=executor, measurer=Fake(answer), **options)


def records(folder: Path) -> dict[str, bytes]:
    """What was measured, by file."""
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*.jsonl"))}


def test_equal_groups_are_one_task(model: Path) -> None:
    tasks = tasks_of_model(model, host_target(), {}, CompileOptions())
    assert [(task.count, task.label.split("_")[-1]) for task in tasks] == [(2, "relu"), (1, "softmax")]
    assert [len(task.constants) for task in tasks] == [1, 0]


def test_every_schedule_of_the_templates_is_one_candidate(model: Path) -> None:
    target = host_target()
    for task in tasks_of_model(model, target, {}, CompileOptions(), rules=(templates,)):
        anchor, default = task.search.anchor, task.search.replay(task.default)
        assert default == default_schedule(task.program.fused, target)
        kernels = [default, *map(task.search.replay, task.search.distinct(known=[task.default]))]
        assert len(set(kernels)) == len(kernels)
        fitting = [TEMPLATES[program.sym_name.data] for program in task.search.programs]
        assert {t.name for t in fitting} == {t.name for t in TEMPLATES.values() if t.kind == "cpu" and t.fits(anchor)}
        spaces = [UseAttr.get(t.name, choices) for t in fitting for choices in t.candidates(anchor, target)]
        assert sorted(map(str, kernels)) == sorted(map(str, spaces))


def test_a_search_keeps_what_it_measured(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With digests for times, which the default exceeds: the best of them is in the database, the model is compiled
    with it, and is right."""
    defaults: dict[str, bytes] = {}

    def slow_default(comparison: Comparison) -> list[Timing]:
        default = defaults.setdefault(comparison.text, comparison.libraries[0])  # what is timed first
        times = zip(comparison.libraries, by_digest(comparison), strict=True)
        return [Timing(3e-6) if library == default else time for library, time in times]

    groups = search(model, tmp_path / "db", slow_default, trials=8)
    target, database = host_target(), Database(tmp_path / "db")
    assert any(group.confirmed for group in groups)
    for group in groups:
        trials = database.trials(group.task.digest, hardware_of(target))
        assert len(trials) == group.trials > 0
        times = [trial.us for trial in trials if trial.us is not None]
        assert all(time > 0 for time in times)
        entry = database.find(group.task.digest, hardware_of(target))
        if group.confirmed:
            assert entry is not None
            assert group.best is not None
            assert entry.schedule == group.task.search.replay(group.best)
            assert entry.record.us < 0.98 * entry.record.default_us
    x = np.random.default_rng(1).standard_normal((20, 48)).astype(np.float32)
    with treadle.compile(model) as plain, treadle.compile(model, database=tmp_path / "db") as tuned:
        np.testing.assert_allclose(tuned(x)[0], plain(x)[0], rtol=1e-4, atol=1e-6)
        assert tuned.folder != plain.folder
    assert "warning" not in capfd.readouterr().err


def test_a_nest_that_was_fastest_is_kept_and_compiled(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With times that sink within a round, whose last candidate is a nest: the entry is a program."""
    monkeypatch.setitem(STRATEGIES, "evolution", partial(Evolution, settings=Settings(population=32, generations=1)))
    groups = search(
        model, tmp_path / "db",
        lambda comparison: [Timing((9 - n) * 1e-6) for n in range(len(comparison.libraries))],
        trials=3, groups=["matmul"], rules=(tiled("SSRSRS"), vectorised),
    )  # fmt: skip
    (group,) = groups
    database, hardware = Database(tmp_path / "db"), hardware_of(host_target())
    entry = database.find(group.task.digest, hardware)
    assert entry is not None
    assert isinstance(entry.schedule, ProgramOp)
    assert group.best == Candidate(entry.schedule.sym_name.data, decisions_of(entry.schedule))
    default, *others = database.trials(group.task.digest, hardware, {})
    assert default.program == "matmul_cpu"
    assert others == []
    assert all(trial.work is not None for trial in database.trials(group.task.digest, hardware))
    x = np.random.default_rng(1).standard_normal((20, 48)).astype(np.float32)
    with treadle.compile(model) as plain, treadle.compile(model, database=tmp_path / "db") as tuned:
        np.testing.assert_allclose(tuned(x)[0], plain(x)[0], rtol=1e-4, atol=1e-6)
        assert tuned.folder != plain.folder
    assert "warning" not in capfd.readouterr().err


def test_a_strategy_is_chosen_by_its_name(model: Path, tmp_path: Path) -> None:
    (group,) = search(model, tmp_path / "db", by_digest, trials=4, groups=["softmax"], strategy="random")
    trials = Database(tmp_path / "db").trials(group.task.digest, group.hardware)
    assert len({Candidate(trial.program, trial.decisions) for trial in trials}) == 5
    assert all(trial.work is not None and trial.predicted_us is not None for trial in trials)


def test_a_search_learns_from_what_the_database_knows(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The second search begins with a model that the first one's records fit; without scikit-learn one line says so."""
    monkeypatch.setattr(learned, "LEAST_RECORDS", 4)
    search(model, tmp_path / "db", by_digest, trials=4, groups=["softmax"], strategy="random")
    known = Database(tmp_path / "db").measured_works(hardware_of(host_target()))
    assert sum(map(len, known.values())) == 5
    fitted: list[bool] = []

    def seconds(self: Learned, works: Sequence[Work], target: Target) -> Sequence[float]:
        fitted.append(self.is_fitted)
        return [1.0] * len(works)

    monkeypatch.setattr(Learned, "seconds", seconds)
    monkeypatch.setattr(tuner, "MEASURED", 1)
    search(model, tmp_path / "db", by_digest, trials=6, groups=["softmax"])
    assert fitted[0]
    assert "scikit-learn" not in capfd.readouterr().err
    monkeypatch.setattr(learned, "find_spec", lambda name: None)
    search(model, tmp_path / "other", by_digest, trials=2, groups=["softmax"])
    (line,) = capfd.readouterr().err.splitlines()
    assert line == f"warning: {learned.MISSING}"


def test_the_seed_decides_what_is_tried(model: Path, tmp_path: Path) -> None:
    for run in ("a", "b"):
        search(model, tmp_path / run, by_digest, trials=5, seed=3)
    assert records(tmp_path / "a") == records(tmp_path / "b")
    assert records(tmp_path / "a")


def test_an_interrupted_search_goes_on(model: Path, tmp_path: Path) -> None:
    """The next one ends with the records of a search that was not, and with its counts of what was rejected."""
    left, product = [3], {"trials": 7, "seed": 3, "groups": ["matmul"]}  # many of whose candidates are rejected

    def interrupted(comparison: Comparison) -> list[Timing]:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return by_digest(comparison)

    with pytest.raises(KeyboardInterrupt):
        search(model, tmp_path / "db", interrupted, **product)
    resumed, whole = (search(model, tmp_path / folder, by_digest, **product) for folder in ("db", "whole"))
    assert records(tmp_path / "db") == records(tmp_path / "whole")
    for one, other in zip(resumed, whole, strict=True):
        known = Database(tmp_path / "db").ledgers(one.task.digest, one.hardware, one.task.texts)
        assert known == one.search.explored.ledgers == other.search.explored.ledgers
        assert (one.rejected, one.ranked) == (other.rejected, other.ranked)
    assert sum(group.rejected for group in resumed) > 0


@pytest.mark.parametrize("kept", [0, 3])
def test_a_round_whose_records_were_cut_off_is_completed(model: Path, tmp_path: Path, kept: int) -> None:
    """A killed writer has left some whole lines, and a part of one."""
    search(model, tmp_path / "whole", by_digest, trials=5, seed=3, groups=["softmax"])
    shutil.copytree(tmp_path / "whole", tmp_path / "db")
    (path,) = (tmp_path / "db").rglob("*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    assert [next(iter(json.loads(line))) for line in lines] == ["program", *["drawn", "program", "program"] * 2]
    path.write_bytes(b"".join(lines[:kept]) + lines[kept][:20])
    for entry in (tmp_path / "db").rglob("*.mlir"):
        entry.unlink()
    search(model, tmp_path / "db", by_digest, trials=5, seed=3, groups=["softmax"])
    assert everything(tmp_path / "db") == everything(tmp_path / "whole")


def everything(folder: Path) -> dict[str, bytes]:
    """Records and entries."""
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*.*"))}


def test_what_fails_is_counted_and_not_kept(model: Path, tmp_path: Path) -> None:
    def fails(comparison: Comparison) -> list[Timing]:
        return [Timing(1.0), *(Timing(error="it is wrong") for _ in comparison.libraries[1:])]

    (group,) = search(model, tmp_path / "db", fails, trials=4, groups=["softmax"])
    assert group.failures == group.trials - 1 > 0
    assert group.best == group.default
    assert not list((tmp_path / "db").rglob("*.mlir"))
    lines = [json.loads(line) for path in (tmp_path / "db").rglob("*.jsonl") for line in path.read_text().splitlines()]
    assert [line.get("error") for line in lines if "us" in line or "error" in line] == [
        None, *["it is wrong"] * group.failures,
    ]  # fmt: skip


def test_what_cannot_be_compiled_costs_itself(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler rejects one candidate, and crashes in another way on the next; the others are timed."""
    build, calls = candidates.build_library, [0]

    def build_library(units: Sequence[Unit], *, target: Target) -> Path:
        calls[0] += 1
        if calls[0] == 3:
            return build([Unit("bad", "not C")], target=target)
        if calls[0] == 4:
            raise RecursionError("too deep")
        return build(units, target=target)

    monkeypatch.setattr(candidates, "build_library", build_library)
    monkeypatch.setattr(tuner, "MEASURED", 4)
    with ThreadPoolExecutor(1) as executor:
        options: dict[str, Any] = {"seconds": PATIENCE, "trials": 3, "groups": ["softmax"]}
        tune(model, tmp_path / "db", executor=executor, measurer=Fake(by_digest), **options)
    (text,) = records(tmp_path / "db").values()
    errors = [record.get("error") for line in text.splitlines() if "round" in (record := json.loads(line))]
    assert [each is None for each in errors] == [True, False, False, True, True]
    assert "error" in errors[1]
    assert errors[2] == "RecursionError: too deep"


def test_a_real_search_from_the_command_line(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["tune", str(model), "--database", str(tmp_path / "db"), "--groups", "softmax", "--trials", "2"]
    assert main([*arguments, "--seconds", "20"]) == 0
    out = capsys.readouterr().out
    assert "softmax 20x48" in out
    assert "default us" in out
    assert list((tmp_path / "db").rglob("softmax-*.jsonl"))
    assert main(["compile", str(model), "--database", str(tmp_path / "db"), "-o", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--seconds", "0"], "seconds is 0; accepted: at least 1"),
        (["--trials", "0"], "trials is 0; accepted: a number from 1 upwards"),
        (
            ["--strategy", "best"],
            "there is no strategy 'best'; accepted: evolution, evolution-annealed, exhaustive, greedy, random, walk, "
            "walk-paper",
        ),
        (["--groups", "pool"], "no group is called pool; accepted: "),
        (["--target", "avx2"], "cannot time kernels for avx2 here; accepted: cpu, cuda, or a GPU such as sm_80"),
        (["--shape", "z=1"], "z"),
    ],
)
def test_what_cannot_be_tuned_is_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert main(["tune", str(model), "--database", str(tmp_path / "db"), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert not (tmp_path / "db").exists()


def test_a_default_that_cannot_be_timed_is_an_error(model: Path, tmp_path: Path) -> None:
    with pytest.raises(TreadleError, match="the default schedule cannot be timed: it is wrong"):
        search(model, tmp_path / "db", lambda comparison: [Timing(error="it is wrong")])


def test_a_full_disk_ends_a_search_that_then_goes_on(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of records takes no more: what was measured last is written with the room that was kept."""
    write, writes, timed = database._write_all, [0], [0]

    def full_once(descriptor: int, data: bytes) -> None:
        writes[0] += 1
        if writes[0] == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(descriptor, data)

    def counted(comparison: Comparison) -> list[Timing]:
        timed[0] += 1
        return by_digest(comparison)

    with monkeypatch.context() as patch:
        patch.setattr(database, "_write_all", full_once)
        with pytest.raises(TreadleError, match=r"jsonl: cannot write: No space left on device"):
            search(model, tmp_path / "db", counted, trials=7, seed=3, groups=["softmax"])
    search(model, tmp_path / "db", counted, trials=7, seed=3, groups=["softmax"])
    in_parts, timed[0] = timed[0], 0
    search(model, tmp_path / "whole", counted, trials=7, seed=3, groups=["softmax"])
    assert records(tmp_path / "db") == records(tmp_path / "whole")
    assert in_parts == timed[0], "nothing is timed twice"


def test_a_cache_without_room_is_no_candidates_fault(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is recorded of candidates that could not be built for want of room."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def no_room(*arguments: object, **options: object) -> Path:
        raise TreadleError(f"cannot write the cache: {full.strerror}", "cache", "more room") from full

    monkeypatch.setattr(candidates, "build_library", no_room)
    with pytest.raises(TreadleError, match="cannot write the cache: No space left on device"):
        search(model, tmp_path / "db", by_digest, trials=7)
    assert records(tmp_path / "db") == {}


def test_a_search_without_time_times_the_largest_defaults_and_ends(model: Path, tmp_path: Path) -> None:
    """What is over when it begins has one batch of defaults, no round."""
    with ThreadPoolExecutor(2) as executor:
        tasks = tasks_of_model(model, host_target(), {}, CompileOptions(), rules=(templates,))
        options = Options(10.0, 1, started=time.monotonic() - 60)
        groups = tuner.Tuner(
            tasks, Database(tmp_path), options, Workers(executor, this_machine()), Fake(by_digest)
        ).run()
    assert [group.trials for group in groups].count(1) >= 1
    assert all(group.rounds == 0 for group in groups)


def test_ranking_ends_when_the_time_is_up(model: Path, tmp_path: Path) -> None:
    """A proposal that finds no time left gives none, and what was drawn leaves no record."""
    with ThreadPoolExecutor(2) as executor:
        (task, *_) = tasks_of_model(model, host_target(), {}, CompileOptions())
        asked = iter([1.0] * 20)
        search = GroupSearch(
            task, Workers(executor, this_machine()), Learned(), "evolution", 0, lambda: next(asked, 0.0)
        )
        with pytest.raises(OutOfTimeError):
            search.propose(8)


def test_defaults_come_in_the_order_of_the_roofline(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner, "_BATCH", 1)
    order: list[str] = []

    def measured(comparison: Comparison) -> list[Timing]:
        order.append(comparison.text)
        return by_digest(comparison)

    groups = search(model, tmp_path / "db", measured, trials=1)
    firsts = list(dict.fromkeys(order))
    expected = sorted(groups, key=lambda g: -g.task.count * least_seconds(g.task, host_target()))
    assert firsts == [group.task.text for group in expected]
