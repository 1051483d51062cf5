"""What this machine can do at most: multiply-adds from registers, and reads from memory, measured."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt, prod

import numpy as np
from xdsl.dialects import func
from xdsl.dialects.builtin import ArrayAttr, IntAttr, IntegerType, MemRefType, ModuleOp, VectorType
from xdsl.ir import Attribute, Operation, SSAValue

from treadle.artifact.artifact import MODULE, Artifact
from treadle.backends.c.compiler import Unit, build_library
from treadle.backends.c.executor import CpuProgram
from treadle.backends.launch_names import has_choices
from treadle.compiler.request import read_module
from treadle.dialects.cuda import KernelOp
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.host import BufferOp, LaunchOp
from treadle.dialects.location import name_nodes
from treadle.dialects.loop import CountAttr
from treadle.errors import TreadleError
from treadle.target.host import Cache, caches_of, host_target

# Which buffers a kernel reads at places that other data says, as gathers do: how much of them, a call decides.


def gathered_buffers(kernel: Operation, single: Collection[int] = ()) -> list[int]:
    """The numbers of the arguments that are read at indices which depend on integers of another one. A buffer of one
    integer, as that of an extent, gives no places, unless its number is in `single`: the token of a decoder's step."""
    tainted, found = set[SSAValue](), dict[int, None]()
    numbers = _numbers(kernel)
    indices = {arg for arg, n in numbers.items() if n in single}
    while True:
        before = len(tainted)
        for op in kernel.walk():
            buffer = _buffer(op)
            at = [operand for operand in op.operands if operand is not buffer and operand in tainted]
            if buffer is not None and op.results and at and buffer in numbers:
                found[numbers[buffer]] = None
            if at or (buffer is not None and op.results and (buffer in indices or _gives_places(buffer))):
                tainted.update(op.results)
                tainted.update(arg for region in op.regions for block in region.blocks for arg in block.args)
        if len(tainted) == before:
            return list(found)


def stored_elements(kernel: Operation) -> int:
    """Elements of the arguments that the kernel writes."""
    args = kernel.regions[0].block.args
    touched = [_buffer(op) for op in kernel.walk() if not op.results]
    return sum(prod(_shape(arg.type)) for arg in args if any(buffer is arg for buffer in touched))


def _numbers(kernel: Operation) -> dict[SSAValue, int]:
    return {arg: n for n, arg in enumerate(kernel.regions[0].block.args)}


def _buffer(op: Operation) -> SSAValue | None:
    """The buffer that an operation reads or writes elements of."""
    return next((operand for operand in op.operands if isinstance(operand.type, MemRefType)), None)


def _gives_places(buffer: SSAValue) -> bool:
    """Whether it holds several integers that may be indices."""
    return prod(_shape(buffer.type)) > 1 and _holds_indices(buffer)


def _holds_indices(buffer: SSAValue) -> bool:
    assert isinstance(buffer.type, MemRefType)
    element = buffer.type.element_type
    element = element.element_type if isinstance(element, VectorType) else element
    return isinstance(element, IntegerType) and element.width.data >= _LEAST_WIDTH


def _single_indices(launch: LaunchOp, given: int) -> frozenset[int]:
    """The numbers of a launch's buffers that are one of the first `given` inputs of the model, which no extents are,
    and hold one integer."""
    return frozenset(
        n
        for n, buffer in enumerate(launch.buffers)
        if isinstance(owner := buffer.owner, BufferOp)
        and owner.kind.data == "input"
        and owner.position is not None
        and owner.position.value.data < given
        and _holds_indices(buffer)
        and prod(_shape(buffer.type)) == 1
    )


def _inputs_of_the_caller(module: ModuleOp) -> int:
    """How many inputs come before those which are extents."""
    main = next((op for op in module.ops if isinstance(op, func.FuncOp) and op.sym_name.data == "main"), None)
    lists = [None if main is None else main.attributes.get(name) for name in ("input_names", "extents")]
    inputs, extents = (len(each) if isinstance(each, ArrayAttr) else 0 for each in lists)
    return inputs - extents


