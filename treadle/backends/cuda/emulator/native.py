"""The runtime's structures and functions as Python sees them; `runtime/abi.h` is the other side."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_double, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from enum import IntEnum
from pathlib import Path
from typing import ClassVar

MAX_THREADS = 1024
MAX_FINDINGS = 1024
NO_BUFFER = 1 << 30
NOBODY = 0xFFFFFFFF


class Outcome(IntEnum):
    """How a launch ended."""

    FINISHED = 0
    OUT_OF_TIME = 1
    CRASHED = 2
    NEEDS_BYTE_CELLS = 3
    OUT_OF_MEMORY = 4
    STACK_OVERFLOW = 5
    STUCK = 6


class What(IntEnum):
    """What a finding says."""

    RACE_READ_WRITE = 0
    RACE_WRITE_WRITE = 1
    RACE_IN_FLIGHT = 2
    BOUNDS_OUTSIDE = 3
    BOUNDS_INDEX = 4
    BOUNDS_MISALIGNED = 5
    BOUNDS_WILD = 6
    BOUNDS_READ_ONLY = 7
    INIT_SHARED = 8
    INIT_REGISTER = 9
    DIVERGENCE_BARRIER = 10
    DIVERGENCE_PLACES = 11
    DIVERGENCE_WARP = 12
    DIVERGENCE_SOURCE = 13
    DIVERGENCE_MASK = 14
    CRASH_ARITHMETIC = 15
    MBARRIER_UNINITIALISED = 16
    MBARRIER_REINITIALISED = 17
    MBARRIER_UNPUBLISHED = 18
    MBARRIER_ARRIVALS = 19
    MBARRIER_BYTES = 20
    MBARRIER_BEHIND = 21
    MBARRIER_STUCK = 22
    NAMED_NUMBER = 23
    NAMED_COUNT = 24
    NAMED_TWICE = 25
    NAMED_WARP = 26
    NAMED_STUCK = 27
    TENSOR_MAP = 28
    TENSOR_ALIGNMENT = 29
    TENSOR_COORDINATE = 30
    TENSOR_UNREAD = 31
    ASYNC_UNFENCED = 32
    WGMMA_SUMS = 33
    WGMMA_FENCE = 34
    WGMMA_DESCRIPTOR = 35
    WGMMA_SWIZZLE = 36
    WGMMA_DIFFERS = 37
    WGMMA_STUCK = 38
    WGMMA_UNWAITED = 39
    REGISTERS_WARPGROUP = 40
    REGISTERS_NUMBER = 41
    REGISTERS_SUM = 42
    TENSOR_UNARRIVED = 43
    CLUSTER_RANK = 44
    CLUSTER_ENDED = 45
    CLUSTER_STUCK = 46
    CLUSTER_ARRIVALS = 47
    CLUSTER_SCOPE = 48
    STORE_BARRIER = 49
    WGMMA_DROPPED = 50
    TENSOR_MODE = 51
    TENSOR_PIXEL = 52
    TENSOR_OFFSET = 53


class Standing(IntEnum):
    """What a thread of a stopped block was doing."""

    ABSENT = 0
    RUNNING = 1
    READY = 2
    AT_BARRIER = 3
    AT_WARP = 4
    LEFT = 5
    NOT_STARTED = 6
    AT_MBARRIER = 7
    AT_NAMED = 8
    AT_WARPGROUP = 9
    AT_CLUSTER = 10


class ParameterKind(IntEnum):
    """The type of a parameter, or of what it points to."""

    OTHER = 0
    SIGNED = 1
    UNSIGNED = 2
    FLOAT = 3
    BOOL = 4
    BFLOAT = 5
    TENSOR_MAP = 6


class NativeParameter(Structure):
    """A kernel's parameter; for a pointer, what it points to."""

    pointer: int
    constant: int
    kind: int
    bytes: int
    _fields_: ClassVar = [("pointer", c_uint32), ("constant", c_uint32), ("kind", c_uint32), ("bytes", c_uint32)]


class NativeBuffer(Structure):
    """A buffer of device memory."""

    _fields_: ClassVar = [
        ("host", c_void_p), ("bytes", c_uint64), ("granule", c_uint32), ("read_only", c_uint32),
        ("floats", c_uint32), ("element", c_uint32), ("device", c_uint64),
    ]  # fmt: skip


class NativePointer(Structure):
    """An argument that points into a buffer."""

    _fields_: ClassVar = [("argument", c_uint32), ("buffer", c_uint32), ("offset", c_uint64)]


class NativeVariable(Structure):
    """A variable in shared memory."""

    _fields_: ClassVar = [("offset", c_int64), ("bytes", c_uint64)]


