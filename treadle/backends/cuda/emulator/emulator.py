"""Runs CUDA kernels on the CPU and checks what their threads do."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from ctypes import c_uint64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treadle.backends.cuda.cubin import Elf
from treadle.backends.cuda.emulator.build import MAX_DYNAMIC_BYTES, Signature, build_text, dynamic_arrays, kernels
from treadle.backends.cuda.emulator.instrument import SECTION, counts_operations
from treadle.backends.cuda.emulator.instrument import rows as instructions
from treadle.backends.cuda.emulator.native import (
    MAX_FINDINGS,
    MAX_THREADS,
    Library,
    NativeBuffer,
    NativeFinding,
    NativeParameter,
    NativePlace,
    NativePointer,
    NativeRequest,
    NativeVariable,
    Outcome,
    ParameterKind,
    Standing,
    What,
)
from treadle.backends.cuda.emulator.reports import (
    STUCK,
    BufferName,
    Counters,
    Report,
    by_line,
    describe,
    merged,
    message_of,
    ranges,
)
from treadle.environment import Environment, available_cores, load_environment
from treadle.errors import TreadleError
from treadle.target.tensor_map import MAP_BYTES, TensorMap

# The thread-local variables of a shared library: where a kernel's shared memory lies.

_TLS = 6
_LOCAL = re.compile(r"E(\d+)([A-Za-z_]\w*)$")


@dataclass(frozen=True)
class Variable:
    """A thread-local variable: its name in the text, its offset in the library's thread-local block, its bytes."""

    name: str
    symbol: str
    """Its name in the library, which distinguishes variables of functions from those of the whole text."""
    offset: int
    bytes: int


def thread_local_variables(library: Path) -> list[Variable]:
    """All of a library's thread-local variables, by offset."""
    found = [s for s in Elf(library.read_bytes()).symbols() if s.kind == _TLS and s.section]
    variables = [Variable(_plain(each.name), each.name, each.value, each.size) for each in found]
    return sorted(variables, key=lambda variable: (variable.offset, variable.name))


def section(library: Path, name: str) -> bytes:
    """The contents of a library's section; nothing where there is none of that name."""
    sections = Elf(library.read_bytes()).sections()
    return next((each.contents for each in sections if each.name == name), b"")


def _plain(mangled: str) -> str:
    """The name in the text of a variable that is local to a function: `_ZZ1kE4tile` is `tile`."""
    without_number = re.sub(r"(?<=\w)_\d+$", "", mangled) if mangled.startswith("_ZZ") else mangled
    match = _LOCAL.search(without_number)
    if match is None or not mangled.startswith("_Z"):
        return mangled
    return match[2][: int(match[1])]


# From addresses in a compiled text to lines of the text, through the library's debug information.

_TOOLS = ("addr2line", "llvm-addr2line")


