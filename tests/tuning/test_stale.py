"""`treadle tune --stale`: entries that other sources measured are timed anew, and nothing else. Times are made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.tuning.small_model import write_model
from treadle.artifact.cache import kernel_fingerprint
from treadle.dialects.schedule import ProgramOp, UseAttr
from treadle.errors import TreadleError
from treadle.schedules.rules.templates import templates
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.database import Database, Entry, Record
from treadle.schedules.search.programs import taken
from treadle.schedules.templates import TEMPLATES
from treadle.target.host import hardware_of, host_target
from treadle.target.options import CompileOptions
from treadle.tools.treadle_cli import main
from treadle.tools.tune_command import time_warnings
from treadle.tuning.group_search import Group
from treadle.tuning.measure import Comparison, Timing
from treadle.tuning.model import tasks_of_model, tune
from treadle.tuning.tasks import GroupTask
from treadle.tuning.tuner import Tuner

HARDWARE = hardware_of(host_target())
OLD = Record(5.0, 10.0, "cpu", HARDWARE, "gcc 1.0", "0123456789ab", "2001-01-01")


@dataclass
class Fake:
    """A measurer that says given seconds of each library, and keeps how many there were."""

    seconds: Callable[[int], list[Timing]]
    calls: list[int] = field(default_factory=list[int])

    def measure(self, comparison: Comparison) -> list[Timing]:
        self.calls.append(len(comparison.libraries))
        return self.seconds(len(comparison.libraries))

    def close(self) -> None: ...


def faster(count: int) -> list[Timing]:
    """Each is faster than the one before it."""
    return [Timing(4e-6 / (n + 1)) for n in range(count)]


def alike(count: int) -> list[Timing]:
    return [Timing(3e-6)] * count


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m.onnx")


@pytest.fixture(autouse=True)
def nothing_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries are bytes that nobody loads."""
    library = tmp_path / "library"
    library.write_bytes(b"a library")
    monkeypatch.setattr("treadle.tuning.candidates.build_library", lambda units, target: library)


def all_tasks(model: Path, **rules: Any) -> list[GroupTask]:
    return tasks_of_model(model, host_target(), {}, CompileOptions(), **rules)


@pytest.fixture(scope="module")
def tasks(model: Path) -> list[GroupTask]:
    return all_tasks(model, rules=(templates,))


def other(task: GroupTask) -> UseAttr:
    """A schedule of the default's template that is not the default."""
    template = TEMPLATES[task.default.program]
    found = (UseAttr.get(template.name, each) for each in template.candidates(task.search.anchor, host_target()))
    return next(each for each in found if each != task.search.replay(task.default))


def write(folder: Path, task: GroupTask, schedule: UseAttr | ProgramOp, record: Record = OLD) -> Path:
    return Database(folder).write(task.program.module, task.digest, schedule, record)


def entry(folder: Path, task: GroupTask) -> Entry:
    found = Database(folder).find(task.digest, HARDWARE)
    assert found is not None
    return found


def remeasure(model: Path, folder: Path, measurer: Fake, **options: Any) -> list[Group]:
    with ThreadPoolExecutor(1) as executor:
        return tune(model, folder, stale=True, executor=executor, measurer=measurer, **options)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*.*")}


def test_stale_entries_are_timed_anew_and_nothing_else(model: Path, tasks: list[GroupTask], tmp_path: Path) -> None:
    """Of two entries one is today's; the other one stays, with today's times and sources. No candidate is recorded."""
    product, softmax = tasks
    use, fake = other(product), Fake(faster)
    write(tmp_path / "db", product, use)
    today = write(tmp_path / "db", softmax, other(softmax), replace(OLD, sources=kernel_fingerprint()))
    before = today.read_bytes()
    (group,) = remeasure(model, tmp_path / "db", fake)
    assert (group.task.digest, group.confirmed, fake.calls) == (product.digest, True, [2])
    found = entry(tmp_path / "db", product)
    assert found.schedule == use
    assert (found.record.default_us, found.record.us) == (4.0, 2.0)
    assert found.record.sources == kernel_fingerprint()
    assert found.record.date > "2026"
    assert found.record.compiler != OLD.compiler
    assert today.read_bytes() == before
    assert not list((tmp_path / "db").rglob("*.jsonl"))
    assert remeasure(model, tmp_path / "db", Fake(faster)) == []


@pytest.mark.parametrize(
    ("answer", "us", "dropped"),
    [(alike, 3.0, None), (lambda count: [Timing(7e-6), Timing(error="it is wrong")], 7.0, "it is wrong")],
)
def test_what_is_no_longer_faster_is_dropped(
    model: Path, tasks: list[GroupTask], tmp_path: Path, answer: Any, us: float, dropped: str | None
) -> None:
    """The entry is the default's then."""
    task = tasks[1]
    write(tmp_path / "db", task, other(task))
    (group,) = remeasure(model, tmp_path / "db", Fake(answer))
    assert (group.confirmed, group.dropped) == (False, dropped)
    found = entry(tmp_path / "db", task)
    assert found.schedule == task.search.replay(task.default)
    assert (found.record.us, found.record.default_us) == (us, us)


