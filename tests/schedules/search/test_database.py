"""A database of tuned schedules: what is written is read, and what is damaged is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from tests.helpers.graphs import Graph
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp, MatmulOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import ProgramOp, UseAttr
from treadle.errors import TreadleError
from treadle.passes.schedule.instance import group_program
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.database import Database, Record, read_entry
from treadle.schedules.search.database_files import open_database, slug
from treadle.schedules.search.programs import taken
from treadle.schedules.search.rejections import Ledger, Rejection
from treadle.schedules.search.trials import Trial, seconds_of
from treadle.target import Target

USE = UseAttr.get("matmul_cpu", {"rows": 4, "chunk": 8, "pack": True})
RECORD = Record(41.5, 63.0, "cpu", "A Processor (R) 2 cores", "gcc 12.2", "0123456789ab", "2026-11-22")


def program() -> tuple[ModuleOp, str]:
    """A product's program, and its digest."""
    graph = Graph(np.zeros((8, 8), np.float32), np.zeros((8, 8), np.float32))
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    lower(treadle_context(), module, Target.parse("cpu"), after="graph", to="fuse")
    (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    found = group_program(fused)
    return found.module, found.digest()


def test_an_entry_is_read_as_it_was_written(tmp_path: Path) -> None:
    module, digest = program()
    path = Database(tmp_path).write(module, digest, USE, RECORD)
    assert path.relative_to(tmp_path).as_posix() == f"a-processor-r-2-cores/matmul-{digest}.mlir"
    entry = Database(tmp_path).find(digest, RECORD.hardware)
    assert entry is not None
    assert (entry.schedule, entry.record, entry.path) == (USE, RECORD, path)
    assert Database(tmp_path).find("0" * 12, RECORD.hardware) is None
    assert Database(tmp_path).find(digest, "another") is None
    assert [each.name for each in path.parent.iterdir()] == [path.name]


NEST = """
schedule.program @tiled for "cpu" {
  %i, %j, %k = schedule.axes 2 spatial, 1 reduction
  %t = schedule.sample "rows" from [2, 4]
  %i0, %i1 = schedule.split %i by (%t)
  schedule.arrange block(%i0) loop(%k) repeat(%i1, %j)
}
"""


def nest() -> ProgramOp:
    (found,) = Parser(treadle_context(), NEST).parse_module().body.block.ops
    assert isinstance(found, ProgramOp)
    return found


def test_a_program_stands_beside_its_group(tmp_path: Path) -> None:
    module, digest = program()
    schedule = taken(nest(), {"rows": 4})
    path = Database(tmp_path).write(module, digest, schedule, RECORD)
    entry = read_entry(path)
    assert isinstance(entry.schedule, ProgramOp)
    assert str(entry.schedule) == str(schedule)
    text = path.read_text()
    assert "taken 4" in text
    assert "schedule @tiled" in text
    assert nest().samples[0].decision is None


def test_a_group_whose_program_is_missing_is_named(tmp_path: Path) -> None:
    module, digest = program()
    path = Database(tmp_path).write(module, digest, taken(nest(), {"rows": 4}), RECORD)
    path.write_text(path.read_text().replace("schedule @tiled", "schedule @gone"))
    with pytest.raises(TreadleError, match=r"has no group with a schedule and a schedule\.record"):
        read_entry(path)


def test_trials_of_a_program_that_has_changed_are_left_out(tmp_path: Path) -> None:
    """A text stands before the first trial of its program, and again when it has changed."""
    database, first, second = Database(tmp_path), str(nest()), NEST.replace("[2, 4]", "[2, 4, 8]")
    old, new, other = (Trial("tiled", {"rows": 2}, us=time) for time in (5.0, 4.0, 3.0))
    plain = Trial("matmul_cpu", {"rows": 4}, us=2.0)
    for trials, text in (([old, plain], first), ([new], second), ([other], second)):
        database.add_trials("0" * 12, "matmul", "b", trials, programs={"tiled": text})
    assert database.trials("0" * 12, "b") == [old, plain, new, other]
    assert database.trials("0" * 12, "b", {"tiled": second}) == [plain, new, other]
    assert database.trials("0" * 12, "b", {"tiled": first}) == [old, plain]
    assert database.trials("0" * 12, "b", {}) == [plain]
    (path,) = (tmp_path / "b").iterdir()
    assert path.read_text().count('"text"') == 2


def ledger(rows: int) -> Ledger:
    """One legal candidate of a nest, and some of two programs that are not."""
    found = Ledger()
    found.accept("tiled")
    found.reject(Rejection("tiled", "accumulators", rows, 0.25, Candidate("tiled", {"tile": (rows, 2)}), "too many"))
    found.reject(Rejection("row_cpu", "no rows", 3, None, Candidate("row_cpu", {"across": "rows", "pack": True}), "."))
    return found


def test_what_was_rejected_is_read_as_it_was_written(tmp_path: Path) -> None:
    """By draws: a later line of a draw supersedes an earlier one, and one that says nothing new is not written."""
    database, key, text = Database(tmp_path), ("0" * 12, "b"), str(nest())

    def add(trials: list[Trial], draw: str, rows: int, program: str = text) -> None:
        database.add_trials(key[0], "matmul", key[1], trials, None, {"tiled": program}, {draw: ledger(rows)})

    add([Trial("matmul_cpu", {"rows": 4}, us=2.0)], "random 0 1", 40)
    add([], "random 0 9", 48)
    (path,) = (tmp_path / "b").iterdir()
    lines = path.read_text().splitlines(keepends=True)
    assert [next(iter(json.loads(line))) for line in lines] == ["program", "drawn", "program", "drawn"]
    assert "".join(lines[2:3]).count("matmul_cpu") == 1, "the trials of a draw stand after it"
    assert database.ledgers(*key) == {"random 0 1": ledger(40), "random 0 9": ledger(48)}
    add([], "random 0 9", 48)
    assert path.read_text() == "".join(lines)
    path.write_text("".join(lines[:3]) + lines[3][:-9])
    assert database.ledgers(*key) == {"random 0 1": ledger(40)}
    add([], "random 0 9", 48)
    assert path.read_text() == "".join(lines), "the line that a killed writer left is cut off"
    add([], "random 0 1", 41)
    assert database.ledgers(*key) == {"random 0 1": ledger(41), "random 0 9": ledger(48)}
    assert len(database.trials(*key)) == 1
    add([], "random 0 9", 50, NEST.replace("[2, 4]", "[2, 4, 8]"))
    of_templates = ledger(41).of(["row_cpu"])
    assert database.ledgers(*key, {"tiled": text}) == {"random 0 1": ledger(41), "random 0 9": of_templates}
    assert database.ledgers(*key, {})["random 0 1"] == of_templates


def test_a_later_entry_takes_the_place_of_the_first(tmp_path: Path) -> None:
    module, digest = program()
    first = Database(tmp_path).write(module, digest, USE, RECORD)
    other = UseAttr.get("matmul_cpu", {"rows": 8, "chunk": 8, "pack": False})
    assert Database(tmp_path).write(module, digest, other, RECORD) == first
    assert read_entry(first).schedule == other


def test_hardware_lies_side_by_side(tmp_path: Path) -> None:
    module, digest = program()
    other = replace(RECORD, hardware="B", us=1.5)
    for record in (RECORD, other):
        Database(tmp_path).write(module, digest, USE, record)
    files = open_database(tmp_path)
    assert files.hardware() == ["a-processor-r-2-cores", "b"]
    found = [Database(tmp_path).find(digest, each.hardware) for each in (RECORD, other)]
    assert [entry.record.us for entry in found if entry is not None] == [41.5, 1.5]


def test_the_target_of_records_is_kept(tmp_path: Path) -> None:
    """The first one that was written: the folder's name says of which hardware the records are."""
    database, cpu = Database(tmp_path), Target.parse("cpu")
    assert database.target("a machine") is None
    database.keep_target("a machine", replace(cpu, l2_bytes=4096))
    database.keep_target("a machine", cpu)
    assert database.target("a machine") == replace(cpu, l2_bytes=4096)
    assert database.target("another machine") is None
    assert database.hardware() == database.measured() == []


def test_the_fingerprint_follows_the_entries_of_its_hardware(tmp_path: Path) -> None:
    module, digest = program()
    files = open_database(tmp_path)
    assert files.fingerprint("b") == ""
    Database(tmp_path).write(module, digest, USE, replace(RECORD, hardware="b"))
    first = files.fingerprint("b")
    Database(tmp_path).add_trials(digest, "matmul", "b", [Trial("matmul_cpu", {"rows": 1}, us=5.0)])
    Database(tmp_path).write(module, digest, USE, RECORD)
    assert files.fingerprint("b") == first
    Database(tmp_path).write(module, digest, USE, replace(RECORD, hardware="b", us=2.5))
    assert files.fingerprint("b") != first


def test_trials_are_lines_and_a_broken_one_is_left_out(tmp_path: Path) -> None:
    database = Database(tmp_path)
    trials = [
        Trial("matmul_cpu", {"rows": 4, "pack": True, "shape": (2, 3), "order": "n"}, 2, 41.5, 43.0, 40.25),
        Trial("matmul_cpu", {"rows": 5}, error="it did not end in time"),
    ]
    database.add_trials("0" * 12, "matmul", "b", trials[:1])
    (path,) = (tmp_path / "b").iterdir()
    with path.open("a") as file:
        file.write('{"program": "matmul_cpu", "deci')
    database.add_trials("0" * 12, "matmul", "b", trials[1:])
    assert database.trials("0" * 12, "b") == trials
    assert len(path.read_text().splitlines()) == 2, "the line that a killed writer left is cut off"
    path.write_text("no JSON\n" + path.read_text())
    assert database.trials("0" * 12, "b") == trials


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot read"),
        ("builtin.module {", "cannot read"),
        ("\x00", "cannot read"),
        ("builtin.module {}", "has no group with a schedule and a schedule.record"),
    ],
)
def test_a_damaged_entry_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.mlir"
    path.write_text(text)
    with pytest.raises(TreadleError, match=r"x\.mlir") as caught:
        read_entry(path)
    assert says in str(caught.value)
    assert "a file that `treadle tune` wrote" in str(caught.value)