_LEAST_WIDTH = 32
"""Bits of an index; bytes are pixels and weights."""


def _shape(type: Attribute) -> Sequence[int]:
    assert isinstance(type, MemRefType)
    return type.get_shape()


# What the launches of a compiled model do, read from the IR that the artifact carries.


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel.

    nodes:      the nodes of the model that it computes, as text
    operations: arithmetic operations by the definition of what it computes (`count_operations`)
    nbytes:     of its operands and results, each once: what has to move at least. Of one that is read at places which
        other data says, as many elements count as there are results
    """

    kernel: str
    nodes: str
    operations: int
    nbytes: int


def module_of(artifact: Artifact) -> ModuleOp:
    """The IR that an artifact carries; TreadleError where it is missing, changed or damaged."""
    return read_module(artifact.module_text(), str(artifact.folder / MODULE))


def launches_of(artifact: Artifact) -> list[Launch]:
    """As `launches_in`, of a compiled model; raises as `module_of`, too."""
    return launches_in(module_of(artifact), artifact.folder / MODULE)


def launches_in(module: ModuleOp, where: object) -> list[Launch]:
    """The launches of a lowered module, in order; TreadleError where there are none, and where shapes or data decide
    which launches a call has."""
    if has_choices(module):
        message = "which launches a call has, its shapes or its data decide"
        raise TreadleError(message, where, "a model for one shape, without loops and branches")
    launches = [op for op in module.walk() if isinstance(op, LaunchOp)]
    if not launches:
        raise TreadleError("there are no launches in it", where, "the IR of a compiled model")
    kernels = {name: _Kernel(op) for name, op in kernels_of(module).items()}
    given = _inputs_of_the_caller(module)
    return [
        Launch(
            launch.kernel.string_value(),
            name_nodes(launch.location),
            kernels[launch.kernel.string_value()].operations,
            kernels[launch.kernel.string_value()].nbytes(launch.buffers, _single_indices(launch, given)),
        )
        for launch in launches
    ]


def kernels_of(module: ModuleOp) -> dict[str, Operation]:
    """The kernels of a lowered module by their symbols: functions of C or CUDA that launches name."""
    launched = {op.kernel.string_value() for op in module.walk() if isinstance(op, LaunchOp)}
    named = {op.sym_name.data: op for op in module.ops if isinstance(op, func.FuncOp | KernelOp)}
    return {name: op for name, op in named.items() if name in launched}


class _Kernel:
    """What the text of a kernel says of its launches."""

    def __init__(self, kernel: Operation):
        counted = kernel.attributes.get("operations")
        self.operations = counted.data if isinstance(counted, CountAttr | IntAttr) else 0
        self._kernel, self._stored = kernel, stored_elements(kernel)
        self._gathered: dict[frozenset[int], list[int]] = {}

    def nbytes(self, buffers: Sequence[SSAValue], single: frozenset[int]) -> int:
        """Of the buffers of a launch, each once; single: the numbers of those which are one index."""
        if single not in self._gathered:
            self._gathered[single] = gathered_buffers(self._kernel, single)
        gathered = {buffers[n] for n in self._gathered[single]}
        return sum(self._nbytes(buffer, buffer in gathered) for buffer in dict.fromkeys(buffers))

    def _nbytes(self, buffer: SSAValue, is_gathered: bool) -> int:
        assert isinstance(buffer.type, MemRefType)
        elements = prod(buffer.type.get_shape())
        return (min(elements, self._stored) if is_gathered else elements) * byte_width(buffer.type.element_type)


# What the machine can do at most.


@dataclass(frozen=True)
class Level:
    """A level of memory.

    name: `L1` and so on, or `DRAM`
    nbytes: what the caches of this level hold that the threads use, all together; None: there is no limit
    bandwidth: bytes read from it a second, by all threads together
    """

    name: str
    nbytes: int | None
    bandwidth: float


@dataclass(frozen=True)
class Peaks:
    """operations: additions and multiplications of float32 a second, two a multiply-add; bandwidth: bytes read from
    memory a second; caches: the same of each level that the system tells of, the smallest first. All with all threads
    that a call has."""

    operations: float
    bandwidth: float
    caches: tuple[Level, ...] = ()

    @property
    def levels(self) -> tuple[Level, ...]:
        """The caches and the memory."""
        return (*self.caches, Level("DRAM", None, self.bandwidth))

    def level_of(self, nbytes: int) -> Level:
        """The smallest level whose capacity holds so many bytes.

        Of caches that several threads have each for itself, the capacities add up, as if each byte were in one of them:
        what all threads read, such as a product's weights, is in all, so that the level may be too small a one, and the
        time that follows from it too short, never too long.
        """
        return next(level for level in self.levels if level.nbytes is None or nbytes <= level.nbytes)

    def least_seconds(self, operations: int, nbytes: int, working_set: int) -> float:
        """The roofline: what so many operations take, or what moving so many bytes takes from the level that holds
        `working_set` bytes, whichever is longer."""
        return max(operations / self.operations, nbytes / self.level_of(working_set).bandwidth)

    def better(self, other: Peaks) -> Peaks:
        """Of two measurements the higher peaks: what slows a machine makes a peak lower, and nothing higher."""
        pairs = zip(self.caches, other.caches, strict=True)
        caches = tuple(one if one.bandwidth >= two.bandwidth else two for one, two in pairs)
        return Peaks(max(self.operations, other.operations), max(self.bandwidth, other.bandwidth), caches)

    def difference(self, other: Peaks) -> tuple[str, float]:
        """Which peak differs most between two measurements, `arithmetic` or a level's name, and by which share of the
        higher one, from 0 to 1."""
        pairs = [("arithmetic", self.operations, other.operations)]
        pairs += [(one.name, one.bandwidth, two.bandwidth) for one, two in zip(self.levels, other.levels, strict=True)]
        return max(((name, 1 - min(two) / max(two)) for name, *two in pairs), key=lambda each: each[1])


_ACCUMULATORS = 12
"""Independent sums of a thread: with a latency of four or five cycles and two units, ten keep these busy."""
_STEPS = 2_000_000
_READ_BYTES = 256 << 20
"""What a try reads at least, and of memory the buffer's bytes at least."""
_MOST_BYTES = 512 << 20
"""Of the buffer: where the last cache is larger than half of it, some of what counts as memory's comes from there."""
_TRIES = 5
_AT_ONCE = 8
"""Independent sums of a thread that reads."""

