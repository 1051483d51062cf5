"""Calls on any executor: what a candidate does to a worker is its own failure, what ends the search is said."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, cast

import pytest

import treadle
from treadle.errors import TreadleError
from treadle.tuning import workers as module
from treadle.tuning.workers import ChildPool, Failed, OutOfTimeError, Workers, this_machine, workers_of


def negated(number: int) -> int:
    """-1 times a number; 3, 4 and 5 go wrong in their own ways."""
    if number == 3:
        raise ValueError("not 3\nand so on")
    if number == 4:
        raise TreadleError("no room", "disk", "room")
    return -number


class Here(Executor):
    """Makes calls at once; `broken` ones are never made."""

    def __init__(self, broken: tuple[int, ...] = ()):
        self.broken = broken

    def submit(self, fn, /, *args, **kwargs):  # pyright: ignore[reportIncompatibleMethodOverride, reportMissingParameterType]
        future: Future[object] = Future()
        if args[-1] in self.broken:
            future.cancel()
            future.set_running_or_notify_cancel()
            return future
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def workers(executor: Executor) -> Workers:
    return Workers(executor, this_machine())


def test_what_a_call_raises_is_its_own_failure() -> None:
    assert workers(Here()).call_all(negated, [1, 3, 2]) == [-1, Failed("ValueError: not 3"), -2]


def test_what_is_wrong_with_the_machine_ends_all_calls() -> None:
    with pytest.raises(TreadleError, match="disk: no room"):
        workers(Here()).call_all(negated, [1, 4, 2])


def test_a_lost_executor_is_no_candidates_fault() -> None:
    with pytest.raises(TreadleError, match="the workers are gone: CancelledError; accepted: the same command, which"):
        workers(Here((2,))).call_all(negated, [1, 2])
    with pytest.raises(TreadleError, match="the workers are gone"):
        workers(Here((2,))).call(negated, 2)
    pool = ChildPool(1, 1)
    pool.shutdown()
    with pytest.raises(TreadleError, match="the workers are gone: cannot schedule new futures after shutdown"):
        workers(pool).call_all(negated, [1])


def test_workers_are_machines_of_one_kind() -> None:
    other = Workers(Here(), replace(this_machine(), hardware="Z80 1 core"))
    with pytest.raises(
        TreadleError, match=r"a worker is a machine of another kind: .*; accepted: workers that are Z80 1 core"
    ):
        other.call_all(negated, [1])


def test_workers_have_the_same_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    here = this_machine()
    assert workers_of(Here()).machine == here
    monkeypatch.setattr(module, "this_machine", lambda _=None: replace(here, sources="older"))
    with pytest.raises(TreadleError, match="a worker has another version of treadle; accepted: the same sources"):
        workers_of(Here())


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("sources", "a worker has another version of treadle; accepted: the same sources everywhere"),
        ("kernels", "a worker has another version of treadle; accepted: the same sources everywhere"),
        ("compiler", "a worker has another compiler: older; accepted: "),
        ("target_text", "a worker compiles for another target: older; accepted: "),
    ],
)
def test_every_worker_is_compared_not_only_the_first(monkeypatch: pytest.MonkeyPatch, field: str, says: str) -> None:
    """The second worker that takes a call is another machine than the one that was asked first."""
    here = this_machine()
    asked = workers_of(Here())
    monkeypatch.setattr(module, "this_machine", lambda _=None: replace(here, **{field: "older"}))
    with pytest.raises(TreadleError, match=says):
        asked.call_all(negated, [1])
    with pytest.raises(TreadleError, match=says):
        asked.call(negated, 1)


def test_what_is_no_executor_is_refused_before_the_search(tmp_path: Path) -> None:
    with pytest.raises(TreadleError, match=r"tune: executor is object; accepted: a concurrent\.futures\.Executor"):
        treadle.tune("no-such-model.onnx", tmp_path / "db", executor=cast("Any", object()))
    assert not (tmp_path / "db").exists()


class Later(Executor):
    """Makes no call before it is told to."""

    def __init__(self) -> None:
        self.futures: list[Future[object]] = []

    def submit(self, fn, /, *args, **kwargs):  # pyright: ignore[reportIncompatibleMethodOverride, reportMissingParameterType]
        del fn, args, kwargs
        self.futures.append(Future())
        return self.futures[-1]


def test_calls_that_do_not_end_in_time_are_abandoned() -> None:
    executor, abandoned = Later(), list[bool]()
    there = Workers(executor, this_machine(), lambda: abandoned.append(all(f.cancelled() for f in executor.futures)))
    with pytest.raises(OutOfTimeError):
        there.call_all(negated, [1, 2], lambda: 0.0)
    assert abandoned == [True]


def test_a_pool_goes_on_after_calls_that_were_abandoned() -> None:
    with ChildPool(1, 600) as pool:
        there = Workers(pool, this_machine(), pool.abandon)
        assert there.call_all(negated, [1]) == [-1]
        with pytest.raises(OutOfTimeError):
            there.call_all(endless_call, [1], lambda: 0.0)
        assert there.call_all(negated, [1, 2]) == [-1, -2]


def endless_call(number: int) -> int:
    """A call that ends only with its process."""
    Event().wait()
    return number
