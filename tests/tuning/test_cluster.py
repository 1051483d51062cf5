"""A Dask scheduler and two workers on this machine, one of which is killed: nothing is lost."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from tests.helpers.waiting import eventually
from tests.tuning.small_model import write_model
from treadle.errors import TreadleError
from treadle.schedules.search.database import Database
from treadle.target.host import hardware_of, host_target
from treadle.tools.treadle_cli import main
from treadle.tuning.tasks import cluster
from treadle.tuning.workers import Workers, this_machine

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="Dask is not installed")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.onnx")


@dataclass
class Dask:
    """A scheduler and its workers, each the leader of a group of processes."""

    address: str
    workers: list[subprocess.Popen[bytes]]


@pytest.fixture
def dask(tmp_path: Path) -> Generator[Dask]:
    """Two workers with a process each; the first has a nanny that would start it again, as `dask worker` by default."""
    file = str(tmp_path / "scheduler.json")
    with ExitStack() as stack:
        started(stack, "scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", file)
        workers = [
            started(stack, "worker", "--scheduler-file", file, "--nthreads", "1", "--no-dashboard", "--local-directory",
                    str(tmp_path / f"worker{n}"), nanny)
            for n, nanny in enumerate(["--nanny", "--no-nanny"])
        ]  # fmt: skip
        yield Dask(address_in(Path(file)), workers)


def started(stack: ExitStack, role: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A process of Dask's, ended with all of its own by the stack."""
    command = [sys.executable, "-m", f"distributed.cli.dask_{role}", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
    stack.callback(killed, process)
    return process


def killed(process: subprocess.Popen[bytes]) -> None:
    """A process and those that it started are gone."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def address_in(file: Path) -> str:
    """The scheduler's address, once it has written it."""
    assert eventually(lambda: file.is_file() and '"address": "' in file.read_text()), "the scheduler does not start"
    return file.read_text().partition('"address": "')[2].partition('"')[0]


def group_after(seconds: float) -> int:
    """The group of processes that this one belongs to: the worker."""
    time.sleep(seconds)
    return os.getpgid(0)


def both_groups(workers: Workers) -> set[object]:
    """The groups of both workers, once both have taken calls, which last long enough for one not to take all."""
    groups: set[object] = set()
    while len(groups) < 2:
        groups |= set(workers.call_all(group_after, [0.05] * 4))
    return groups


def group_at_work(begun: Path, doomed: int) -> int:
    """The group of processes, once the doomed worker has begun such a call, which does not end there."""
    if os.getpgid(0) == doomed:
        begun.touch()
        eventually(lambda: False)
    assert eventually(begun.exists)
    return os.getpgid(0)


def kill_once(condition: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    """Kills a worker as soon as a condition is true."""

    def wait_and_kill() -> None:
        eventually(condition)
        killed(process)

    Thread(target=wait_and_kill, daemon=True).start()


def test_a_worker_that_is_killed_at_work_loses_nothing(dask: Dask, tmp_path: Path) -> None:
    with cluster(dask.address) as workers:
        assert workers.machine == this_machine()
        assert both_groups(workers) == {process.pid for process in dask.workers}
        begun, doomed = tmp_path / "begun", dask.workers[0]
        kill_once(begun.exists, doomed)
        calls = workers.call_all(partial(group_at_work, doomed=doomed.pid), [begun] * 4)
        assert set(calls) == {dask.workers[1].pid}


@pytest.mark.slow
def test_a_search_that_loses_a_worker_loses_no_candidate(
    dask: Dask, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Candidates are built and timed by both workers, then by the one that is left."""
    with cluster(dask.address) as workers:
        both_groups(workers)
    kill_once(lambda: list((tmp_path / "db").rglob("*.jsonl")), dask.workers[0])
    arguments = ["--database", str(tmp_path / "db"), "--trials", "20", "--seconds", "60", "--scheduler", dask.address]
    assert main(["tune", str(model), *arguments]) == 0
    assert eventually(lambda: dask.workers[0].poll() is not None)
    assert "softmax" in capsys.readouterr().out
    database = Database(tmp_path / "db")
    files = list((tmp_path / "db").rglob("*.jsonl"))
    trials = [t for path in files for t in database.trials(path.stem[-12:], hardware_of(host_target()))]
    assert len(trials) >= 20
    assert [trial for trial in trials if trial.us is None] == []


def test_no_scheduler_is_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.tuning.tasks._CONNECT_SECONDS", 0.5)
    arguments = ["tune", str(model), "--database", str(tmp_path / "db"), "--scheduler"]
    for address, says in (("tcp://127.0.0.1:1", "no scheduler answers"), ("nowhere://x", "no scheduler answers")):
        assert main([*arguments, address]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{address}: {says}" in line
        assert "accepted: the address of a running `dask scheduler`" in line


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    says = r"Dask is not installed; accepted: pip install 'treadle\[dask\]'"
    with pytest.raises(TreadleError, match=says), cluster("tcp://127.0.0.1:1"):
        pass
