"""Runs a whole lowered model on the emulator, kernel by kernel, as the executor runs it on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Attribute

from treadle.backends.cuda.emulator.emulator import CHECKS
from treadle.backends.cuda.emulator.launches import Argument, Emulation, Launch, Launches, Output, Text, compiled
from treadle.backends.cuda.emulator.reports import Report
from treadle.backends.cuda.printer import print_kernels
from treadle.backends.interface import BufferRef
from treadle.backends.program import read_program
from treadle.dialects.cuda import KernelOp
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.environment import Environment, load_environment
from treadle.errors import TreadleError

Array = np.ndarray[Any, Any]


class EmulatedProgram:
    """A module after the stage `lower` for a GPU, compiled for the emulator.

    `checks`, `counters`, `limit` (seconds a kernel) and `environment` are those of `Emulator`. Raises what the printer
    and `Emulator` raise.
    """

    def __init__(
        self,
        module: ModuleOp,
        checks: Sequence[str] = tuple(CHECKS),
        *,
        counters: bool = False,
        limit: float | None = None,
        environment: Environment | None = None,
    ):
        program = read_program(module)
        self._inputs = program.inputs
        kernels = {op.sym_name.data: op for op in module.walk() if isinstance(op, KernelOp)}
        texts = {unit.name: Text(f"{unit.name}.cu", unit.text) for unit in print_kernels(module)}
        emulation = Emulation(tuple(checks), counters, limit)
        emulators = compiled(texts, emulation, load_environment() if environment is None else environment)
        launches: list[Launch] = []
        for launch in program.launches:
            kernel = kernels[launch.kernel]
            types = (argument.type for argument in kernel.body.block.args)
            arguments = [_argument(ref, type) for ref, type in zip(launch.buffers, types, strict=True)]
            for op in kernel.tensor_maps:
                seen = arguments[kernel.body.block.args.index(op.buffer)]
                arguments.append(replace(seen, map=op.map))
            shared, emulator = kernel.shared_bytes(dynamic=True), emulators[launch.kernel]
            launches.append(
                Launch(emulator, launch.kernel, kernel.grid_shape, kernel.block_shape, tuple(arguments), shared)
            )
        outputs = [Output(spec.shape, spec.dtype) for spec in program.outputs]
        constants = [constant.array() for constant in program.constants]
        sizes = program.arena_bytes, program.zeroed_bytes
        in_part, dispatches = bool(program.extents), program.dispatches
        self._launches = Launches(launches, outputs, constants, *sizes, in_part=in_part, dispatches=dispatches)

    def run(self, arrays: Sequence[Array]) -> tuple[list[Array], tuple[Report, ...]]:
        """The model's outputs for `arrays`, and the report of every launch in order.

        Raises TreadleError for an input of another shape or type, and what a launch raises.
        """
        found = [(array.shape, array.dtype) for array in arrays]
        if found != [(spec.shape, spec.dtype) for spec in self._inputs]:
            accepted = ", ".join(map(str, self._inputs)) or "no inputs"
            raise TreadleError("inputs of other shapes or types", "emulator", accepted)
        return self._launches.run(arrays)


def _argument(buffer: BufferRef, type: Attribute) -> Argument:
    if not isinstance(type, MemRefType):
        raise TreadleError(f"an argument of type {type}", "emulator", "memrefs")
    return Argument(buffer, numpy_dtype(type.element_type), prod(type.get_shape()))
