"""A capture that fails: the reason is what is told, and nothing is left behind."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from treadle.backends.cuda import stream_work
from treadle.backends.cuda.driver import BoundLaunch
from treadle.backends.cuda.stream_work import CapturedGraph, StreamWork
from treadle.errors import TreadleError

INVALIDATED, GRAPH = 901, 7


class Refusing(StreamWork):
    """A device that takes no launch."""

    stream_handle = recording_handle = 1

    def current(self, doing: str) -> AbstractContextManager[None]:
        """See `Device`."""
        return nullcontext()

    def record_launch(self, launch: BoundLaunch) -> None:
        """See `StreamWork`."""
        raise TreadleError("too many threads", "launching a kernel")


class Library:
    """A driver whose captures end so."""

    def __init__(self, status: int, graph: int | None) -> None:
        self.status, self.graph = status, graph
        self.destroyed: list[int | None] = []

    def cuStreamBeginCapture_v2(self, stream: object, mode: int) -> int:
        return 0

    def cuStreamEndCapture(self, stream: object, out: Any) -> int:
        ctypes.cast(out, ctypes.POINTER(ctypes.c_void_p))[0] = self.graph
        return self.status

    def cuGraphDestroy(self, graph: ctypes.c_void_p) -> int:
        self.destroyed.append(graph.value)
        return 0


@pytest.mark.parametrize(("status", "graph", "destroyed"), [(0, GRAPH, [GRAPH]), (INVALIDATED, None, [])])
def test_the_reason_of_a_failed_capture_is_told(
    status: int, graph: int | None, destroyed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(status, graph)
    monkeypatch.setattr(stream_work, "_library", lambda: library)
    with pytest.raises(TreadleError, match="launching a kernel: too many threads"):
        CapturedGraph(Refusing(), [BoundLaunch(object(), (1, 1, 1), (1, 1, 1), ())])
    assert library.destroyed == destroyed