_TEXT = """#include "pool.h"
#include "treadle.h"
typedef v{lanes}f vector;
enum {{ SUMS = {sums}, STEPS = {steps}, BLOCKS = {blocks} }};
static void multiply(void *const *args, long worker, long workers) {{
    const float *x = args[0];
    float *sink = args[1];
    for (long block = BLOCKS * worker / workers; block < BLOCKS * (worker + 1) / workers; block++) {{
        vector sum[SUMS], a = treadle_splat_v{lanes}f(x[0]), b = treadle_splat_v{lanes}f(x[1]);
        for (int n = 0; n < SUMS; n++) sum[n] = treadle_splat_v{lanes}f((float)n);
        for (long step = 0; step < STEPS / BLOCKS; step++)
            TREADLE_UNROLL({sums})
            for (int n = 0; n < SUMS; n++) sum[n] = sum[n] * a + b;
        for (int n = 1; n < SUMS; n++) sum[0] += sum[n];
        sink[block] = sum[0][0];
    }}
}}
{readers}
void treadle_run(struct treadle_pool *pool, void *const *inputs, void *const *outputs,
                 void *const *constants, char *arena) {{
    treadle_pool_run(pool, multiply, (void *const[]){{constants[0], arena}}, BLOCKS);
{runs}
}}
"""
_READER = """static void read_{number}(void *const *args, long worker, long workers) {{
    enum {{ BLOCKS = {blocks}, VECTORS = {vectors}, REPEATS = {repeats} }};
    const float *x = args[0];
    float *sink = args[1];
    for (long block = BLOCKS * worker / workers; block < BLOCKS * (worker + 1) / workers; block++) {{
        vector sum[{sums}] = {{0}};
        const float *part = x + block * (VECTORS / BLOCKS) * {lanes};
        for (long repeat = 0; repeat < REPEATS; repeat++) {{
            for (long at = 0; at < VECTORS / BLOCKS; at += {sums})
                TREADLE_UNROLL({sums})
                for (int n = 0; n < {sums}; n++) sum[n] += treadle_load_v{lanes}f(part + (at + n) * {lanes});
            __asm__ volatile("" ::: "memory");  /* what was read is read again */
        }}
        for (int n = 1; n < {sums}; n++) sum[0] += sum[n];
        sink[block] = sum[0][0];
    }}
}}"""
_RUN = "    treadle_pool_run(pool, read_{number}, (void *const[]){{constants[0], arena}}, {blocks});"