def test_an_entry_that_is_the_default_is_timed_alone(model: Path, tasks: list[GroupTask], tmp_path: Path) -> None:
    task, fake = tasks[1], Fake(faster)
    default = task.search.replay(task.default)
    assert isinstance(default, UseAttr)
    write(tmp_path / "db", task, default)
    remeasure(model, tmp_path / "db", fake)
    assert fake.calls == [1]
    found = entry(tmp_path / "db", task)
    assert (found.schedule, found.record.us, found.record.default_us) == (default, 4.0, 4.0)


def test_a_program_that_no_rule_writes_today_is_timed(model: Path, tmp_path: Path) -> None:
    task = all_tasks(model)[0]
    name = next(name for name, program in task.search.by_name.items() if program.template is None)
    sampler = task.search.samplers[name]
    legal = next(each for each in sampler.enumerate() if task.search.replay(Candidate(name, each)))
    program = taken(task.search.by_name[name], legal)
    write(tmp_path / "db", task, program)
    remeasure(model, tmp_path / "db", Fake(faster), rules=(templates,))
    found = entry(tmp_path / "db", task)
    assert str(found.schedule) == str(program)
    assert (found.record.us, found.record.sources) == (2.0, kernel_fingerprint())


def test_an_entry_that_does_not_replay_is_named_and_left_out(
    model: Path, tasks: list[GroupTask], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    product, softmax = tasks
    knobs = {**other(product).knobs(), "rows": 4, "chunk": 9}
    path = write(tmp_path / "db", product, UseAttr.get("matmul_cpu", knobs))
    before = path.read_bytes()
    write(tmp_path / "db", softmax, other(softmax))
    (group,) = remeasure(model, tmp_path / "db", Fake(faster))
    assert group.task.digest == softmax.digest
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: the entry of group unpack_matmul_relu 20x48 is left out: {path}: matmul_cpu: ")
    assert "overrun a chunk of 9 rows" in line
    assert path.read_bytes() == before


def test_a_default_that_cannot_be_timed_changes_nothing(model: Path, tasks: list[GroupTask], tmp_path: Path) -> None:
    write(tmp_path / "db", tasks[1], other(tasks[1]))
    before = files(tmp_path / "db")
    with pytest.raises(TreadleError, match="group softmax 20x48: the default schedule cannot be timed: it is wrong"):
        remeasure(model, tmp_path / "db", Fake(lambda count: [Timing(error="it is wrong")] * count))
    assert files(tmp_path / "db") == before


def test_what_the_time_does_not_suffice_for_stays_stale(
    model: Path, tasks: list[GroupTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "db", tasks[1], other(tasks[1]))
    before, fake = files(tmp_path / "db"), Fake(faster)
    monkeypatch.setattr(Tuner, "_left", lambda self: 0.0)
    (group,) = remeasure(model, tmp_path / "db", fake)
    assert (group.default_seconds, fake.calls) == (None, [])
    assert list(time_warnings([group], stale=True)) == [
        "softmax 20x48: the time did not suffice, the entries stay stale"
    ]
    assert list(time_warnings([group], stale=False)) == ["softmax 20x48: the time did not suffice"]
    assert files(tmp_path / "db") == before


def from_the_command_line(monkeypatch: pytest.MonkeyPatch, answer: Callable[[int], list[Timing]]) -> Fake:
    """Whatever the command measures has these times."""
    fake = Fake(answer)
    executor = ThreadPoolExecutor(1)
    monkeypatch.setattr("treadle.tools.tune_command.tune", partial(tune, executor=executor, measurer=fake))
    return fake


def test_the_command_says_what_became_of_them(
    model: Path, tasks: list[GroupTask], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    write(tmp_path / "db", tasks[0], other(tasks[0]))
    fake = from_the_command_line(monkeypatch, lambda count: [Timing(7e-6), Timing(error="it is wrong")])
    command = ["tune", str(model), "--database", str(tmp_path / "db"), "--stale"]
    assert main(command) == 0
    said = capsys.readouterr()
    (row,) = [line for line in said.out.splitlines() if line.startswith("│")]
    assert "unpack_matmul_relu 20x48  x2" in row
    assert "1.00x" in row
    (line,) = said.err.splitlines()
    assert line.endswith("x48: the default takes the place of a schedule that cannot be timed: it is wrong")
    assert main(command) == 0
    said = capsys.readouterr()
    assert said.out.startswith("nothing is stale: ")
    assert len(said.out.splitlines()) == 1
    assert fake.calls == [2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["m.onnx", "--dry-run"], "--stale: --dry-run is given; accepted: --stale without --dry-run"),
        (["m.onnx", "--report", "r.html"], "--stale: --report is given; accepted: --stale without --report"),
        ([], "--stale: there is no model; accepted: the model whose entries are measured anew"),
        (["m.onnx"], "there is no such folder; accepted: a database that `treadle tune` wrote"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: Sequence[str], says: str
) -> None:
    assert main(["tune", *arguments, "--database", str(tmp_path / "db"), "--stale"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert not (tmp_path / "db").exists()
