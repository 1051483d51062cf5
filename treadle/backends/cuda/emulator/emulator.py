"""Runs CUDA kernels on the CPU and checks what their threads do."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Mapping, Sequence
from ctypes import c_uint64

import numpy as np

from treadle.backends.cuda.emulator.arguments import Arguments, Named
from treadle.backends.cuda.emulator.build import MAX_DYNAMIC_BYTES, build_text
from treadle.backends.cuda.emulator.counters import Counters, by_line
from treadle.backends.cuda.emulator.elf import Variable, section, thread_local_variables
from treadle.backends.cuda.emulator.findings import BufferName, Report, describe, merged, ranges
from treadle.backends.cuda.emulator.instrument import SECTION, counts_operations
from treadle.backends.cuda.emulator.instrument import rows as instructions
from treadle.backends.cuda.emulator.lines import lines_of
from treadle.backends.cuda.emulator.native import (
    MAX_FINDINGS,
    MAX_THREADS,
    Library,
    NativeFinding,
    NativePlace,
    NativeRequest,
    NativeVariable,
    Outcome,
    Standing,
    What,
)
from treadle.backends.cuda.emulator.signature import Signature, dynamic_arrays, kernels
from treadle.environment import Environment, available_cores, load_environment
from treadle.errors import TreadleError

CHECKS: dict[str, int] = {"races": 1, "bounds": 2, "init": 4, "divergence": 8}
"""The checks, and their bits in the runtime."""

LIMIT = 60.0
"""Seconds that a launch may take, by default."""

_MAX_LIMIT = 1e6

_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_BLOCK = (1024, 1024, 64)
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_ANCHOR = "treadle_emu_anchor_byte"
_STANDINGS = {
    Standing.RUNNING: "running",
    Standing.READY: "ready to run",
    Standing.AT_BARRIER: "at a barrier",
    Standing.AT_WARP: "at a warp operation",
    Standing.LEFT: "done",
    Standing.NOT_STARTED: "not started",
}


class Emulator:
    """A CUDA text, compiled for the CPU.

    `checks` are any of "races", "bounds", "init" and "divergence"; without any the text runs at full speed and
    unchecked. With `counters` a launch's report says what each line of the text did, with checks or without.
    `name` is the text's file name in messages, `limit` the seconds that a launch may take,
    `workers` the number of cores that run blocks (default: all that this process may use).

    Raises TreadleError where the text does not compile, with the line of the text.
    """

    def __init__(
        self,
        source: str,
        checks: Sequence[str] = tuple(CHECKS),
        *,
        counters: bool = False,
        name: str = "kernel.cu",
        limit: float = LIMIT,
        workers: int | None = None,
        environment: Environment | None = None,
    ):
        for check in checks:
            if check not in CHECKS:
                raise TreadleError(f"unknown check '{check}'", "emulator", CHECKS)
        check_limit(limit, "emulator")
        if workers is not None and (not _is_whole(workers) or workers < 1):
            raise TreadleError(f"{workers!r} workers", "emulator", "a whole number from 1 upwards")
        if not _FILE_NAME.fullmatch(name):
            raise TreadleError(f"the name {name!r} of a text", "emulator", "letters, digits, '.', '-' and '_'")
        self.checks = tuple(checks)
        self._name = name
        self._source = source
        self._limit = limit
        self._workers = available_cores() if workers is None else workers
        self.kernels: Mapping[str, Signature] = kernels(source)
        chosen = environment or load_environment()
        path = build_text(source, name, bool(checks), chosen, counted=counters)
        self._library = Library(path)
        self._counters = counters
        self._instructions = instructions(section(path, SECTION)) if counters else ()
        self._known_lines: dict[int, int] = {}
        self._dynamic = dynamic_arrays(source)
        self._variables = _distinct(thread_local_variables(path))
        self._byte_cells = False

    def launch(
        self, kernel: str, grid: Sequence[int], block: Sequence[int], args: Sequence[object], shared_bytes: int = 0
    ) -> Report:
        """Runs a kernel to its end. Arrays are device memory, and are changed in place.

        `grid` counts blocks and `block` threads, each in x, y and z; `args` are NumPy arrays for pointers and
        numbers for scalars; `shared_bytes` is the dynamic shared memory.

        Raises TreadleError for a kernel, grid, block or argument that does not fit; for a launch that takes
        longer than the limit, saying where its threads stood; and for one that cannot go on.
        """
        signature = self._checked(kernel, grid, block, shared_bytes)
        parameters = self._library.parameters(kernel)
        arguments = Arguments(
            kernel, [Named(name, p) for name, p in zip(signature.parameters, parameters, strict=True)], args
        )
        anchor = next(each.offset for each in self._variables if each.symbol == _ANCHOR)
        shared = [
            (each.name, each.offset, shared_bytes if each.symbol in self._dynamic else each.bytes)
            for each in self._variables
            if each.symbol != _ANCHOR
        ]
        request = NativeRequest(
            entry=self._library.address(f"treadle_emu_enter_{kernel}"),
            anchor=self._library.anchor,
            arguments=arguments.values,
            pointers=arguments.pointers,
            buffers=arguments.native_buffers,
            variables=(NativeVariable * max(1, len(shared)))(*((offset - anchor, size) for _, offset, size in shared)),
            num_pointers=arguments.num_pointers,
            num_buffers=len(arguments.buffers),
            num_variables=len(shared),
            grid=tuple(grid),
            block=tuple(block),
            dynamic_bytes=shared_bytes,
            workers=self._workers,
            checks=sum(CHECKS[check] for check in set(self.checks)),
            limit=self._limit,
            counters=self._counters,
        )
        findings, places = (NativeFinding * MAX_FINDINGS)(), (NativePlace * MAX_THREADS)()
        request.findings, request.places = findings, places
        num_runs = 1 + max((row.run for row in self._instructions), default=-1)
        runs = (c_uint64 * max(1, num_runs))()
        request.num_runs, request.runs = num_runs, runs
        self._run(request)
        counts = self._library.take_counts(request)
        self._raise_outcome(kernel, request, findings, places)
        found = findings[: request.num_findings]
        lines = self._lines(request, {pc for finding in found for pc in (finding.pc, finding.other_pc)})
        device = [BufferName(buffer.name, buffer.itemsize) for buffer in arguments.buffers]
        names = [BufferName(name, 0) for name, _, _ in shared]
        described = (describe(finding, kernel, lines, device, names) for finding in found)
        counted = None
        if self._counters:
            lines_counted = by_line(counts, list(runs), self._instructions, counts_operations(), self._lines_at)
            counted = Counters(self._source, _three(grid), _three(block), lines_counted)
        return Report(kernel, self.checks, merged(list(described)), counted)

    def _checked(self, kernel: str, grid: Sequence[int], block: Sequence[int], shared_bytes: int) -> Signature:
        if kernel not in self.kernels:
            raise TreadleError(f"no kernel '{kernel}'", self._name, self.kernels or 'extern "C" __global__ functions')
        where = f"kernel '{kernel}'"
        _check_extents("grid", grid, _MAX_GRID, where)
        _check_extents("block", block, _MAX_BLOCK, where)
        signature = self.kernels[kernel]
        threads = block[0] * block[1] * block[2]
        most = min(MAX_THREADS, signature.max_threads or MAX_THREADS)
        if threads > most:
            raise TreadleError(f"a block of {threads} threads", where, f"at most {most}")
        if not _is_whole(shared_bytes) or not 0 <= shared_bytes <= MAX_DYNAMIC_BYTES:
            accepted = f"0 to {MAX_DYNAMIC_BYTES} bytes"
            raise TreadleError(f"{shared_bytes!r} bytes of dynamic shared memory", where, accepted)
        return signature

    def _run(self, request: NativeRequest) -> None:
        """Runs, once more with finer shadow cells where the kernel touches parts of words in shared memory."""
        request.byte_cells = self._byte_cells
        self._library.run(request)
        if request.outcome == Outcome.NEEDS_BYTE_CELLS:
            self._byte_cells = True
            request.byte_cells, request.num_findings, request.outcome = 1, 0, 0
            self._library.run(request)

    def _lines(self, request: NativeRequest, addresses: set[int]) -> dict[int, int]:
        base = request.module_base
        found = self._lines_at(address - base for address in addresses)
        return {base + offset: line for offset, line in found.items() if line}

    def _lines_at(self, offsets: Iterable[int]) -> dict[int, int]:
        """The lines of return addresses in the library; 0 where there is none."""
        new = set(offsets)
        unknown = new - self._known_lines.keys()
        self._known_lines |= dict.fromkeys(unknown, 0) | lines_of(self._library.path, unknown, self._name)
        return {offset: self._known_lines[offset] for offset in new}

    def _raise_outcome(
        self,
        kernel: str,
        request: NativeRequest,
        findings: ctypes.Array[NativeFinding],
        places: ctypes.Array[NativePlace],
    ) -> None:
        outcome, where = Outcome(request.outcome), f"kernel '{kernel}'"
        if outcome is Outcome.OUT_OF_MEMORY:
            raise TreadleError("not enough memory to emulate the launch", where)
        if outcome is Outcome.OUT_OF_TIME:
            stood = self._standings(request, places)
            raise TreadleError(f"stopped after {self._limit:g} s; {stood}", where, "a kernel that ends")
        if outcome is Outcome.STACK_OVERFLOW:
            raise TreadleError("a thread's local memory exceeds the emulator's stack", where, "less than 120 KiB")
        if outcome is not Outcome.CRASHED:
            return
        crashes = (What.CRASH_ARITHMETIC, What.BOUNDS_WILD)
        crash = next(finding for finding in findings[: request.num_findings] if finding.what in crashes)
        line = self._lines(request, {crash.pc}).get(crash.pc, 0)
        location = f"at line {line or '?'} by thread {crash.thread} of block {crash.block}"
        if crash.what == What.CRASH_ARITHMETIC:
            raise TreadleError(f"integer division by zero {location}", where)
        if "bounds" not in self.checks:
            raise TreadleError(f"access to address {crash.offset:#x}, which is in no buffer, {location}", where)

    def _standings(self, request: NativeRequest, places: ctypes.Array[NativePlace]) -> str:
        """Where the threads of the stopped block stood, grouped."""
        lines = self._lines(request, {thread.pc for thread in places if thread.pc})
        groups: dict[tuple[Standing, int], list[int]] = {}
        for number, thread in enumerate(places):
            if thread.standing != Standing.ABSENT:
                line = lines.get(thread.pc, 0) or thread.line
                groups.setdefault((Standing(thread.standing), line), []).append(number)
        texts = (
            f"threads {ranges(numbers)} {_STANDINGS[standing]}{f' at line {line}' if line else ''}"
            for (standing, line), numbers in groups.items()
        )
        return f"in block {request.stopped_block}: {'; '.join(texts) or 'nothing ran'}"


def check_limit(limit: object, where: str) -> None:
    """TreadleError for a time limit that is no number of seconds; `where` says who was given it."""
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit <= _MAX_LIMIT:
        raise TreadleError(f"a limit of {limit!r}", where, f"seconds, more than 0 and at most {_MAX_LIMIT:.0f}")


def _distinct(variables: Sequence[Variable]) -> list[Variable]:
    """The first of several names for one object."""
    found: dict[int, Variable] = {}
    for variable in variables:
        if variable.bytes:
            found.setdefault(variable.offset, variable)
    return list(found.values())


def _is_whole(number: object) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def _check_extents(what: str, extents: Sequence[int], limits: Sequence[int], where: str) -> None:
    fits = isinstance(extents, tuple | list) and len(extents) == 3 and all(map(_is_whole, extents))
    if not fits or not all(1 <= n <= limit for n, limit in zip(extents, limits, strict=True)):
        accepted = f"three whole numbers from 1 up to {', '.join(map(str, limits))}"
        raise TreadleError(f"{what} {tuple(extents) if fits else extents!r}", where, accepted)


def _three(extents: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = extents
    return x, y, z
