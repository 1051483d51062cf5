"""Many small programs as compiled C at the price of few calls of the compiler.

A program is lowered by the ordinary pipeline and printed by the ordinary printer; the texts of a batch are compiled,
with the flags of every other library, as two translation units: all kernels, and all host programs. What separates
them is the preprocessor, which renames each text's symbols, so that no text differs from the one that ships. A
program runs through the ordinary executor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from treadle.backends.c.compiler import Unit, build_library
from treadle.backends.c.executor import ENTRY, CpuProgram
from treadle.backends.c.printer import print_host, print_kernels
from treadle.backends.program import Program, read_program
from treadle.compiler import lower
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.target import Target

Array = NDArray[Any]
Maker = Callable[[], ModuleOp]

BATCH = 128
"""Programs of a batch: enough that the header and the process are a small part of what compiling it takes."""

THREADS = 2
"""Of a run: with one, no kernel would ever be shared among workers."""


@dataclass(frozen=True)
class PrintedProgram:
    """A program as text: its kernels, the host program that launches them, and what running it takes."""

    name: str
    kernels: tuple[Unit, ...]
    host: Unit
    program: Program


@dataclass(frozen=True)
class CompiledProgram:
    """A program's entry in a library that holds others, too."""

    library: Path
    entry: str
    program: Program

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs, in order. Raises what the executor raises."""
        program = self.program
        constants = [constant.array() for constant in program.constants]
        memory = (constants, program.arena_bytes, THREADS)
        with CpuProgram(self.library, program.inputs, program.outputs, *memory, entry=self.entry) as ready:
            return ready.run(inputs)


class ProgramBatch:
    """Programs by name, compiled in batches at the first use of one of each.

    `makers` gives for each name the function that makes its module, which may raise. What making, lowering, printing
    or compiling one program raises is raised again where that program is asked for, and only there: programs of a
    batch that does not compile are compiled one by one.
    """

    def __init__(self, makers: Mapping[str, Maker], size: int = BATCH):
        self._makers = makers
        names = list(makers)
        self._batches = [names[start : start + size] for start in range(0, len(names), size)]
        self._batch_of = {name: batch for batch in self._batches for name in batch}
        self._done: dict[str, CompiledProgram | Exception] = {}

    def __getitem__(self, name: str) -> CompiledProgram:
        if name not in self._done:
            self._compile(self._batch_of[name])
        done = self._done[name]
        if isinstance(done, Exception):
            raise done
        return done

    def _compile(self, names: Sequence[str]) -> None:
        printed: list[PrintedProgram] = []
        for name in names:
            try:
                printed.append(print_program(name, self._makers[name]()))
            except Exception as error:
                self._done[name] = error
        try:
            compiled = compile_programs(printed)
        except TreadleError:
            compiled = {program.name: _alone(program) for program in printed}
        self._done.update(compiled)


def print_program(name: str, module: ModuleOp) -> PrintedProgram:
    """Lowers the module, in place, and prints it. Raises what the passes and the printer raise."""
    lower(treadle_context(), module, Target.parse("cpu"))
    return PrintedProgram(name, tuple(print_kernels(module)), print_host(module), read_program(module))


def compile_programs(programs: Sequence[PrintedProgram]) -> dict[str, CompiledProgram]:
    """The programs of one library, by name. TreadleError if the compiler rejects any; it names none of them."""
    symbols: dict[str, str] = {}
    kernels, hosts = ['#include "treadle.h"'], ['#include "pool.h"']
    for position, program in enumerate(programs):
        renamed = {ENTRY: _entry(position)}
        for unit in program.kernels:
            if unit.text not in symbols:
                symbols[unit.text] = f"k{len(symbols)}_{unit.name}"
                kernels.append(_renamed(unit, {unit.name: symbols[unit.text]}, program.name))
            renamed[unit.name] = symbols[unit.text]
        hosts.append(_renamed(program.host, renamed, program.name))
    library = build_library([Unit("kernels", "\n".join(kernels)), Unit("hosts", "\n".join(hosts))])
    return {p.name: CompiledProgram(library, _entry(n), p.program) for n, p in enumerate(programs)}


def _alone(program: PrintedProgram) -> CompiledProgram | Exception:
    try:
        return compile_programs([program])[program.name]
    except TreadleError as error:
        return error


def _entry(position: int) -> str:
    return f"{ENTRY}_{position}"


def _renamed(unit: Unit, symbols: Mapping[str, str], program: str) -> str:
    """A unit's text between definitions that rename its symbols; messages name the program and the unit."""
    place = re.sub(r"[^\w.-]", "_", f"{program}.{unit.name}.c")
    define = [f"#define {name} {unique}" for name, unique in symbols.items()]
    undefine = [f"#undef {name}" for name in symbols]
    return "\n".join([*define, f'#line 1 "{place}"', unit.text, *undefine])
