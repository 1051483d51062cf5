"""Calls in child processes: what crashes or hangs ends itself, nothing outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.threads import TASKS, tasks
from tests.helpers.waiting import HANGS, eventually
from treadle.tuning.child import CallEndedError, Child
from treadle.tuning.workers import ChildPool

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def child() -> Generator[Child]:
    one = Child()
    yield one
    one.close()


def test_results_and_exceptions_come_back(child: Child) -> None:
    assert child.call(partial(divmod, 17, 5), HANGS) == (3, 2)
    with pytest.raises(ZeroDivisionError):
        child.call(partial(divmod, 17, 0), HANGS)
    first = child.call(os.getpid, HANGS)
    assert first == child.call(os.getpid, HANGS) != os.getpid()


def test_a_call_that_ends_its_process_is_named_by_signal_or_status(child: Child) -> None:
    with pytest.raises(CallEndedError, match=r"^it ended the process that ran it \(SIGABRT\)$"):
        child.call(os.abort, HANGS)
    with pytest.raises(CallEndedError, match=r"\(exit status 3: no good\)"):
        child.call(partial(exec, "import os; os.write(2, b'so\\nno good\\n'); os._exit(3)"), HANGS)
    assert child.call(partial(abs, -1), HANGS) == 1


def test_a_call_that_hangs_is_ended(child: Child) -> None:
    assert child.call(partial(abs, -1), HANGS) == 1
    with pytest.raises(CallEndedError, match=r"^it did not end within 0\.1 seconds$"):
        child.call(partial(time.sleep, 60), 0.1)
    assert child.call(partial(abs, -1), HANGS) == 1


def threads_that_a_product_needs() -> int:
    """How many threads this process has beside Python's own after NumPy multiplied."""
    square = np.ones((1500, 1500))
    np.matmul(square, square)
    return len(tasks()) - threading.active_count()


@pytest.mark.skipif(not TASKS.exists(), reason="this system does not list threads")
def test_no_thread_of_a_library_spins_beside_what_is_timed(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)  # which tests set
    assert child.call(threads_that_a_product_needs, HANGS) == 0


class Unreadable:
    """A call that the other process cannot unpickle, as one whose module it does not have."""

    def __reduce__(self) -> tuple[object, ...]:
        return int, ("no number",)

    def __call__(self) -> None: ...


def test_a_call_that_cannot_be_read_there_is_an_error(child: Child) -> None:
    with pytest.raises(ValueError, match="no number"):
        child.call(Unreadable(), HANGS)
    assert child.call(partial(abs, -1), HANGS) == 1


def test_a_child_ends_with_a_parent_that_is_killed() -> None:
    script = (
        "import os, time, functools\n"
        "from treadle.tuning.child import Child\n"
        "child = Child()\n"
        "print(child.call(os.getpid, 600), flush=True)\n"
        "child.call(functools.partial(time.sleep, 600), 600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        number = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    _assert_ends(number)


STARTED = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, file=open({!r}, 'w')); "
"""Starts a process, as a call starts a compiler, and writes its number to a file."""


@pytest.mark.parametrize("end", ["import time; time.sleep(600)", "import os; os.abort()"])
def test_what_a_call_started_ends_with_it(child: Child, tmp_path: Path, end: str) -> None:
    number, began = tmp_path / "number", time.monotonic()
    killed = f"import os; os.kill(int(open({str(number)!r}).read()), 9)"
    child.call(partial(exec, STARTED.format(str(number)) + killed), HANGS)
    with pytest.raises(CallEndedError):  # the child runs by then, and a process starts in the time that both took
        child.call(partial(exec, STARTED.format(str(number)) + end), 1 + 2 * (time.monotonic() - began))
    _assert_ends(int(number.read_text()))
    assert child.call(partial(abs, -1), HANGS) == 1


def test_what_a_call_started_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    number = tmp_path / "number"
    call = STARTED.format(str(number)) + "import os; os.kill(os.getppid(), 9); import time; time.sleep(600)"
    script = (
        "import functools\n"
        "from treadle.tuning.child import Child\n"
        f"Child().call(functools.partial(exec, {call!r}), 600)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == -signal.SIGKILL
    _assert_ends(int(number.read_text()))


def _assert_ends(number: int) -> None:
    """A process ends."""
    assert eventually(lambda: not _runs(number)), f"process {number} lives on"


def _runs(number: int) -> bool:
    """Whether a process runs: one that nobody waited for has ended, too."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_pool_loses_the_call_that_crashes_and_no_other() -> None:
    with ChildPool(2, HANGS) as pool:
        futures = [pool.submit(os.abort if n == 3 else partial(abs, -n)) for n in range(8)]
        assert [None if n == 3 else future.result() for n, future in enumerate(futures)] == [0, 1, 2, None, 4, 5, 6, 7]
        assert isinstance(futures[3].exception(), CallEndedError)


def test_an_exception_ends_a_pool_at_once() -> None:
    futures: list[Future[None]] = []
    with pytest.raises(KeyboardInterrupt), ChildPool(1, 600) as pool:
        assert pool.submit(abs, -1).result() == 1
        futures += [pool.submit(time.sleep, 600), pool.submit(time.sleep, 600)]
        assert eventually(futures[0].running)
        raise KeyboardInterrupt
    assert isinstance(futures[0].exception(), CallEndedError)
    assert futures[1].cancelled()
