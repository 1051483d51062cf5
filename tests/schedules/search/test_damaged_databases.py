"""A database that somebody has edited or filled with other things: nothing hangs, what is damaged is named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

import treadle
from tests.helpers.graphs import Graph
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp, UnaryOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import UseAttr
from treadle.errors import TreadleError
from treadle.passes.schedule.instance import group_program
from treadle.schedules.search.database import Database, Record, read_entry
from treadle.schedules.search.database_files import open_database, slug
from treadle.schedules.search.learned import features
from treadle.schedules.search.predict import predicted_seconds
from treadle.schedules.search.rejections import Ledger
from treadle.schedules.search.trials import Trial, seconds_of
from treadle.schedules.work.cpu_work import Body, Reuse, Work
from treadle.target import Target
from treadle.target.host import hardware_of, host_target

HERE = hardware_of(host_target())
WORK = Work(4, 1, (Body(8.0, 2.0, 1.0, 1.0),), (Reuse(0.0, 256.0), Reuse(512.0, 64.0)), 4.0)
TRIAL = Trial("generic_cpu", {"run": 4, "rows": 2}, 0, 5.0, 6.0, 7.0, of=2, work=WORK)
DIGEST = "0" * 12
MANY_DIGITS = "9" * 400


def records(folder: Path, line: str) -> Path:
    """A group's records: a line of a search's, and one that is edited."""
    ledger = Ledger()
    ledger.accept("generic_cpu", 3)
    Database(folder).add_trials(DIGEST, "relu", HERE, [TRIAL], ledgers={"drawn 1": ledger})
    (path,) = folder.glob("*/*.jsonl")
    path.write_text(path.read_text() + line + "\n")
    return path


def edited(**values: object) -> str:
    """A line of the record, with other values; `...` stands for a number of 400 digits."""
    found = json.loads(
        json.dumps({"program": "generic_cpu", "decisions": {"run": 4}, "round": 1, "us": 5.0, "of": 2} | values)
    )
    return json.dumps(found).replace('"..."', MANY_DIGITS)


def worked(**values: object) -> str:
    work: dict[str, Any] = {"blocks": 4, "threads": 1, "share": 4, "bodies": [[8, 2, 1, 1, 0, 0]], "reuse": [[0, 256]]}
    return edited(work=work | values)


DAMAGED = {
    "no number": edited(us=float("nan")),
    "infinite": edited(us=float("inf")),
    "huge": edited(us=1e308),
    "tiny": edited(reference_us=1e-320),
    "negative": edited(us=-1.0),
    "400 digits": edited(us="..."),
    "400 digits predicted": edited(predicted_us="..."),
    "5000 digits": edited().replace("5.0", "9" * 5000),
    "a word": edited(us="fast"),
    "a bool": edited(us=True),
    "a decision of 10^30": edited(decisions={"run": 10**30}),
    "a list with 10^30": edited(decisions={"run": [1, 10**30]}),
    "no decisions": edited(decisions=[1]),
    "a late round": edited(round=10**30),
    "a round before": edited(round=-1),
    "many trials": edited(of=10**30),
    "no blocks": worked(blocks=0),
    "-1 blocks": worked(blocks=-1),
    "400 digits of blocks": worked(blocks="..."),
    "no share": worked(share=float("nan")),
    "no traffic": worked(reuse=[]),
    "negative traffic": worked(reuse=[[0, -1]]),
    "bodies of words": worked(bodies=[["a"] * 6]),
    "lists": "[" * 100_000,
    "objects": '{"a":' * 100_000,
    "a long line": "[" * (3 << 20),
    "a list": "[1, 2]",
    "not text": "\udcff",
    "counts": json.dumps({"drawn": "d", "legal": {"generic_cpu": -5}, "rejected": []}),
    "10^30 counts": json.dumps({"drawn": "d", "legal": {"generic_cpu": 10**30}, "rejected": []}),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_line_is_named_and_left_out(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / slug(HERE) / f"relu-{DIGEST}.jsonl"
    records(tmp_path, "")
    path.write_bytes(path.read_bytes().rstrip() + b"\n" + DAMAGED[name].encode(errors="surrogateescape") + b"\n")
    database = Database(tmp_path)
    database.add_trials(DIGEST, "relu", HERE, [TRIAL])
    trials, ledgers = database.trials(DIGEST, HERE), database.ledgers(DIGEST, HERE)
    assert trials == [TRIAL, TRIAL]
    assert [ledger.legal for ledger in ledgers.values()] == [3]
    for _, seconds in seconds_of(trials):
        assert isfinite(seconds)
    assert {name: [work for work, _ in found] for name, found in database.measured_works(HERE).items()} == {
        f"relu-{DIGEST}": [WORK, WORK]
    }
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, "once, however often it is read"
    assert lines[0].startswith(f"warning: {path}:3: no record of `treadle tune`, left out: ")
    assert len(lines[0]) < 400


def test_numbers_of_usual_sizes_can_be_computed_with(tmp_path: Path) -> None:
    """What bounds let through, at their ends, gives finite predictions."""
    extremes = worked(blocks=1, share=0, bodies=[[0] * 6, [1e18] * 6], reuse=[[0, 0], [1e18, 1e18]])
    records(tmp_path, extremes)
    (work,) = [trial.work for trial in Database(tmp_path).trials(DIGEST, HERE) if trial.work not in (None, WORK)]
    assert work is not None
    target = Target.parse("cpu")
    assert 0 < predicted_seconds(work, target) < float("inf")
    assert all(map(isfinite, features(work, target)))


def test_a_line_that_was_cut_off_is_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = records(tmp_path, "")
    path.write_text(path.read_text().rstrip() + '\n{"program": "gene')
    assert Database(tmp_path).trials(DIGEST, HERE) == [TRIAL]
    assert capsys.readouterr().err == ""


def test_works_of_earlier_versions_are_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records(tmp_path, worked(bodies=[[1, 2]]))
    assert [trial.work for trial in Database(tmp_path).trials(DIGEST, HERE)] == [WORK, None]
    assert capsys.readouterr().err == ""


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_folder(path: Path) -> None:
    path.mkdir()


def a_hole(path: Path) -> None:
    """More bytes than any database has, none of which is on the disk."""
    with path.open("wb") as file:
        file.truncate(1 << 40)


IN_THE_WAY = pytest.mark.parametrize(
    ("put", "says"),
    [(a_fifo, "is a FIFO"), (zeros, "is a device"), (a_folder, "is a folder"), (a_hole, "has 1099511627776 bytes")],
)


@IN_THE_WAY
def test_records_that_are_no_file_are_named(
    tmp_path: Path, put: Callable[[Path], None], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = records(tmp_path, "")
    path.unlink()
    put(path)
    database = Database(tmp_path)
    for read in (
        lambda: database.trials(DIGEST, HERE),
        lambda: database.ledgers(DIGEST, HERE),
        lambda: database.add_trials(DIGEST, "relu", HERE, [TRIAL]),
    ):
        with pytest.raises(TreadleError, match=f"{path}: {says}.*; accepted: a file that `treadle tune` wrote"):
            read()
    assert database.measured_works(HERE) == {f"relu-{DIGEST}": []}
    assert f"warning: {path}: {says}" in capsys.readouterr().err


def _written(folder: Path, module: ModuleOp) -> Path:
    """The entry of the only group of a module, in a database of a folder."""
    fused = module.clone()
    lower(treadle_context(), fused, Target.parse("cpu"), after="graph", to="fuse")
    (group,) = [op for op in fused.walk() if isinstance(op, FusedOp)]
    program = group_program(group)
    record = Record(1.5, 2.0, "cpu", HERE, "gcc", "0" * 12, "2026-11-26")
    use = UseAttr.get("generic_cpu", {"run": 4, "rows": 1})
    return Database(folder).write(program.module, program.digest(), use, record)


@IN_THE_WAY
def test_an_entry_that_is_no_file_gives_a_warning_and_the_default(
    tmp_path: Path, put: Callable[[Path], None], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    graph = Graph(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))
    module = graph.module(graph.add(UnaryOp("relu", graph[0])))
    path = _written(tmp_path, module)
    before = open_database(tmp_path).fingerprint(HERE)
    path.unlink()
    put(path)
    assert open_database(tmp_path).fingerprint(HERE) != before
    with treadle.compile(module, database=tmp_path, cached=False) as model:
        np.testing.assert_array_equal(model(graph.inputs[0])[0], np.maximum(graph.inputs[0], 0))
    assert f"takes its default schedule: {path}: {says}" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("number", "says"),
    [("0x7FF8000000000000", "us of its schedule.record is damaged: nan"), ("-1.0", "is damaged: -1.0")],
)
def test_a_time_that_is_none_is_named(tmp_path: Path, number: str, says: str) -> None:
    graph = Graph(np.zeros((8, 8), np.float32))
    module = graph.module(graph.add(UnaryOp("relu", graph[0])))
    path = _written(tmp_path, module)
    text = path.read_text()
    assert "us = 1.500000e+00" in text
    path.write_text(text.replace("us = 1.500000e+00", f"us = {number}", 1))
    with pytest.raises(TreadleError, match=says) as caught:
        read_entry(path)
    assert str(caught.value).startswith(str(path))


def test_a_text_without_an_end_to_its_brackets_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.mlir"
    path.write_text('"a.b"() {a = ' + "[" * 200_000)
    with pytest.raises(TreadleError, match=r"x\.mlir: cannot read"):
        read_entry(path)
