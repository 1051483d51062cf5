"""What this machine can do at most: multiply-adds from registers, and reads from memory, measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.dialects import func
from xdsl.dialects.builtin import IntAttr, IntegerType, MemRefType, ModuleOp, VectorType
from xdsl.ir import Attribute, Operation, SSAValue

from treadle.artifact.artifact import MODULE, Artifact
from treadle.backends.c.compiler import Unit, build_library
from treadle.backends.c.executor import CpuProgram
from treadle.compiler.request import read_module
from treadle.dialects.cuda import KernelOp
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.host import DispatchOp, IfOp, LaunchOp, LoopOp
from treadle.dialects.location import name_nodes
from treadle.dialects.loop import CountAttr
from treadle.errors import TreadleError
from treadle.target.host import host_target

# Which buffers a kernel reads at places that other data says, as gathers do: how much of them, a call decides.


def gathered_buffers(kernel: Operation) -> list[int]:
    """The numbers of the arguments that are read at indices which depend on integers of another one. A buffer of one
    integer, as that of an extent, gives no places."""
    tainted, found = set[SSAValue](), dict[int, None]()
    numbers = _numbers(kernel)
    while True:
        before = len(tainted)
        for op in kernel.walk():
            buffer = _buffer(op)
            at = [operand for operand in op.operands if operand is not buffer and operand in tainted]
            if buffer is not None and op.results and at and buffer in numbers:
                found[numbers[buffer]] = None
            if at or (buffer is not None and op.results and _gives_places(buffer)):
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
    """Whether it holds integers that may be indices."""
    assert isinstance(buffer.type, MemRefType)
    element = buffer.type.element_type
    element = element.element_type if isinstance(element, VectorType) else element
    return isinstance(element, IntegerType) and element.width.data >= _LEAST_WIDTH and prod(_shape(buffer.type)) > 1


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
    return [
        Launch(
            launch.kernel.string_value(),
            name_nodes(launch.location),
            kernels[launch.kernel.string_value()].operations,
            kernels[launch.kernel.string_value()].nbytes(launch.buffers),
        )
        for launch in launches
    ]


def has_choices(module: ModuleOp) -> bool:
    """Whether shapes or data decide which launches a call has, so that `launches_in` cannot list them."""
    return any(isinstance(op, DispatchOp | LoopOp | IfOp) for op in module.walk())


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
        self._gathered, self._stored = gathered_buffers(kernel), stored_elements(kernel)

    def nbytes(self, buffers: Sequence[SSAValue]) -> int:
        """Of the buffers of a launch, each once."""
        gathered = {buffers[n] for n in self._gathered}
        return sum(self._nbytes(buffer, buffer in gathered) for buffer in dict.fromkeys(buffers))

    def _nbytes(self, buffer: SSAValue, is_gathered: bool) -> int:
        assert isinstance(buffer.type, MemRefType)
        elements = prod(buffer.type.get_shape())
        return (min(elements, self._stored) if is_gathered else elements) * byte_width(buffer.type.element_type)


_ACCUMULATORS = 12
"""Independent sums of a thread: with a latency of four or five cycles and two units, ten keep these busy."""
_STEPS = 2_000_000
_READ_BYTES = 256 << 20
"""More than any last-level cache of a few cores holds."""
_TRIES = 5

_TEXT = """#include "pool.h"
#include "treadle.h"
typedef v{lanes}f vector;
enum {{ SUMS = {sums}, STEPS = {steps}, VECTORS = {vectors}, BLOCKS = {blocks} }};
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
static void read(void *const *args, long worker, long workers) {{
    const float *x = args[0];
    float *sink = args[1];
    for (long block = BLOCKS * worker / workers; block < BLOCKS * (worker + 1) / workers; block++) {{
        vector sum[8] = {{0}};
        const float *part = x + block * (VECTORS / BLOCKS) * {lanes};
        for (long at = 0; at < VECTORS / BLOCKS; at += 8)
            TREADLE_UNROLL(8)
            for (int n = 0; n < 8; n++) sum[n] += treadle_load_v{lanes}f(part + (at + n) * {lanes});
        for (int n = 1; n < 8; n++) sum[0] += sum[n];
        sink[block] = sum[0][0];
    }}
}}
void treadle_run(struct treadle_pool *pool, void *const *inputs, void *const *outputs,
                 void *const *constants, char *arena) {{
    treadle_pool_run(pool, multiply, (void *const[]){{constants[0], arena}}, BLOCKS);
    treadle_pool_run(pool, read, (void *const[]){{constants[0], arena}}, BLOCKS);
}}
"""


@dataclass(frozen=True)
class Peaks:
    """operations: additions and multiplications of float32 a second, two a multiply-add; bandwidth: bytes read from
    memory a second. Both with all threads that a call has."""

    operations: float
    bandwidth: float


def measure_peaks(threads: int) -> Peaks:
    """The best of five tries of each, in about half a second; TreadleError without a C compiler."""
    lanes, blocks = host_target().lanes, 16 * threads
    vectors = _READ_BYTES // (4 * lanes) // (8 * blocks) * (8 * blocks)
    steps = _STEPS // blocks * blocks
    text = _TEXT.format(lanes=lanes, sums=_ACCUMULATORS, steps=steps, vectors=vectors, blocks=blocks)
    memory = np.full(vectors * lanes, 0.5, np.float32)  # written, so that every page is there
    library = build_library([Unit("treadle_run", text)])
    with CpuProgram(library, [], [], [memory], 4 * blocks, threads) as program:
        tries = [program.launch_seconds([], 2) for _ in range(_TRIES)]
    multiplied, read = (min(seconds) for seconds in zip(*tries, strict=True))
    return Peaks(2 * lanes * _ACCUMULATORS * steps / multiplied, 4 * lanes * vectors / read)
