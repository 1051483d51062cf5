"""Launches as one CUDA graph, captured by cuda-bindings on the stream of whichever driver queues them."""

from __future__ import annotations

from collections.abc import Callable

from treadle.backends.cuda.bindings import call, load
from treadle.backends.cuda.driver import Device
from treadle.errors import TreadleError


class CapturedGraph:
    """A `LaunchGraph` of what `queue` puts on the device's stream: captured once, launched as one."""

    def __init__(self, device: Device, queue: Callable[[], None]) -> None:
        """Raises `TreadleError` where the driver refuses, and where cuda-bindings are not installed."""
        self._cuda = load()
        self._device = device
        self._stream = self._cuda.CUstream(device.stream_handle)
        self._instance: object | None = None
        mode = self._cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        with device.current(_CAPTURING):
            call(_CAPTURING, self._cuda.cuStreamBeginCapture, self._stream, mode)
            try:
                queue()
            except BaseException:
                self._abandon()
                raise
            graph = call(_CAPTURING, self._cuda.cuStreamEndCapture, self._stream)
            try:
                self._instance = call(_CAPTURING, self._cuda.cuGraphInstantiate, graph, 0)
            finally:
                call(_CAPTURING, self._cuda.cuGraphDestroy, graph)

    def _abandon(self) -> None:
        """Ends a capture that failed; what the driver says of that would hide why it did."""
        _, graph = self._cuda.cuStreamEndCapture(self._stream)
        if graph is not None and int(graph):
            self._cuda.cuGraphDestroy(graph)

    def launch(self, times: int = 1) -> None:
        """See `LaunchGraph`."""
        doing = "launching a graph"
        if self._instance is None:
            raise TreadleError("the graph was closed", where=doing)
        with self._device.current(doing):
            for _ in range(times):
                call(doing, self._cuda.cuGraphLaunch, self._instance, self._stream)

    def close(self) -> None:
        """See `LaunchGraph`."""
        if self._instance is None:
            return
        with self._device.current("closing a graph"):
            call("closing a graph", self._cuda.cuGraphExecDestroy, self._instance)
        self._instance = None


_CAPTURING = "capturing a graph"
