"""Many small programs as CUDA on the emulator, with every check, at the price of few calls of the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import MemRefType, ModuleOp

from tests.helpers.found_extents import within_extents
from tests.helpers.program_batch import Backend
from treadle.backends.cuda.compiler import Unit
from treadle.backends.cuda.emulator import CHECKS, Emulator
from treadle.backends.cuda.emulator.launches import Argument, Launch, Launches, Output
from treadle.backends.cuda.printer import print_kernels
from treadle.backends.program import Program, ProgramLaunch, read_program
from treadle.compiler.pipeline import lower
from treadle.dialects.cuda import KernelOp
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.dialects.registry import treadle_context
from treadle.target import Target

Array = NDArray[Any]
TARGET = "sm_80"


@dataclass(frozen=True)
class PrintedKernels:
    """A program as CUDA text, and the kernels as they were printed: a launch takes their grids and blocks."""

    name: str
    units: tuple[Unit, ...]
    kernels: dict[str, KernelOp]
    program: Program


@dataclass(frozen=True)
class EmulatedProgram:
    """A program whose kernels are in an emulator that has others, too; `symbols` are their names there."""

    emulator: Emulator
    symbols: dict[str, str]
    printed: PrintedKernels

    @property
    def program(self) -> Program:
        """What its kernels are launched on."""
        return self.printed.program

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs, in order. AssertionError if a check finds anything; raises what the emulator raises."""
        program = self.program
        outputs = [Output(spec.shape, spec.dtype) for spec in program.outputs]
        constants = [np.asarray(constant.array()) for constant in program.constants]
        memory = (outputs, constants, program.arena_bytes, program.zeroed_bytes)
        launches = Launches(
            [self._launch(each) for each in program.launches],
            *memory,
            in_part=bool(program.extents),
            dispatches=program.dispatches,
        )
        results, reports = launches.run(inputs)
        found = [str(report) for report in reports if report.findings]
        if found:
            raise AssertionError("\n".join(found))
        return within_extents(program, results)

    def _launch(self, launch: ProgramLaunch) -> Launch:
        kernel = self.printed.kernels[launch.kernel]
        types = [argument.type for argument in kernel.body.block.args]
        memory = [(numpy_dtype(t.element_type), prod(t.get_shape())) for t in types if isinstance(t, MemRefType)]
        arguments = tuple(Argument(ref, *what) for ref, what in zip(launch.buffers, memory, strict=True))
        symbol, shared = self.symbols[launch.kernel], kernel.shared_bytes(dynamic=True)
        return Launch(self.emulator, symbol, kernel.grid_shape, kernel.block_shape, arguments, shared)


def print_program(name: str, module: ModuleOp, after: str | None = None) -> PrintedKernels:
    """Lowers the module, in place, from behind a stage or from the first, and prints it. Raises what the passes and the
    printer raise."""
    lower(treadle_context(), module, Target.parse(TARGET), after=after)
    kernels = {op.sym_name.data: op for op in module.walk() if isinstance(op, KernelOp)}
    return PrintedKernels(name, tuple(print_kernels(module)), kernels, read_program(module))


def compile_programs(programs: Sequence[PrintedKernels]) -> dict[str, EmulatedProgram]:
    """The programs of one text, by name. TreadleError if the compiler rejects any; it names none of them."""
    symbols: dict[str, str] = {}
    texts: list[str] = []
    for unit in (unit for program in programs for unit in program.units):
        if unit.text not in symbols:
            symbols[unit.text] = f"k{len(symbols)}_{unit.name}"
            texts.append(renamed(unit, symbols[unit.text]).text)
    emulator = Emulator("\n".join(texts), tuple(CHECKS))
    return {p.name: EmulatedProgram(emulator, {u.name: symbols[u.text] for u in p.units}, p) for p in programs}


def renamed(unit: Unit, symbol: str) -> Unit:
    """The kernel under another name, which its text says once."""
    before, after = unit.text.split(f") {unit.name}(")
    return Unit(symbol, f"{before}) {symbol}({after}")


CUDA: Backend[PrintedKernels, EmulatedProgram] = Backend(print_program, compile_programs)
"""What ships for GPUs, on the emulator."""
