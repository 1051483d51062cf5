"""A child that is forked while another thread holds a lock: that thread does not exist there, and the lock is free."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.forked import status_of_child
from treadle.artifact.store import store_of
from treadle.backends.c import open_artifact
from treadle.backends.c.compiler import Unit, build_library
from treadle.backends.cuda.emulator import build
from treadle.environment import load_environment
from treadle.index import expr
from treadle.index.expr import var


def index_algebra() -> None:
    assert var("forked", 0, 7) // 8 == 0


@cache
def _image() -> bytes:
    return build_library([Unit("empty", "int treadle_nothing;")]).read_bytes()


def load_library() -> None:
    open_artifact.load_library(_image())


def fetch_from_the_store() -> None:
    def produce(path: Path) -> None:
        path.write_bytes(b"made")

    store_of(load_environment()).fetch("objects", f"made-by-{os.getpid()}", ".o", produce)


def build_for_the_emulator() -> None:
    build.build_text('extern "C" __global__ void k(float *y) { y[0] = 1; }', "k.cu", False, load_environment())


def under(lock: Callable[[], AbstractContextManager[object]]) -> Callable[[Callable[[], object]], object]:
    def hold(action: Callable[[], object]) -> None:
        with lock():
            action()

    return hold


@pytest.mark.parametrize(
    ("hold", "action"),
    [
        (under(lambda: expr._interning), index_algebra),
        (open_artifact._loading.call, load_library),
        (under(lambda: store_of(load_environment())._lock), fetch_from_the_store),
        (build._ONE_RUNTIME.call, build_for_the_emulator),
    ],
)
def test_a_lock_that_was_held_at_the_fork_is_free(
    hold: Callable[[Callable[[], object]], object], action: Callable[[], None]
) -> None:
    action()  # what it imports and compiles is there
    holding, done = threading.Event(), threading.Event()

    def wait() -> None:
        holding.set()
        done.wait()

    holder = threading.Thread(target=hold, args=(wait,))
    holder.start()
    holding.wait()
    try:
        assert status_of_child(action) == 0
    finally:
        done.set()
        holder.join()
