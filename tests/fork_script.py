"""Forks after calls of a compiled model: `python -m tests.fork_script MODEL DATA DEVICE` prints how each child ended.

MODEL is an artifact, DATA holds its input `x.npy` and output `y.npy`; DEVICE is `None`, `emulator`, or `pool` for a
model that shares its threads with another. A process of its own, since only it can fork with
nothing but the model's threads, and a child that hangs must not take the tests with it.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import treadle
from tests.helpers.waiting import HANGS
from treadle.errors import TreadleError
from treadle.model import CompiledModel
from treadle.target.options import Device

THREADS = 3


class Scene:
    """The model, and the check of a call."""

    def __init__(self, artifact: Path, data: Path, device: str):
        self.device: Device | None = "emulator" if device == "emulator" else None
        threads = treadle.ThreadPool(THREADS) if device == "pool" else THREADS
        self.model: CompiledModel | None = treadle.load(artifact, threads=threads, device=self.device)
        if isinstance(threads, treadle.ThreadPool):
            self.neighbour = treadle.load(artifact, threads=threads)
            self.neighbour.open()
        self.x, self.y = np.load(data / "x.npy"), np.load(data / "y.npy")

    def call(self, _: int = 0) -> None:
        assert self.model is not None
        np.testing.assert_allclose(self.model(self.x)[0], self.y, rtol=0, atol=2e-5)

    def calls(self) -> None:
        for _ in range(3):
            self.call()

    def calls_from_threads(self) -> None:
        threads = [threading.Thread(target=self.calls) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def has_threads(self) -> None:
        """On the CPU a child's first call starts threads of its own; until then it has one."""
        before = threads_of_process()
        self.call()
        assert before == 1 and (self.device is not None or threads_of_process() == THREADS)

    def closes(self) -> None:
        assert self.model is not None
        self.model.close()

    def closes_after_calls(self) -> None:
        self.calls()
        self.closes()
        self.calls()

    def collects(self) -> None:
        self.model = None
        gc.collect()

    def only_exits(self) -> None:
        pass

    def exits_during_calls(self) -> None:
        called = [threading.Event() for _ in range(2)]

        def call(once: threading.Event) -> None:
            with suppress(TreadleError):  # the program is closed
                while True:
                    self.call()
                    once.set()

        for each in called:
            threading.Thread(target=call, args=(each,), daemon=True).start()
        for each in called:
            assert each.wait(HANGS)

    def forks_again(self) -> None:
        assert in_child(self.calls) == 0
        self.calls()
        assert in_child(self.closes_after_calls) == 0


def threads_of_process() -> int:
    """How many threads this process has, whoever started them."""
    return len(os.listdir("/proc/self/task"))


def in_child(action: Callable[[], Any]) -> int:
    """The exit status of a fork that does `action` and ends as programs do; negative: the signal that killed it."""
    child = os.fork()
    if child == 0:
        signal.alarm(int(HANGS))
        action()
        sys.exit()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def during_calls(scene: Scene) -> int:
    """The worst status of children that call, forked while two threads of the parent do."""
    done = threading.Event()

    def call() -> None:
        while not done.is_set():
            scene.call()

    callers = [threading.Thread(target=call) for _ in range(2)]
    for caller in callers:
        caller.start()
    statuses = [in_child(scene.closes_after_calls) for _ in range(5)]
    done.set()
    for caller in callers:
        caller.join()
    return min(statuses, key=lambda status: (status == 0, status))


def in_processes(scene: Scene) -> int:
    """The worst exit status of multiprocessing's workers that call the model which they inherited."""
    workers = [multiprocessing.get_context("fork").Process(target=scene.calls) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(HANGS)
    return max(1 if worker.exitcode is None else abs(worker.exitcode) for worker in workers)


def main() -> None:
    """Prints a JSON object: how the child of each kind ended."""
    artifact, data, device = sys.argv[1:]
    scene = Scene(Path(artifact), Path(data), device)
    scene.calls()
    actions = (
        scene.calls, scene.calls_from_threads, scene.has_threads, scene.closes, scene.closes_after_calls,
        scene.collects, scene.only_exits, scene.exits_during_calls, scene.forks_again,
    )  # fmt: skip
    ends = {action.__name__: in_child(action) for action in actions}
    ends["during_calls"] = during_calls(scene)
    scene.calls()
    ends["in_processes"] = in_processes(scene)
    print(json.dumps(ends))


if __name__ == "__main__":
    main()
