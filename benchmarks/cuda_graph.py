"""A program's launches as one CUDA graph. pycuda has none: cuda-bindings capture on pycuda's own stream."""

from __future__ import annotations

import importlib
from typing import Any

from treadle.backends.cuda.driver import PycudaDriver
from treadle.backends.cuda.executor import CudaProgram
from treadle.errors import TreadleError


class ProgramGraph:
    """The kernels of a program that has run before, recorded once and launched as one.

    Raises `TreadleError` where the driver refuses.
    """

    def __init__(self, program: CudaProgram, driver: PycudaDriver) -> None:
        self._cuda: Any = importlib.import_module("cuda.bindings.driver")
        self._driver = driver
        self._stream = self._cuda.CUstream(driver.stream_handle)
        mode = self._cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        with driver.current("recording a graph"):
            self._checked(self._cuda.cuStreamBeginCapture(self._stream, mode))
            try:
                program.launch()
            finally:
                graph = self._checked(self._cuda.cuStreamEndCapture(self._stream))
            try:
                self._instance: Any = self._checked(self._cuda.cuGraphInstantiate(graph, 0))
            finally:
                self._checked(self._cuda.cuGraphDestroy(graph))

    def launch(self, times: int = 1) -> None:
        """Queues all kernels, `times` times in a row."""
        with self._driver.current("launching a graph"):
            for _ in range(times):
                self._checked(self._cuda.cuGraphLaunch(self._instance, self._stream))

    def close(self) -> None:
        """Gives the recording back; it cannot be launched afterwards."""
        if self._instance is not None:
            with self._driver.current("closing a graph"):
                self._checked(self._cuda.cuGraphExecDestroy(self._instance))
            self._instance = None

    @staticmethod
    def _checked(result: tuple[Any, ...]) -> Any:
        """The value that a call of the binding returned beside its status."""
        status, *values = result
        if status.value != 0:
            raise TreadleError(f"the GPU failed: {status.name}", where="CUDA graph")
        return values[0] if values else None