@pytest.mark.parametrize(
    "change", [("us = 4.150000e+01 : f64", "us = 4 : i64"), ('date = "2026-11-22"', 'day = "x"'), ("us = ", "ns = ")]
)
def test_an_incomplete_record_is_named(tmp_path: Path, change: tuple[str, str]) -> None:
    module, digest = program()
    path = Database(tmp_path).write(module, digest, USE, RECORD)
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change))
    with pytest.raises(TreadleError, match=r"its schedule\.record is not complete"):
        read_entry(path)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TreadleError, match="there is no such folder; accepted: a database that `treadle tune` wrote"):
        open_database(tmp_path / "none")


def test_a_database_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    module, digest = program()
    (tmp_path / "b").write_text("in the way")
    with pytest.raises(TreadleError, match="cannot write"):
        Database(tmp_path).write(module, digest, USE, replace(RECORD, hardware="b"))
    with pytest.raises(TreadleError, match="cannot write"):
        Database(tmp_path).add_trials(digest, "matmul", "b", [Trial("matmul_cpu", {"rows": 1}, us=5.0)])


@pytest.mark.parametrize(
    ("text", "name"),
    [("Intel(R) Xeon(R) 6-167-1 2 cores", "intel-r-xeon-r-6-167-1-2-cores"), ("a_b c", "a_b-c"), ("/..", "unnamed")],
)
def test_names_of_files_are_plain(text: str, name: str) -> None:
    assert slug(text) == name


def test_times_are_of_one_machine() -> None:
    """The machine is twice as slow in the second round, and three times in the third; one trial has no time, one stood
    alone."""
    trials = [
        Trial("t", {"n": 0}, round=0, us=80.0),
        Trial("t", {"n": 1}, round=1, us=40.0, reference_us=80.0),
        Trial("t", {"n": 2}, round=1, us=60.0, reference_us=80.0),
        Trial("t", {"n": 3}, round=2, us=160.0, reference_us=80.0),
        Trial("t", {"n": 4}, round=2, error="it crashed"),
        Trial("t", {"n": 5}, round=2, us=40.0, reference_us=80.0),
        Trial("t", {"n": 6}, round=3, us=60.0, reference_us=60.0),
        Trial("t", {"n": 7}, round=3, us=60.0),
    ]
    found = {trial.decisions["n"]: round(seconds * 1e6) for trial, seconds in seconds_of(trials)}
    assert found == {0: 80, 1: 40, 2: 60, 3: 80, 5: 20, 6: 20}