class NativeFinding(Structure):
    """One finding, with addresses for lines."""

    what: int
    line: int
    pc: int
    other_pc: int
    buffer: int
    size: int
    offset: int
    thread: int
    other_thread: int
    block: int
    other_block: int
    other_line: int
    text: bytes | None
    count: int
    numbers: ctypes.Array[c_int64]
    threads: ctypes.Array[c_uint32]
    _fields_: ClassVar = [
        ("what", c_uint32), ("line", c_uint32), ("pc", c_uint64), ("other_pc", c_uint64), ("buffer", c_int32),
        ("size", c_uint32), ("offset", c_int64), ("thread", c_uint32), ("other_thread", c_uint32),
        ("block", c_uint32), ("other_block", c_uint32), ("other_line", c_uint32), ("padding", c_uint32),
        ("text", c_char_p), ("count", c_uint64), ("numbers", c_int64 * 4),
        ("threads", c_uint32 * (MAX_THREADS // 32)),
    ]  # fmt: skip


class NativeCount(Structure):
    """The counts at one address of the code."""

    pc: int
    line: int
    global_requests: int
    global_sectors: int
    global_ideal: int
    global_read: int
    global_written: int
    shared_requests: int
    shared_phases: int
    shared_wavefronts: int
    shared_read: int
    shared_written: int
    operations: int
    barriers: int
    waits: int
    _fields_: ClassVar = [
        ("pc", c_uint32), ("line", c_uint32),
        ("global_requests", c_uint64), ("global_sectors", c_uint64), ("global_ideal", c_uint64),
        ("global_read", c_uint64), ("global_written", c_uint64),
        ("shared_requests", c_uint64), ("shared_phases", c_uint64), ("shared_wavefronts", c_uint64),
        ("shared_read", c_uint64), ("shared_written", c_uint64),
        ("operations", c_uint64), ("barriers", c_uint64), ("waits", c_uint64),
    ]  # fmt: skip


class NativePlace(Structure):
    """Where a thread of a stopped block was."""

    standing: int
    line: int
    pc: int
    _fields_: ClassVar = [("standing", c_uint32), ("line", c_uint32), ("pc", c_uint64)]


class NativeRequest(Structure):
    """A launch, and its results."""

    outcome: int
    num_findings: int
    stopped_block: int
    module_base: int
    num_counts: int
    counts: ctypes._Pointer[NativeCount]  # pyright: ignore[reportPrivateUsage]
    _fields_: ClassVar = [
        ("entry", c_void_p), ("anchor", c_void_p), ("arguments", POINTER(c_void_p)),
        ("pointers", POINTER(NativePointer)), ("buffers", POINTER(NativeBuffer)),
        ("variables", POINTER(NativeVariable)), ("num_pointers", c_uint32), ("num_buffers", c_uint32),
        ("num_variables", c_uint32), ("grid", c_uint32 * 3), ("block", c_uint32 * 3), ("cluster", c_uint32 * 3),
        ("dynamic_bytes", c_uint32),
        ("workers", c_uint32), ("checks", c_uint32), ("byte_cells", c_uint32), ("limit", c_double),
        ("counters", c_uint32), ("num_runs", c_uint32), ("runs", POINTER(c_uint64)),
        ("outcome", c_uint32), ("num_findings", c_uint32), ("stopped_block", c_uint32), ("padding", c_uint32),
        ("module_base", c_uint64), ("findings", POINTER(NativeFinding)), ("places", POINTER(NativePlace)),
        ("counts", POINTER(NativeCount)), ("num_counts", c_uint64),
    ]  # fmt: skip


class Library:
    """A compiled text, loaded beside the runtime that it is linked with."""

    def __init__(self, path: Path):
        self.path = path
        self._loaded = ctypes.CDLL(str(path))
        self.anchor = self.address("treadle_emu_anchor")

    def address(self, name: str) -> int:
        """The address of one of the library's functions."""
        return ctypes.cast(getattr(self._loaded, name), c_void_p).value or 0

    def parameters(self, kernel: str) -> list[NativeParameter]:
        """The kernel's parameters, in order."""
        function = getattr(self._loaded, f"treadle_emu_parameters_{kernel}")
        function.argtypes = [POINTER(NativeParameter)]
        function.restype = c_uint32
        made = (NativeParameter * int(function(None)))()
        function(made)
        return list(made)

    def run(self, request: NativeRequest) -> None:
        """Runs a launch to its end; other Python threads may run meanwhile."""
        function = self._loaded.treadle_emu_launch
        function.argtypes = [POINTER(NativeRequest)]
        function.restype = None
        function(ctypes.byref(request))

    def take_counts(self, request: NativeRequest) -> list[NativeCount]:
        """What the launch counted; the runtime's own memory for it is given back."""
        taken = [NativeCount.from_buffer_copy(request.counts[index]) for index in range(request.num_counts)]
        function = self._loaded.treadle_emu_free_counts
        function.argtypes = [POINTER(NativeRequest)]
        function.restype = None
        function(ctypes.byref(request))
        return taken
