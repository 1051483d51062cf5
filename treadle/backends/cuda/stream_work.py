"""What drivers do on their stream in the same way on every binding: graphs, copies on the device, order of streams."""

from __future__ import annotations

import ctypes
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache
from typing import Any

import numpy as np

from treadle.artifact.manifest import BufferMap
from treadle.backends.cuda.driver import BoundLaunch
from treadle.backends.cuda.gpu_probe import LIBRARY
from treadle.errors import TreadleError
from treadle.target.tensor_map import MAP_BYTES, EncodedMap

# The driver's library by ctypes: what the bindings to it lack, or have each in a form of its own.


def call(doing: str, name: str, *arguments: object) -> None:
    """Calls a function of the driver; numbers that are handles, addresses or sizes come as values of ctypes.

    TreadleError that names `doing`, the function and the driver's own words where the status is not 0, and where the
    library cannot be loaded.
    """
    status = status_of(name, *arguments)
    if status != 0:
        raise TreadleError(f"the GPU failed: {name.partition('_')[0]} failed: {_words(status)}", where=doing)


def status_of(name: str, *arguments: object) -> int:
    """What a function of the driver returns; for calls that may fail."""
    return int(getattr(_library(), name)(*arguments))


def handle(value: int) -> ctypes.c_void_p:
    """A handle or an address of the host as an argument."""
    return ctypes.c_void_p(value)


def address(value: int) -> ctypes.c_uint64:
    """An address of the device as an argument."""
    return ctypes.c_uint64(value)


def size(value: int) -> ctypes.c_size_t:
    """A number of bytes or elements as an argument."""
    return ctypes.c_size_t(value)


@cache
def _library() -> Any:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        message = f"the NVIDIA driver cannot be loaded ({error})"
        raise TreadleError(message, where="cuda driver", accepted=f"a machine with {LIBRARY}") from error


def _words(status: int) -> str:
    """The driver's description of a status, such as `out of memory`."""
    text = ctypes.c_char_p()
    if status_of("cuGetErrorString", status, ctypes.byref(text)) != 0 or text.value is None:
        return f"error {status}"
    return text.value.decode()


# What is queued.


class Mark:
    """A point of the stream's work: an event without a time, which goes back to its driver with the last reference."""

    def __init__(self, work: StreamWork, event: int) -> None:
        self.event, self._work = event, work

    def __del__(self) -> None:
        self._work.unused_events.append(self.event)


