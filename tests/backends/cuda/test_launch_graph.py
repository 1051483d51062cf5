"""A capture that fails: the reason is what is told, and nothing is left behind."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from treadle.backends.cuda import bindings_driver
from treadle.backends.cuda.bindings_driver import CapturedGraph
from treadle.backends.cuda.driver import Device
from treadle.errors import TreadleError

OK, INVALIDATED = SimpleNamespace(value=0, name="ok"), SimpleNamespace(value=901, name="capture invalidated")


@pytest.mark.parametrize(("end", "destroyed"), [((OK, 7), [7]), ((INVALIDATED, None), []), ((INVALIDATED, 0), [])])
def test_the_reason_of_a_failed_capture_is_told(
    end: tuple[object, object], destroyed: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: list[object] = []
    cuda: Any = SimpleNamespace(
        CUstream=lambda handle: handle,
        CUstreamCaptureMode=SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1),
        cuStreamBeginCapture=lambda stream, mode: (OK,),
        cuStreamEndCapture=lambda stream: end,
        cuGraphDestroy=lambda graph: gone.append(graph) or (OK,),
        cuGetErrorString=lambda status: (OK, status.name.encode()),
    )
    monkeypatch.setattr(bindings_driver, "load", lambda: cuda)
    device = cast("Device", SimpleNamespace(stream_handle=1, current=lambda doing: nullcontext()))

    def queue() -> None:
        raise TreadleError("too many threads", "launching a kernel")

    with pytest.raises(TreadleError, match="launching a kernel: too many threads"):
        CapturedGraph(device, queue)
    assert gone == destroyed