@dataclass(frozen=True)
class _Reading:
    """How a level is measured: each of `blocks` blocks reads its part of so many vectors, again and again."""

    vectors: int
    blocks: int
    repeats: int

    @staticmethod
    def of(nbytes: int, blocks: int, lanes: int) -> _Reading:
        chunk = _AT_ONCE * blocks
        vectors = max(1, nbytes // (4 * lanes) // chunk) * chunk
        return _Reading(vectors, blocks, max(1, _READ_BYTES // (4 * lanes * vectors)))


def measure_peaks(threads: int, caches: Sequence[Cache] | None = None) -> Peaks:
    """The best of five tries of each, in about a second; TreadleError without a C compiler.

    caches: of this machine; default: those that the system tells of. A level is read in a buffer whose size is the
        geometric mean of its capacity and that of the level below, of which most does not fit there; the first in one
        of half its capacity. Each thread reads a part of its own.
    """
    lanes, blocks = host_target().lanes, 16 * threads
    capacities = _capacities(caches_of() if caches is None else caches, threads)
    last = max(capacities.values(), default=0)
    memory_bytes = min(max(_READ_BYTES, 2 * last), _MOST_BYTES)
    sizes = [min(_between(below, nbytes), memory_bytes) for below, nbytes in pairwise([0, *capacities.values()])]
    readings = [_Reading.of(size, threads, lanes) for size in sizes] + [_Reading.of(memory_bytes, blocks, lanes)]
    steps = max(1, _STEPS // blocks) * blocks
    shared = {"lanes": lanes, "blocks": blocks}
    readers = [_READER.format(number=n, sums=_AT_ONCE, lanes=lanes, **vars(each)) for n, each in enumerate(readings)]
    runs = [_RUN.format(number=n, blocks=each.blocks) for n, each in enumerate(readings)]
    text = _TEXT.format(sums=_ACCUMULATORS, steps=steps, readers="\n".join(readers), runs="\n".join(runs), **shared)
    memory = np.full(max(each.vectors for each in readings) * lanes, 0.5, np.float32)  # written: every page is there
    library = build_library([Unit("treadle_run", text)])
    with CpuProgram(library, [], [], [memory], 4 * blocks, threads) as program:
        tries = [program.launch_seconds([], 1 + len(readings)) for _ in range(_TRIES)]
    multiplied, *read = (min(seconds) for seconds in zip(*tries, strict=True))
    rates = [4 * lanes * each.vectors * each.repeats / seconds for each, seconds in zip(readings, read, strict=True)]
    levels = [Level(*held, rate) for held, rate in zip(capacities.items(), rates, strict=False)]
    return Peaks(2 * lanes * _ACCUMULATORS * steps / multiplied, rates[-1], tuple(levels))


def _capacities(caches: Sequence[Cache], threads: int) -> dict[str, int]:
    """Bytes of the caches that so many threads use, each on its own core, by the level's name; without a level that
    holds no more than the one below, as large caches of cores beside a small one that they share."""
    found: dict[str, int] = {}
    for cache in caches:
        nbytes = cache.nbytes * min(cache.count, threads)
        if nbytes > max(found.values(), default=0):
            found[f"L{cache.level}"] = nbytes
    return found


def _between(below: int, nbytes: int) -> int:
    return isqrt(below * nbytes) if below else nbytes // 2
