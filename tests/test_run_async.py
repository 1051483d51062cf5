"""Calls that run in another thread: what they give and raise, in which order, and what ends them."""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle
from tests.helpers.onnx_models import WEIGHTS, linear_model
from tests.helpers.waiting import HANGS
from treadle.errors import TreadleError

X = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)


@pytest.fixture
def model(tmp_path: Path) -> treadle.CompiledModel:
    return treadle.compile(linear_model(tmp_path / "m.onnx"))


def test_a_future_has_the_outputs(model: treadle.CompiledModel) -> None:
    expected = [model(X * factor)[0] for factor in range(8)]
    futures = [model.run_async(X * factor) if factor % 2 else model.run_async(x=X * factor) for factor in range(8)]
    for future, right in zip(futures, expected, strict=True):
        assert isinstance(future, Future)
        np.testing.assert_array_equal(future.result(HANGS)[0], right)


def test_calls_run_in_order_in_a_thread_of_their_own(model: treadle.CompiledModel) -> None:
    seen: list[tuple[int, int]] = []
    futures = [model.run_async(X) for _ in range(5)]
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: seen.append((number, threading.get_ident())))
    assert not wait(futures, HANGS).not_done
    model.close()  # the last callback may still run
    assert [number for number, _ in seen] == list(range(5))


def test_the_caller_goes_on_meanwhile(model: treadle.CompiledModel) -> None:
    def submit() -> Future[Any]:
        future = model.run_async(X)
        assert not future.done()
        return future

    assert len(model._calls.call(submit).result(HANGS)) == 1, "it could not run before"


def test_the_thread_of_a_dropped_model_ends(tmp_path: Path) -> None:
    dropped = treadle.compile(linear_model(tmp_path / "m.onnx"))
    before = set(threading.enumerate())
    assert len(dropped.run_async(X).result(HANGS)) == 1
    (thread,) = (each for each in set(threading.enumerate()) - before if each.name.startswith("treadle-call"))
    del dropped
    gc.collect()
    thread.join(HANGS)
    assert not thread.is_alive()


def test_wrong_inputs_are_an_error_at_once(model: treadle.CompiledModel) -> None:
    for arguments, named in (((), {}), ((X, X), {}), ((X[:1],), {}), ((), {"y": X})):
        with pytest.raises(TreadleError):
            model.run_async(*arguments, **named)


def test_an_error_of_the_call_is_the_future_s(model: treadle.CompiledModel, tmp_path: Path) -> None:
    model.save(tmp_path / "saved")
    (tmp_path / "saved" / "model.so").write_bytes(b"damaged")
    future = treadle.load(tmp_path / "saved").run_async(X)
    assert isinstance(future.exception(HANGS), TreadleError)


def test_close_waits(model: treadle.CompiledModel) -> None:
    futures = [model.run_async(X) for _ in range(20)]
    model.close()
    assert all(future.done() for future in futures)
    np.testing.assert_allclose(model.run_async(X).result(HANGS)[0], np.maximum(X @ WEIGHTS, 0), rtol=1e-5, atol=1e-6)


def test_a_callback_may_close_the_model(model: treadle.CompiledModel) -> None:
    closed = threading.Event()

    def close(_: Future[Any]) -> None:
        model.close()
        closed.set()

    model.run_async(X).add_done_callback(close)
    assert closed.wait(HANGS)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_a_thread_of_its_own(model: treadle.CompiledModel) -> None:
    right = model.run_async(X).result(HANGS)[0]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = int(not np.array_equal(model.run_async(X).result(HANGS)[0], right))
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