class StreamWork(ABC):
    """A part of a `Device`, which has its stream and its context; all work is queued on that stream.

    Graphs are captured on another one: what other threads queue meanwhile is no part of them.
    """

    number: int
    stream_handle: int
    recording_handle: int

    def __init__(self) -> None:
        self.unused_events: list[int] = []
        self.recording = threading.Lock()
        self._pinned: set[int] = set()

    @abstractmethod
    def current(self, doing: str) -> AbstractContextManager[None]:
        """See `Device`."""

    @abstractmethod
    def record_launch(self, launch: BoundLaunch) -> None:
        """Queues a launch on the stream on which graphs are captured."""

    def allocate_host(self, num_bytes: int) -> np.ndarray:
        """See `Driver`."""
        doing, found = f"allocating {num_bytes} bytes of pinned memory", ctypes.c_void_p()
        with self.current(doing):
            call(doing, "cuMemHostAlloc", ctypes.byref(found), size(num_bytes), 0)
        assert found.value is not None
        self._pinned.add(found.value)
        return np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(found.value))

    def free_host(self, array: np.ndarray) -> None:
        """See `Driver`."""
        self._pinned.remove(array.ctypes.data)
        with self.current("freeing pinned memory"):
            status_of("cuMemFreeHost", handle(array.ctypes.data))

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        """See `Driver`."""
        doing = f"copying {num_bytes} bytes on the device"
        if num_bytes:
            with self.current(doing):
                arguments = address(target), address(source), size(num_bytes), handle(self.stream_handle)
                call(doing, "cuMemcpyDtoDAsync_v2", *arguments)

    def copy_rows(self, target: int, source: int, pitches: tuple[int, int], width: int, rows: int) -> None:
        """See `Driver`."""
        doing = f"copying {rows} rows of {width} bytes on the device"
        if width and rows:
            copy = _Copy2D(
                source_type=_ON_DEVICE, source=source, source_pitch=pitches[1], target_type=_ON_DEVICE, target=target,
                target_pitch=pitches[0], width=width, height=rows,
            )  # fmt: skip
            with self.current(doing):
                call(doing, "cuMemcpy2DAsync_v2", ctypes.byref(copy), handle(self.stream_handle))

    def fill(self, target: int, word: int, count: int) -> None:
        """See `Driver`."""
        doing = f"filling {4 * count} bytes on the device"
        if count:
            with self.current(doing):
                arguments = address(target), ctypes.c_uint32(word), size(count), handle(self.stream_handle)
                call(doing, "cuMemsetD32Async", *arguments)

    def order(self, first: int, then: int) -> None:
        """See `Driver`."""
        doing = "ordering two streams"
        if first == then:
            return
        with self.current(doing):
            event = self._event(doing)
            try:
                call(doing, "cuEventRecord", handle(event), handle(first))
                call(doing, "cuStreamWaitEvent", handle(then), handle(event), 0)
            finally:
                self.unused_events.append(event)

    def is_capturing(self, stream: int) -> bool:
        """See `Driver`."""
        doing, status = "asking a stream", ctypes.c_int()
        with self.current(doing):
            call(doing, "cuStreamIsCapturing", handle(stream), ctypes.byref(status))
        return status.value != 0

    def device_of(self, pointer: int) -> int:
        """See `Driver`."""
        doing, number = "asking for the device of an address", ctypes.c_int(-1)
        with self.current(doing):
            call(doing, "cuPointerGetAttribute", ctypes.byref(number), _DEVICE_ORDINAL, address(pointer))
        return number.value

    def finish(self) -> None:
        """See `Driver`."""
        doing = "waiting for the device"
        with self.current(doing):
            call(doing, "cuCtxSynchronize")

    def check(self) -> None:
        """See `Driver`."""
        where = f"cuda:{self.number}"
        with self.current(where):
            if status_of("cuStreamQuery", handle(self.stream_handle)) in (0, _NOT_READY):
                return
            try:
                call(where, "cuStreamQuery", handle(self.stream_handle))
            except TreadleError as error:
                accepted = "close() the model: its next call opens the device anew"
                raise TreadleError(error.message, where, accepted) from error

    def mark(self) -> Mark:
        """See `Driver`."""
        doing = "recording an event"
        with self.current(doing):
            found = Mark(self, self._event(doing))
            call(doing, "cuEventRecord", handle(found.event), handle(self.stream_handle))
        return found

    def is_reached(self, mark: Mark) -> bool:
        """See `Driver`."""
        doing = "asking for an event"
        with self.current(doing):
            status = status_of("cuEventQuery", handle(mark.event))
            if status not in (0, _NOT_READY):
                call(doing, "cuEventQuery", handle(mark.event))
        return status == 0

    def wait_for(self, mark: Mark) -> None:
        """See `Driver`."""
        doing = "waiting for an event"
        with self.current(doing):
            call(doing, "cuEventSynchronize", handle(mark.event))

    def capture(self, launches: Sequence[BoundLaunch]) -> CapturedGraph:
        """See `Driver`."""
        return CapturedGraph(self, launches)

    def _event(self, doing: str) -> int:
        """An event without a time; the context is current."""
        with suppress(IndexError):  # another thread may be faster
            return self.unused_events.pop()
        found = ctypes.c_void_p()
        call(doing, "cuEventCreate", ctypes.byref(found), _WITHOUT_TIME)
        assert found.value is not None
        return found.value

    def give_back(self) -> None:
        """Gives events and pinned memory back, when the driver is closed; the context is current."""
        while self.unused_events:
            status_of("cuEventDestroy_v2", handle(self.unused_events.pop()))
        while self._pinned:
            status_of("cuMemFreeHost", handle(self._pinned.pop()))


NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: the stream does not wait for the default one, nor does that for it."""
_WITHOUT_TIME = 2
"""CU_EVENT_DISABLE_TIMING."""
_DEVICE_ORDINAL = 9
"""CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL."""
_ON_DEVICE = 2
"""CU_MEMORYTYPE_DEVICE."""
_NOT_READY = 600
_THREAD_LOCAL = 1
"""CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may allocate and wait meanwhile."""
_END, _BUFFER_POINTER, _BUFFER_SIZE = 0, 1, 2
"""CU_LAUNCH_PARAM_*: of the two ways to pass parameters, the driver checks the size of this one."""


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (
        ("source_x", ctypes.c_size_t), ("source_y", ctypes.c_size_t), ("source_type", ctypes.c_int),
        ("source_host", ctypes.c_void_p), ("source", ctypes.c_uint64), ("source_array", ctypes.c_void_p),
        ("source_pitch", ctypes.c_size_t), ("target_x", ctypes.c_size_t), ("target_y", ctypes.c_size_t),
        ("target_type", ctypes.c_int), ("target_host", ctypes.c_void_p), ("target", ctypes.c_uint64),
        ("target_array", ctypes.c_void_p), ("target_pitch", ctypes.c_size_t), ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )  # fmt: skip


class Arguments:
    """Addresses as a launch takes them, and tensor maps behind them: one buffer whose size the driver checks."""

    def __init__(self, count: int, maps: Sequence[BufferMap] = ()) -> None:
        self._maps, self._places = (
            [(each.argument, each.map.encoded()) for each in maps],
            map_places(count, maps),
        )
        end = self._places[-1] + MAP_BYTES if maps else 8 * count
        self._memory = (ctypes.c_uint8 * (end + MAP_ALIGNMENT))()
        start = ctypes.addressof(self._memory)
        self._start = start + -start % MAP_ALIGNMENT
        self._values = (ctypes.c_uint64 * count).from_address(self._start)
        self._size = ctypes.c_size_t(end)
        self._extra = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER, self._start, _BUFFER_SIZE, ctypes.addressof(self._size), _END
        )
        self.extra = ctypes.addressof(self._extra)

    def set(self, addresses: Sequence[int]) -> None:
        """Takes the addresses of the next launch. TreadleError where the driver makes no map of one."""
        self._values[:] = addresses
        for (argument, map), place in zip(self._maps, self._places, strict=True):
            encode(map, addresses[argument], self._start + place)


MAP_ALIGNMENT = 64


def map_places(count: int, maps: Sequence[BufferMap]) -> list[int]:
    """Where tensor maps lie among a launch's parameters, behind so many addresses."""
    first = -(-8 * count // MAP_ALIGNMENT) * MAP_ALIGNMENT
    return [first + number * MAP_BYTES for number in range(len(maps))]


def encode(map: EncodedMap, base: int, target: int) -> None:
    """Writes the tensor map of a buffer at an address of the device to 128 bytes of the host, at a multiple of 64.

    TreadleError where the driver has no tensor maps, or does not take this one.
    """
    doing = "encoding a tensor map"
    word, long = ctypes.c_uint32, ctypes.c_uint64
    tensor = (
        handle(target), map.data_type, word(map.rank), handle(base), (long * map.rank)(*map.extents),
        (long * max(1, map.rank - 1))(*map.strides),
    )  # fmt: skip
    rest = (word * map.rank)(*map.element_strides), _NO_INTERLEAVE, map.swizzle, _PROMOTED_TO_256, _ZEROS
    try:
        if not map.lower:
            call(doing, "cuTensorMapEncodeTiled", *tensor, (word * map.rank)(*map.box), *rest)
            return
        corners = ((ctypes.c_int * len(each))(*each) for each in (map.lower, map.upper))
        call(doing, "cuTensorMapEncodeIm2col", *tensor, *corners, *(word(each) for each in map.box), *rest)
    except AttributeError as error:
        raise TreadleError("the NVIDIA driver makes no tensor maps", doing, "a driver for CUDA 12 or later") from error


_NO_INTERLEAVE, _PROMOTED_TO_256, _ZEROS = 0, 3, 0
"""CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE."""


class _NodeParameters(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v1, which all drivers since CUDA 10 take."""

    _fields_ = (
        ("function", ctypes.c_void_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
        ("dynamic_bytes", ctypes.c_uint), ("kernel_parameters", ctypes.c_void_p), ("extra", ctypes.c_void_p),
    )  # fmt: skip

    kernel_parameters: int | None
    extra: int | None


class _Node:
    """A launch in a graph, and what its arguments are set with."""

    def __init__(self, handle: int, launch: BoundLaunch) -> None:
        self.handle = handle
        self.arguments = Arguments(len(launch.arguments), launch.maps)
        self.parameters: _NodeParameters | None = None


class CapturedGraph:
    """A `LaunchGraph` of launches: captured once, launched as one on the device's stream."""

    def __init__(self, work: StreamWork, launches: Sequence[BoundLaunch]) -> None:
        """Raises `TreadleError` where the driver refuses."""
        self._work, self._stream, self._recording = work, handle(work.stream_handle), handle(work.recording_handle)
        self._nodes: list[_Node] = []
        self._graph, self._instance = ctypes.c_void_p(), ctypes.c_void_p()
        with work.current(_CAPTURING), work.recording:
            call(_CAPTURING, "cuStreamBeginCapture_v2", self._recording, _THREAD_LOCAL)
            try:
                for each in launches:
                    work.record_launch(each)
                    self._nodes.append(_Node(self._last_node(), each))
            except BaseException:
                # What the driver says of a capture that failed would hide why it did.
                status_of("cuStreamEndCapture", self._recording, ctypes.byref(self._graph))
                self._destroy()
                raise
            call(_CAPTURING, "cuStreamEndCapture", self._recording, ctypes.byref(self._graph))
            try:
                arguments = ctypes.byref(self._instance), self._graph, ctypes.c_uint64(0)
                call(_CAPTURING, "cuGraphInstantiateWithFlags", *arguments)
            except BaseException:
                self._destroy()
                raise

    def _last_node(self) -> int:
        """The launch that was captured last: the only one on which another would depend."""
        status, count, nodes = ctypes.c_int(), ctypes.c_size_t(), ctypes.POINTER(ctypes.c_void_p)()
        outputs = ctypes.byref(status), None, None, ctypes.byref(nodes), ctypes.byref(count)
        call(_CAPTURING, "cuStreamGetCaptureInfo_v2", self._recording, *outputs)
        if count.value != 1 or nodes[0] is None:
            raise TreadleError(f"a launch became {count.value} nodes of the graph", _CAPTURING, "one")
        return nodes[0]

    def update(self, position: int, arguments: Sequence[int]) -> None:
        """See `LaunchGraph`."""
        doing = "changing the arguments of a launch in a graph"
        if not self._instance:
            raise TreadleError("the graph was closed", where=doing)
        node = self._nodes[position]
        with self._work.current(doing):
            if node.parameters is None:
                node.parameters = _NodeParameters()
                call(doing, "cuGraphKernelNodeGetParams", handle(node.handle), ctypes.byref(node.parameters))
                node.parameters.kernel_parameters, node.parameters.extra = None, node.arguments.extra
            node.arguments.set(arguments)
            given = self._instance, handle(node.handle), ctypes.byref(node.parameters)
            call(doing, "cuGraphExecKernelNodeSetParams", *given)

    def launch(self, times: int = 1) -> None:
        """See `LaunchGraph`."""
        doing = "launching a graph"
        if not self._instance:
            raise TreadleError("the graph was closed", where=doing)
        with self._work.current(doing):
            for _ in range(times):
                call(doing, "cuGraphLaunch", self._instance, self._stream)

    def close(self) -> None:
        """See `LaunchGraph`. In a context that a kernel has broken the graph is gone, which is no further error."""
        if self._instance:
            with self._work.current("closing a graph"):
                self._destroy()

    def _destroy(self) -> None:
        if self._instance:
            status_of("cuGraphExecDestroy", self._instance)
        if self._graph:
            status_of("cuGraphDestroy", self._graph)
        self._instance, self._graph = ctypes.c_void_p(), ctypes.c_void_p()


_CAPTURING = "capturing a graph"
