"""Runs a whole lowered model on the emulator, kernel by kernel, as the executor runs it on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Attribute

from treadle.backends.buffers import BufferRef
from treadle.backends.cuda.emulator.emulator import CHECKS, Emulator
from treadle.backends.cuda.emulator.findings import Report
from treadle.backends.cuda.printer import print_kernels
from treadle.backends.program import read_program
from treadle.dialects.cuda import KernelOp
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.errors import TreadleError
from treadle.knobs import Knobs, available_cores, load_knobs

Array = np.ndarray[Any, Any]


class EmulatedProgram:
    """A module after the stage `lower` for a GPU, compiled for the emulator.

    `checks`, `counters`, `limit` (seconds a kernel) and `knobs` are those of `Emulator`. Raises what the printer and
    `Emulator` raise.
    """

    def __init__(
        self,
        module: ModuleOp,
        checks: Sequence[str] = tuple(CHECKS),
        *,
        counters: bool = False,
        limit: float = 60.0,
        knobs: Knobs | None = None,
    ):
        settings = load_knobs() if knobs is None else knobs
        self._program = read_program(module)
        self._constants = [constant.array() for constant in self._program.constants]
        self._kernels = {op.sym_name.data: op for op in module.walk() if isinstance(op, KernelOp)}
        units = print_kernels(module)

        def compiled(text: str) -> Emulator:
            return Emulator(text, checks, counters=counters, limit=limit, knobs=settings)

        with ThreadPoolExecutor(available_cores()) as pool:
            emulators = pool.map(compiled, [unit.text for unit in units])
            self._emulators = dict(zip((unit.name for unit in units), emulators, strict=True))

    def run(self, arrays: Sequence[Array]) -> tuple[list[Array], list[Report]]:
        """The model's outputs for `arrays`, and the report of every launch in order.

        Raises TreadleError for an input of another shape or type, and what a launch raises.
        """
        inputs = [np.ascontiguousarray(array) for array in arrays]
        found = [(array.shape, array.dtype) for array in inputs]
        if found != [(spec.shape, spec.dtype) for spec in self._program.inputs]:
            accepted = ", ".join(map(str, self._program.inputs)) or "no inputs"
            raise TreadleError("inputs of other shapes or types", "emulator", accepted)
        outputs: list[Array] = [np.zeros(spec.shape, spec.dtype) for spec in self._program.outputs]
        memory: dict[str, Sequence[Array]] = {
            "input": inputs,
            "output": outputs,
            "constant": self._constants,
            "arena": [_aligned(self._program.arena_bytes)],
        }
        reports: list[Report] = []
        for launch in self._program.launches:
            kernel = self._kernels[launch.kernel]
            types = [argument.type for argument in kernel.body.block.args]
            args = [_view(memory, ref, type) for ref, type in zip(launch.buffers, types, strict=True)]
            shared = kernel.shared_bytes(dynamic=True)
            emulator = self._emulators[launch.kernel]
            reports.append(emulator.launch(launch.kernel, kernel.grid_shape, kernel.block_shape, args, shared))
        return outputs, reports


def _view(memory: dict[str, Sequence[Array]], reference: BufferRef, type: Attribute) -> Array:
    """A kernel's argument: a whole array, or the part of the arena that the argument's type spans."""
    if reference.kind != "arena":
        return memory[reference.kind][reference.index]
    if not isinstance(type, MemRefType):
        raise TreadleError(f"an argument of type {type}", "emulator", "memrefs")
    dtype = numpy_dtype(type.element_type)
    size = prod(type.get_shape()) * dtype.itemsize
    return memory["arena"][0][reference.index : reference.index + size].view(dtype)


def _aligned(bytes: int) -> Array:
    """Memory of unlikely numbers that begins at a multiple of 256, as device memory does."""
    raw = np.full(bytes + 256, 0xFF, np.uint8)
    start = -raw.ctypes.data % 256
    return raw[start : start + bytes]
