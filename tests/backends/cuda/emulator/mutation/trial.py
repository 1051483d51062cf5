"""One launch of a kernel or mutant: what the checks say, and what it computed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.backends.cuda.emulator.mutation.kernels import SharedKernel
from treadle.backends.cuda.emulator import CHECKS, Emulator
from treadle.environment import Environment
from treadle.errors import TreadleError

Array = np.ndarray[Any, Any]

SAMPLED = 4
"""Blocks at either end of the grid that a sampled launch consists of."""

_NEVER_WRITTEN = 0xFF
_ALIGNMENT = 256


@dataclass(frozen=True)
class Trial:
    """The kind of the first finding ("error" for a launch that could not go on), and the output buffers' bytes."""

    finding: str | None
    said: str
    outputs: tuple[bytes, ...]


class Bench:
    """Runs texts on one kernel's launch, with the same random arguments every time."""

    def __init__(self, kernel: SharedKernel, environment: Environment, limit: float = 60.0):
        self.kernel, self._environment, self._limit = kernel, environment, limit
        rng = np.random.default_rng(0)
        head = next(line for line in kernel.text.splitlines() if f" {kernel.name}(" in line)
        parameters = head.split(f" {kernel.name}(")[1].split(",")
        self._constant = tuple(parameter.strip().startswith("const ") for parameter in parameters)
        self._inputs = [
            _drawn(rng, size, np.dtype(name)) if constant else np.zeros(size) if n in kernel.zeroed else None
            for n, ((size, name), constant) in enumerate(zip(kernel.buffers, self._constant, strict=True))
        ]

    @property
    def samples(self) -> bool:
        """Whether the launch has blocks that a sampled one leaves out."""
        x, y, z = self.kernel.grid
        return y == z == 1 and x > 2 * SAMPLED

    def run(self, text: str, *, checked: bool = True, sampled: bool = False) -> Trial:
        """Launches the kernel of `text`, in full or only the first and the last blocks of its grid."""
        arrays = self._arrays()
        return self._launch(self._sampled(text) if sampled else text, arrays, arrays, checked, sampled)

    def noted(self, text: str, *, checked: bool = False, poison: float = 0.0) -> tuple[list[int], tuple[bytes, ...]]:
        """Launches a text whose kernel has one more parameter, `int *`; the four numbers that it noted there, and the
        outputs' bytes. Behind the four lie 32 bytes of `poison` as float32.

        A checked text rounds as the kernel's own checked text does. Findings do not count: threads race to note.
        """
        arrays, noted = self._arrays(), _aligned(12, np.dtype(np.int32), np.zeros(12))
        noted[4:].view(np.float32)[:] = poison
        trial = self._launch(text, [*arrays, noted], arrays, checked, sampled=False)
        if trial.finding == "error":
            raise AssertionError(f"{self.kernel.name}: {trial.said}")
        return noted[:4].tolist(), trial.outputs

    def _launch(self, text: str, args: list[Array], arrays: list[Array], checked: bool, sampled: bool) -> Trial:
        kernel = self.kernel
        grid = (2 * SAMPLED, 1, 1) if sampled else kernel.grid
        finding, said = None, ""
        try:
            emulator = Emulator(
                text, tuple(CHECKS) if checked else (), limit=self._limit, environment=self._environment
            )
            report = emulator.launch(kernel.name, grid, kernel.block, args, kernel.shared_bytes)
            if report.findings:
                finding, said = report.findings[0].kind, str(report)
        except TreadleError as error:
            finding, said = "error", str(error)
        outputs = (array.tobytes() for array, constant in zip(arrays, self._constant, strict=True) if not constant)
        return Trial(finding, said, tuple(outputs))

    def _arrays(self) -> list[Array]:
        """The inputs, and outputs that nothing has written to, aligned as device memory is."""
        return [
            _aligned(size, np.dtype(name), given)
            for (size, name), given in zip(self.kernel.buffers, self._inputs, strict=True)
        ]

    def _sampled(self, text: str) -> str:
        left_out = self.kernel.grid[0] - 2 * SAMPLED
        chosen = f"(blockIdx.x < {SAMPLED} ? blockIdx.x : blockIdx.x + {left_out})"
        return re.sub(r"\bblockIdx\.x\b", chosen, text)


def _drawn(rng: np.random.Generator, size: int, dtype: np.dtype[Any]) -> Array:
    """Numbers about 0, or 0 and 1, which as an index lie in any buffer of two elements."""
    return (rng.normal(0, 0.5, size) if dtype.kind == "f" else rng.integers(0, 2, size)).astype(dtype)


def _aligned(size: int, dtype: np.dtype[Any], given: Array | None) -> Array:
    raw = np.full(size * dtype.itemsize + _ALIGNMENT, _NEVER_WRITTEN, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    array = raw[start : start + size * dtype.itemsize].view(dtype)
    if given is not None:
        array[:] = given
    return array
