"""Whole searches on small groups: what they find, keep and say. Times are real; nothing here asks who wins."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import treadle
from treadle.compile_options import CompileOptions
from treadle.errors import TreadleError
from treadle.host import hardware_of, host_target
from treadle.passes.schedule.anchor import anchor_of
from treadle.schedules.search.database import Database
from treadle.schedules.templates import TEMPLATES
from treadle.tools.treadle_cli import main
from treadle.tuning import tuner
from treadle.tuning.measure import Comparison, Measurer, Timing
from treadle.tuning.model import tasks_of_model, tune
from treadle.tuning.tasks import candidates_of, canonical, default_candidate
from treadle.tuning.tuner import Group


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """softmax(relu(x w)), whose product stands twice: two groups of one kind and one of another."""
    generator = np.random.default_rng(0)
    weights = [numpy_helper.from_array(generator.standard_normal((48, 48)).astype(np.float32), n) for n in "vw"]
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("Softmax", ["d"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [20, 48]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture(autouse=True)
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that cost a test little."""
    monkeypatch.setattr(tuner, "DRAWN", 3)
    monkeypatch.setattr(tuner, "MEASURED", 2)


def search(model: Path, folder: Path, **options: object) -> list[Group]:
    with ThreadPoolExecutor(2) as executor:
        return tune(model, folder, seconds=60, executor=executor, **options)  # pyright: ignore[reportArgumentType]


def by_digest(self: Measurer, comparison: Comparison) -> list[Timing]:
    """Instead of times: numbers from 1 to 2 that a library's bytes decide."""
    del self
    digests = [hashlib.sha256(Path(library).read_bytes()).digest() for library in comparison.libraries]
    return [Timing((1 + digest[0] / 256) * 1e-6) for digest in digests]


def records(folder: Path) -> dict[str, bytes]:
    """What was measured, by file."""
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*.jsonl"))}


def test_equal_groups_are_one_task(model: Path) -> None:
    tasks = tasks_of_model(model, host_target(), {}, CompileOptions())
    assert [(task.count, task.label.split("_")[-1]) for task in tasks] == [(2, "relu"), (1, "softmax")]
    assert [len(task.constants) for task in tasks] == [1, 0]


def test_candidates_are_legal_and_hold_the_default(model: Path) -> None:
    target = host_target()
    for task in tasks_of_model(model, target, {}, CompileOptions()):
        every = candidates_of(task, target)
        assert canonical(task, default_candidate(task, target), target) in every
        assert len({str(each) for each in every}) == len(every)
        templates = {each.template for each in every}
        assert templates >= {default_candidate(task, target).template}
        for each in every[:: max(1, len(every) // 20)]:
            TEMPLATES[each.template].check(anchor_of(task.program.fused), each.choices, target, "test")


def test_a_search_keeps_what_it_measured(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With digests for times: the best of them is in the database, the model is compiled with it, and is right."""
    monkeypatch.setattr(Measurer, "measure", by_digest)
    groups = search(model, tmp_path / "db", trials=8)
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
            assert entry.use == group.best.use
            assert entry.record.us < 0.98 * entry.record.default_us
    x = np.random.default_rng(1).standard_normal((20, 48)).astype(np.float32)
    with treadle.compile(model) as plain, treadle.compile(model, database=tmp_path / "db") as tuned:
        np.testing.assert_allclose(tuned(x)[0], plain(x)[0], rtol=1e-4, atol=1e-6)
        assert tuned.folder != plain.folder
    assert "warning" not in capfd.readouterr().err


def test_the_seed_decides_what_is_tried(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Measurer, "measure", by_digest)
    for run in ("a", "b"):
        search(model, tmp_path / run, trials=5, seed=3)
    assert records(tmp_path / "a") == records(tmp_path / "b")
    assert records(tmp_path / "a")


@pytest.mark.parametrize("calls", [1, 3])
def test_a_killed_search_goes_on(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """Whenever it is killed, the next one ends with the records of a search that nobody killed."""
    left = [calls]

    def killed(self: Measurer, comparison: Comparison) -> list[Timing]:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return by_digest(self, comparison)

    monkeypatch.setattr(Measurer, "measure", killed)
    with pytest.raises(KeyboardInterrupt):
        search(model, tmp_path / "db", trials=7, seed=3)
    monkeypatch.setattr(Measurer, "measure", by_digest)
    for folder in ("db", "whole"):
        search(model, tmp_path / folder, trials=7, seed=3)
    assert records(tmp_path / "db") == records(tmp_path / "whole")


def test_what_fails_is_counted_and_not_kept(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Measurer, comparison: Comparison) -> list[Timing]:
        del self
        return [Timing(1.0), *(Timing(error="it is wrong") for _ in comparison.libraries[1:])]

    monkeypatch.setattr(Measurer, "measure", fails)
    (group,) = search(model, tmp_path / "db", trials=4, groups=["softmax"])
    assert group.failures == group.trials - 1 > 0
    assert group.best == group.default
    assert not list((tmp_path / "db").rglob("*.mlir"))
    lines = [json.loads(line) for path in (tmp_path / "db").rglob("*.jsonl") for line in path.read_text().splitlines()]
    assert [line.get("error") for line in lines] == [None, *["it is wrong"] * group.failures]


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
        (["--groups", "pool"], "no group is called pool; accepted: "),
        (["--target", "sm_80"], "cannot time kernels for sm_80 here; accepted: cpu"),
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


def test_a_default_that_cannot_be_timed_is_an_error(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Measurer, "measure", lambda self, comparison: [Timing(error="it is wrong")])
    with pytest.raises(TreadleError, match="the default schedule cannot be timed: it is wrong"):
        search(model, tmp_path / "db")
