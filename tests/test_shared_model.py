"""One compiled model for many threads and for forked children, on compiled C and on emulated kernels.

Each caller gets its own answer, and nobody waits for ever.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import treadle
from tests.helpers.graphs import Graph, random
from tests.helpers.waiting import HANGS
from treadle import model as model_module
from treadle.backends.call_lock import CallLock
from treadle.backends.cuda.emulator import Emulator, Report
from treadle.dialects.graph import MatmulOp, SoftmaxOp, UnaryOp
from treadle.errors import TreadleError
from treadle.model import CompiledModel
from treadle.runtime import model as runtime_module
from treadle.target.options import Device

Array = NDArray[Any]
HARDWARE: list[tuple[str, Device | None]] = [("cpu", None), ("sm_80", "emulator")]
ROWS, TERMS, COLUMNS = 16, 512, 26
FIRST, SECOND = random(TERMS, COLUMNS) / 8, random(COLUMNS, 17, seed=1)
CALLERS = 6


def graph() -> Graph:
    """Two products with a softmax between them: temporaries, and on a GPU terms that several blocks share out."""
    return Graph(random(ROWS, TERMS, seed=2))


def expected(x: Array) -> Array:
    """What the model says, in f64."""
    scores = x.astype(np.float64) @ FIRST
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True) @ SECOND


def inputs(caller: int) -> Array:
    """A caller's own: results that were exchanged differ."""
    return random(ROWS, TERMS, seed=10 + caller)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of the model, compiled for a target."""
    folder = tmp_path_factory.mktemp("models")
    for target, _ in HARDWARE:
        g = graph()
        weights = g.add(SoftmaxOp(g.add(MatmulOp(g[0], g.constant(FIRST))), 1))
        # Of weights that are 0 or more it changes nothing, but the products are no attention, which is one kernel of
        # few blocks: what is tested are several kernels that share threads.
        weights = g.add(UnaryOp("relu", weights))
        module = g.module(g.add(MatmulOp(weights, g.constant(SECOND))))
        treadle.compile(module, target).save(folder / target)
    return lambda target: folder / target


def assert_right(results: Array, caller: int) -> None:
    np.testing.assert_allclose(results, expected(inputs(caller)), rtol=0, atol=2e-5)


def opened(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every program that models open from here on."""
    programs: list[object] = []
    for module, name in ((runtime_module, "open_cpu"), (model_module, "EmulatedModel")):
        original: Callable[..., object] = getattr(module, name)

        def opening(*arguments: object, original: Callable[..., object] = original, **options: object) -> object:
            time.sleep(0.01)  # wide enough for every other caller to come by
            programs.append(original(*arguments, **options))
            return programs[-1]

        monkeypatch.setattr(module, name, opening)
    return programs


