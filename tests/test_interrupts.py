"""Ctrl-C at every instruction of a call: the model is free afterwards, also while the exception is kept, as a console
keeps the last one."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import treadle
from tests.helpers.onnx_models import WEIGHTS, linear_model
from treadle.backends.call_lock import CallLock
from treadle.model import CompiledModel

X = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
Y = np.maximum(X @ WEIGHTS, 0)


def interrupted(action: Callable[[], object], at: int) -> tuple[bool, KeyboardInterrupt | None]:
    """Interrupts `action` before its `at`-th instruction: whether it has as many, and the exception, unless a finalizer
    swallowed it."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        if event == "opcode":
            count += 1
            if count == at:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt as error:
        return True, error
    finally:
        sys.settrace(before)
    return count >= at, None


def interrupts(action: Callable[[], object]) -> Iterator[KeyboardInterrupt | None]:
    """Interrupts at one instruction after the other. What is yielded holds the frames until the next one."""
    for at in itertools.count(1):
        happened, error = interrupted(action, at)
        if not happened:
            return
        yield error


def test_a_lock_is_free_after_any_interrupt() -> None:
    lock, done = CallLock("model"), list[int]()
    with ThreadPoolExecutor(1) as other:
        for _ in interrupts(lambda: lock.call(lambda: done.append(1))):
            assert lock.call(lambda: 1) == 1
            assert other.submit(lock.call, lambda: 2).result() == 2
    assert done


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CompiledModel:
    folder: Path = tmp_path_factory.mktemp("model")
    return treadle.compile(linear_model(folder / "m.onnx", rows="n"), shapes={"n": treadle.Dim("n", 1, 4)}, threads=2)


def test_a_model_is_called_after_any_interrupt(model: CompiledModel) -> None:
    model(X)
    with ThreadPoolExecutor(1) as other:
        for _ in interrupts(lambda: model(X)):
            np.testing.assert_allclose(model(X)[0], Y, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(other.submit(model, X).result()[0], Y, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_model_is_called_after_any_interrupt_of_close(model: CompiledModel) -> None:
    def close() -> None:
        model.close()

    model(X)
    for _ in interrupts(close):
        np.testing.assert_allclose(model(X)[0], Y, rtol=1e-5, atol=1e-6)
    assert model._program is None
