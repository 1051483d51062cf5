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
from typing import Any, Generic, Protocol, TypeVar

from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from tests.helpers.found_extents import within_extents
from treadle.backends.c.compiler import Unit, build_library
from treadle.backends.c.executor import ENTRY, CpuProgram
from treadle.backends.c.printer import print_host, print_kernels
from treadle.backends.program import Program, read_program
from treadle.compiler.pipeline import lower
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.target import Target
from treadle.target.options import CompileOptions

Array = NDArray[Any]
Maker = Callable[[], ModuleOp]

BATCH = 128
"""Programs of a batch: enough that the header and the process are a small part of what compiling it takes."""

THREADS = 2
"""Of a run: with one, no kernel would ever be shared among workers."""


_BODY = re.compile(r"^static void (\w+)\(", re.M)
"""A host program's own functions: the bodies of its loops and branches."""


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

    def run(self, inputs: Sequence[Array], shapes: Sequence[tuple[int, ...]] | None = None) -> list[Array]:
        """The outputs, in order. Raises what the executor raises."""
        program = self.program
        constants = [constant.array() for constant in program.constants]
        memory = (constants, program.arena_bytes, THREADS)
        with CpuProgram(self.library, program.inputs, program.outputs, *memory, entry=self.entry) as ready:
            return within_extents(program, ready.run(inputs, shapes))


class Named(Protocol):
    """Whatever knows its name."""

    @property
    def name(self) -> str:
        """The program's."""
        ...


P = TypeVar("P", bound=Named)
R = TypeVar("R")


@dataclass(frozen=True)
class Backend(Generic[P, R]):
    """How a module becomes text, in place, and how texts become what can be run, by name, in one call of a compiler.

    `printed` raises what passes and printers raise, `compiled` a TreadleError if the compiler rejects any text.
    """

    printed: Callable[[str, ModuleOp], P]
    compiled: Callable[[Sequence[P]], Mapping[str, R]]


class ProgramBatch(Generic[P, R]):
    """Programs by name, compiled in batches at the first use of one of each.

    `makers` gives for each name the function that makes its module, which may raise. What making, lowering, printing
    or compiling one program raises is raised again where that program is asked for, and only there: programs of a
    batch that does not compile are compiled one by one.
    """

    def __init__(self, makers: Mapping[str, Maker], backend: Backend[P, R], size: int = BATCH):
        self._makers = makers
        self._backend = backend
        names = list(makers)
        self._batches = [names[start : start + size] for start in range(0, len(names), size)]
        self._batch_of = {name: batch for batch in self._batches for name in batch}
        self._ready: dict[str, R] = {}
        self._failed: dict[str, Exception] = {}

    def __getitem__(self, name: str) -> R:
        if name not in self._ready and name not in self._failed:
            self._compile(self._batch_of[name])
        if name in self._failed:
            raise self._failed[name]
        return self._ready[name]

    def _compile(self, names: Sequence[str]) -> None:
        printed: list[P] = []
        for name in names:
            try:
                printed.append(self._backend.printed(name, self._makers[name]()))
            except Exception as error:
                self._failed[name] = error
        try:
            self._ready.update(self._backend.compiled(printed))
        except TreadleError:
            self._compile_singly(printed)

    def _compile_singly(self, programs: Sequence[P]) -> None:
        for program in programs:
            try:
                self._ready.update(self._backend.compiled([program]))
            except TreadleError as error:
                self._failed[program.name] = error


def print_program(
    name: str,
    module: ModuleOp,
    target: str = "cpu",
    after: str | None = None,
    options: CompileOptions | None = None,
) -> PrintedProgram:
    """Lowers the module, in place, from behind a stage or from the first, and prints it. Raises what the passes and the
    printer raise."""
    lower(treadle_context(), module, Target.parse(target), after=after, options=options)
    return PrintedProgram(name, tuple(print_kernels(module)), print_host(module), read_program(module))


def compile_programs(programs: Sequence[PrintedProgram], target: str = "cpu") -> dict[str, CompiledProgram]:
    """The programs of one library, by name. TreadleError if the compiler rejects any; it names none of them."""
    symbols: dict[str, str] = {}
    kernels, hosts = ['#include "treadle.h"'], ['#include "pool.h"']
    for position, program in enumerate(programs):
        renamed = {ENTRY: _entry(position)}
        renamed |= {name: f"{name}_{position}" for name in _BODY.findall(program.host.text)}
        for unit in program.kernels:
            if unit.decisive not in symbols:
                symbols[unit.decisive] = f"k{len(symbols)}_{unit.name}"
                kernels.append(_renamed(unit, {unit.name: symbols[unit.decisive]}, program.name))
            renamed[unit.name] = symbols[unit.decisive]
        hosts.append(_renamed(program.host, renamed, program.name))
    units = [Unit("kernels", "\n".join(kernels)), Unit("hosts", "\n".join(hosts))]
    library = build_library(units, target=Target.parse(target))
    return {p.name: CompiledProgram(library, _entry(n), p.program) for n, p in enumerate(programs)}


def _entry(position: int) -> str:
    return f"{ENTRY}_{position}"


def _renamed(unit: Unit, symbols: Mapping[str, str], program: str) -> str:
    """A unit's text between definitions that rename its symbols; messages name the program and the unit."""
    place = re.sub(r"[^\w.-]", "_", f"{program}.{unit.name}.c")
    define = [f"#define {name} {unique}" for name, unique in symbols.items()]
    undefine = [f"#undef {name}" for name in symbols]
    return "\n".join([*define, f'#line 1 "{place}"', unit.text, *undefine])


C: Backend[PrintedProgram, CompiledProgram] = Backend(print_program, compile_programs)
"""What ships for the CPU."""