def lines_of(library: Path, offsets: Iterable[int], name: str) -> dict[int, int]:
    """The line of the text `name` for each return address (as an offset in the library).

    Where a function of a header was inlined, the line of the text that called it. An address that has no
    line, and every address where the tool is absent, is left out.
    """
    wanted = sorted({offset for offset in offsets if offset > 0})
    tool = next((path for each in _TOOLS if (path := shutil.which(each)) is not None), None)
    if tool is None or not wanted:
        return {}
    # A return address may begin the next line's code.
    command = [tool, "-a", "-i", "-e", str(library), *(hex(offset - 1) for offset in wanted)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    found: dict[int, int] = {}
    current = 0
    for row in done.stdout.splitlines():
        if row.startswith("0x"):
            current = int(row, 16) + 1
            continue
        file, _, number = row.split(" ")[0].rpartition(":")
        if current not in found and number.isdigit() and Path(file).name == name:
            found[current] = int(number)
    return found


# A launch's arguments: checked against the kernel's parameters, and converted for the runtime.

_DTYPES: dict[tuple[ParameterKind, int], tuple[str, ...]] = {
    (ParameterKind.SIGNED, 1): ("int8",),
    (ParameterKind.SIGNED, 2): ("int16",),
    (ParameterKind.SIGNED, 4): ("int32",),
    (ParameterKind.SIGNED, 8): ("int64",),
    (ParameterKind.UNSIGNED, 1): (
        "uint8", "int4", "uint4", "int2", "uint2", "float4_e2m1fn", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
        "float8_e5m2fnuz", "float8_e8m0fnu",
    ),
    (ParameterKind.UNSIGNED, 2): ("uint16",),
    (ParameterKind.UNSIGNED, 4): ("uint32",),
    (ParameterKind.UNSIGNED, 8): ("uint64",),
    (ParameterKind.FLOAT, 2): ("float16", "uint16"),
    (ParameterKind.FLOAT, 4): ("float32",),
    (ParameterKind.FLOAT, 8): ("float64",),
    (ParameterKind.BFLOAT, 2): ("bfloat16", "uint16"),
    (ParameterKind.BOOL, 1): ("bool",),
}  # fmt: skip


@dataclass(frozen=True)
class Named:
    """A kernel's parameter with its name in the text."""

    name: str
    native: NativeParameter

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The NumPy types that fit; empty for structures and `void`, where any does."""
        return _DTYPES.get((ParameterKind(self.native.kind), int(self.native.bytes)), ())


@dataclass(frozen=True)
class Buffer:
    """Device memory that arguments point into."""

    name: str
    itemsize: int
    address: int
    bytes: int
    read_only: bool
    floats: bool
    element: int
    """Bytes of an element by the kernel's parameter type; 0 where that is unknown."""


class Arguments:
    """The arguments of one launch; keeps the arrays alive that they point to."""

    def __init__(self, kernel: str, parameters: Sequence[Named], args: Sequence[object]):
        """Raises TreadleError for a wrong number of arguments, and for the first one that does not fit."""
        if len(args) != len(parameters):
            names = ", ".join(parameter.name for parameter in parameters) or "no arguments"
            raise TreadleError(f"got {len(args)} arguments, expected {len(parameters)}", f"kernel '{kernel}'", names)
        self._kept: list[object] = []
        arrays: list[tuple[int, Named, np.ndarray[Any, Any]]] = []
        self.values = (ctypes.c_void_p * max(1, len(args)))()
        for index, (parameter, value) in enumerate(zip(parameters, args, strict=True)):
            where = f"argument '{parameter.name}' of kernel '{kernel}'"
            if parameter.native.kind == ParameterKind.TENSOR_MAP:
                map, array = _checked_map(where, parameter, value)
                arrays.append((index, parameter, array))
                data = ctypes.create_string_buffer(map.emulated(array.ctypes.data), MAP_BYTES)
            elif parameter.native.pointer:
                arrays.append((index, parameter, _checked_array(where, parameter, value)))
                data = ctypes.create_string_buffer(8)
            else:
                data = ctypes.create_string_buffer(_scalar_bytes(where, parameter, value), 64)
            self._kept += [value, data]
            self.values[index] = ctypes.addressof(data)
        self.buffers = _merged(arrays)
        self.native_buffers = (NativeBuffer * max(1, len(self.buffers)))(*(_native(buffer) for buffer in self.buffers))
        self.num_pointers = len(arrays)
        self.pointers = (NativePointer * max(1, len(arrays)))(*(self._pointer(index, a) for index, _, a in arrays))

    def _pointer(self, index: int, array: np.ndarray[Any, Any]) -> NativePointer:
        address = array.ctypes.data
        for number, buffer in enumerate(self.buffers):
            if buffer.address <= address and address + array.nbytes <= buffer.address + buffer.bytes:
                return NativePointer(index, number, address - buffer.address)
        raise AssertionError("every array is part of a buffer")


def _native(buffer: Buffer) -> NativeBuffer:
    granule = buffer.itemsize if buffer.itemsize in (1, 2) else 4
    return NativeBuffer(buffer.address, buffer.bytes, granule, buffer.read_only, buffer.floats, buffer.element)


def _merged(arrays: Sequence[tuple[int, Named, np.ndarray[Any, Any]]]) -> list[Buffer]:
    """One buffer for each array; arrays that overlap share one, by address."""
    buffers: list[Buffer] = []
    for _, parameter, array in sorted(arrays, key=lambda entry: entry[2].ctypes.data):
        start, size = array.ctypes.data, array.nbytes
        read_only, kind = bool(parameter.native.constant), ParameterKind(parameter.native.kind)
        floats, element = kind in (ParameterKind.FLOAT, ParameterKind.BFLOAT), int(parameter.native.bytes)
        if kind is ParameterKind.OTHER:
            element = 0
        if kind is ParameterKind.TENSOR_MAP:
            floats, element = array.dtype.kind == "f" or array.dtype.name == "bfloat16", array.itemsize
        last = buffers[-1] if buffers else None
        if last is None or start >= last.address + last.bytes:
            buffers.append(Buffer(parameter.name, array.itemsize, start, size, read_only, floats, element))
            continue
        extent = max(last.bytes, start + size - last.address)
        itemsize = min(last.itemsize, array.itemsize)
        same = (last.floats, last.element) == (floats, element)
        both_read = last.read_only and read_only
        known = element if same else 0
        buffers[-1] = Buffer(last.name, itemsize, last.address, extent, both_read, floats, known)
    return buffers


def _checked_array(where: str, parameter: Named, value: object) -> np.ndarray[Any, Any]:
    wanted = parameter.dtypes
    accepted = f"a C-contiguous NumPy array of {' or '.join(wanted) or 'any type'}"
    if not isinstance(value, np.ndarray):
        raise TreadleError(f"got {type(value).__name__} for a pointer", where, accepted)
    if value.dtype.hasobject or not value.dtype.isnative or (wanted and value.dtype.name not in wanted):
        raise TreadleError(f"got an array of {value.dtype}", where, accepted)
    if not value.flags.c_contiguous:
        raise TreadleError("got an array that is not contiguous", where, accepted)
    if not parameter.native.constant and not value.flags.writeable:
        raise TreadleError("got a read-only array for a pointer that is not const", where, f"{accepted}, writable")
    return value


def _checked_map(where: str, parameter: Named, value: object) -> tuple[TensorMap, np.ndarray[Any, Any]]:
    accepted = "a TensorMap and the array that it is of"
    match value:
        case (TensorMap() as map, np.ndarray() as given):
            array = _checked_array(where, parameter, given)
        case _:
            raise TreadleError(f"got {type(value).__name__}", where, accepted)
    if array.itemsize != map.element_bytes or array.nbytes < map.span:
        accepted = f"at least {map.span} bytes, elements of {map.element_bytes}"
        raise TreadleError(f"got an array of {array.size} x {array.dtype}", where, accepted)
    return map, array


def _scalar_bytes(where: str, parameter: Named, value: object) -> bytes:
    if not parameter.dtypes:
        raw = value if isinstance(value, bytes) else value.tobytes() if isinstance(value, np.generic) else None
        if raw is None or len(raw) != parameter.native.bytes:
            raise TreadleError(f"got {value!r} for a structure", where, f"{parameter.native.bytes} bytes")
        return raw
    name = parameter.dtypes[-1] if parameter.native.kind == ParameterKind.BFLOAT else parameter.dtypes[0]
    dtype = np.dtype(name)
    if isinstance(value, np.ndarray):
        raise TreadleError(f"got an array of shape {value.shape}", where, f"one value of {name}")
    if not isinstance(value, bool | int | float | np.generic):
        raise TreadleError(f"got {type(value).__name__}", where, f"one value of {name}")
    if dtype.kind in "iu" and (isinstance(value, float | np.floating) or not _in_range(int(value), dtype)):
        raise TreadleError(f"got {value!r}", where, f"one value of {name}")
    if dtype.kind == "b" and value not in (0, 1):
        raise TreadleError(f"got {value!r}", where, "True or False")
    return np.asarray(value).astype(dtype).tobytes()


def _in_range(value: int, dtype: np.dtype[Any]) -> bool:
    limits = np.iinfo(dtype)
    return int(limits.min) <= value <= int(limits.max)


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
    Standing.AT_MBARRIER: "at a wait for a barrier",
    Standing.AT_NAMED: "at a numbered barrier",
    Standing.AT_WARPGROUP: "at a product of their warpgroup",
    Standing.AT_CLUSTER: "at a barrier of their cluster",
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
            cluster=signature.cluster,
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
        if any(extent % blocks for extent, blocks in zip(grid, signature.cluster, strict=True)):
            raise TreadleError(f"grid {tuple(grid)}", where, f"clusters of {signature.cluster} blocks divide it")
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
        if outcome is Outcome.STUCK and "divergence" not in self.checks:
            found = next(each for each in findings if each.what in STUCK)
            line = self._lines(request, {found.pc}).get(found.pc, 0)
            raise TreadleError(f"{message_of(found)}, at line {line or '?'}", where, "a kernel that ends")
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