@pytest.mark.parametrize(("target", "device"), HARDWARE)
def test_first_calls_open_one_program(
    target: str, device: Device | None, saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = opened(monkeypatch)
    model = treadle.load(saved(target), threads=2, device=device)
    together = threading.Barrier(CALLERS)

    def call(caller: int) -> list[Array]:
        together.wait()
        return [model(inputs(caller))[0] for _ in range(3)]

    with ThreadPoolExecutor(CALLERS) as pool:
        for caller, results in enumerate(pool.map(call, range(CALLERS))):
            for each in results:
                assert_right(each, caller)
    assert len(programs) == 1
    model.close()


@pytest.mark.parametrize(("target", "device"), HARDWARE)
def test_threads_that_open_a_model_open_one_program(
    target: str, device: Device | None, saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = opened(monkeypatch)
    model = treadle.load(saved(target), threads=2, device=device)
    together = threading.Barrier(CALLERS)

    def open_model(_: int) -> object:
        together.wait()
        return model.open()

    with ThreadPoolExecutor(CALLERS) as pool:
        assert {id(program) for program in pool.map(open_model, range(CALLERS))} == {id(programs[0])}
    assert len(programs) == 1
    model.close()


@pytest.mark.parametrize(("target", "device"), HARDWARE)
def test_calls_of_an_open_model_take_turns(
    target: str, device: Device | None, saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Emulator.launch

    def launch(*arguments: Any) -> Report:
        time.sleep(0.001)  # wide enough for another caller between two launches
        return original(*arguments)

    monkeypatch.setattr(Emulator, "launch", launch)
    model = treadle.load(saved(target), threads=2, device=device)
    model.open()
    with ThreadPoolExecutor(CALLERS) as pool:
        results = list(pool.map(lambda caller: [model(inputs(caller))[0] for _ in range(5)], range(CALLERS)))
    for caller, each in enumerate(results):
        for result in each:
            assert_right(result, caller)


@pytest.mark.parametrize(("target", "device"), HARDWARE)
def test_a_model_is_closed_while_others_call(target: str, device: Device | None, saved: Callable[[str], Path]) -> None:
    model = treadle.load(saved(target), threads=2, device=device)
    done, closed = threading.Event(), threading.Event()

    def close() -> None:
        while not done.wait(0.002):
            model.close()
            closed.set()

    def call(caller: int) -> list[Array]:
        assert closed.wait(HANGS)
        return [model(inputs(caller))[0] for _ in range(8)]

    with ThreadPoolExecutor(CALLERS + 1) as pool:
        closing = pool.submit(close)
        try:
            results = list(pool.map(call, range(CALLERS)))
        finally:
            done.set()
    closing.result()
    for caller, each in enumerate(results):
        for result in each:
            assert_right(result, caller)


@pytest.mark.parametrize(("target", "device"), HARDWARE)
def test_a_closed_program_says_so_and_a_closed_model_opens_again(
    target: str, device: Device | None, saved: Callable[[str], Path]
) -> None:
    model = treadle.load(saved(target), threads=2, device=device)
    program = model.open()
    model.close()
    model.close()
    with pytest.raises(TreadleError, match=r"closed|after close"):
        program.run([inputs(0)])
    assert_right(model(inputs(0))[0], 0)


CHILDREN = (
    "calls", "calls_from_threads", "has_threads", "closes", "closes_after_calls", "collects", "only_exits",
    "exits_during_calls", "forks_again", "during_calls", "in_processes",
)  # fmt: skip


@pytest.mark.parametrize(("target", "device"), [*HARDWARE, ("cpu", "pool")])
def test_forked_children_call_and_end(
    target: str, device: str | None, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", inputs(0))
    np.save(tmp_path / "y.npy", expected(inputs(0)))
    command = [sys.executable, "-m", "tests.fork_script", str(saved(target)), str(tmp_path), str(device)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == dict.fromkeys(CHILDREN, 0), done.stderr
    assert done.stderr == ""


class Lazy:
    """An input that is computed by the very model that it is for."""

    def __init__(self, model: CompiledModel, caller: int):
        self.model, self.caller = model, caller

    def __array__(self, dtype: object = None, copy: object = None) -> Array:
        assert_right(self.model(inputs(self.caller + 1))[0], self.caller + 1)
        return inputs(self.caller)


@pytest.mark.parametrize(("target", "device"), HARDWARE)
def test_an_input_may_need_the_model(target: str, device: Device | None, saved: Callable[[str], Path]) -> None:
    model = treadle.load(saved(target), threads=2, device=device)
    assert_right(model(Lazy(model, 0))[0], 0)


def test_a_call_inside_a_call_is_refused() -> None:
    lock = CallLock("model")

    def inside() -> None:
        with pytest.raises(TreadleError, match="model: called while a call of the same thread runs"):
            lock.call(lambda: None)

    lock.call(inside)
    assert lock.call(lambda: 1) == 1


def test_a_turn_ends_with_an_exception() -> None:
    lock = CallLock("model")

    def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        lock.call(fail)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: lock.call(lambda: 0)).result(timeout=HANGS) == 0
