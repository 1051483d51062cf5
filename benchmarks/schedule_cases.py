"""Representative anchors of each GPU template, and the compilation of one of their schedules.

A module does not travel between processes, but its text does: `Case.text` is the group, `compiled` takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, TensorType, i32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.parser import Parser

from treadle.backends.cuda.compiler import compile_cubin
from treadle.backends.cuda.machine_code import disassemble, occupancy
from treadle.backends.cuda.printer import print_kernels
from treadle.compiler.pipeline import lower
from treadle.dialects.cuda import KernelOp as CudaKernelOp
from treadle.dialects.graph import (
    AttentionOp,
    BinaryOp,
    ConvOp,
    FusedOp,
    LayerNormOp,
    MatmulOp,
    PoolOp,
    ReductionOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
)
from treadle.dialects.graph.dtypes import element_type
from treadle.dialects.loop import FuncOp as LoopFuncOp
from treadle.dialects.loop import Space
from treadle.dialects.loop.tiles import SECTOR_BYTES
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice, UseAttr
from treadle.errors import TreadleError
from treadle.passes.loop.fetched_sectors import Fetched, MemoryTransactions, fetched_sectors, memory_transactions
from treadle.passes.schedule.instance import anchor_of
from treadle.passes.schedule.schedule_select import default_schedule
from treadle.schedules.template import Space as ScheduleSpace
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

Shape = tuple[int, ...]
_REGISTERS_AT_ONCE = 8
"""A thread's registers are allocated in units of eight."""
TENSOR_CORES = (
    "matmul_mma", "matmul_rows_mma", "matmul_tf32", "matmul_int8", "attention_mma", "attention_decode_mma",
)  # fmt: skip
"""Templates whose schedules compute on tensor cores."""
TELLING = ("HMMA", "IMMA", "LDGSTS")
"""Instructions of tensor core templates: a product of floats, or of bytes, and an asynchronous copy from global to
shared memory."""
Operators = Callable[[Sequence[SSAValue]], Sequence[Operation]]


@dataclass(frozen=True)
class Case:
    """One group: its operators, given its inputs, the last one of which gives the result.

    dtype: NumPy's name of the inputs' type
    after: the stage behind which the operators stand
    """

    name: str
    shapes: tuple[Shape, ...]
    operators: Operators
    dtype: str = "float32"
    after: str | None = "graph"

    def module(self) -> ModuleOp:
        """The group as a program, fused but without a decision."""
        element = element_type(np.dtype(self.dtype))
        block = Block(arg_types=[TensorType(element, shape) for shape in self.shapes])
        block.add_ops(self.operators(block.args))
        assert block.last_op is not None
        result = block.last_op.results[0]
        block.add_op(ReturnOp(result))
        types = [arg.type for arg in block.args], [result.type]
        module = ModuleOp([FuncOp("main", types, Region(block))])
        lower(treadle_context(), module, Target.parse("sm_80"), after=self.after, to="fuse")
        return module

    def text(self) -> str:
        """The module, to be read by another process."""
        return str(self.module())

    def default(self, target: Target) -> UseAttr:
        """The decision made without a search."""
        return default_schedule(group_of(self.module()), target)

    def space(self, target: Target) -> ScheduleSpace:
        """The space of the template that is chosen by default."""
        fused = group_of(self.module())
        template = TEMPLATES[default_schedule(fused, target).template.data]
        return template.space(anchor_of(fused), target)


@dataclass(frozen=True)
class Compiled:
    """What a schedule of a group compiles to. Bytes, except for registers of a thread; occupancy is a fraction.

    register_limit: what a thread may have of them, with as many blocks resident as the schedule asks for
    conflicts, excess_requests: of the worst warp of each access, summed over the accesses in the kernel's text
    excess_sectors: what stores, and loads whose sectors do not stay in the L1 cache, ask for in vain, and what the
        worst block loads in vain of other buffers
    instructions: those of `TELLING` that tensor core templates compile to; none where no disassembler is installed
    """

    blocks: int
    threads: int
    registers: int
    register_limit: int
    spills: int
    shared: int
    occupancy: float
    limiter: str
    conflicts: int
    excess_requests: int
    excess_sectors: int
    instructions: tuple[str, ...] = ()

    @property
    def lacks_registers(self) -> bool:
        """Whether it spills since there are no more registers; below the limit, ptxas spills for one block more."""
        return self.spills > 0 and self.registers + _REGISTERS_AT_ONCE > self.register_limit


def group_of(module: ModuleOp) -> FusedOp:
    """The one group of a program."""
    (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    return fused


def compiled(text: str, template: str, choices: Mapping[str, Choice], target_name: str) -> Compiled:
    """Compiles one schedule of a group for a GPU; TreadleError where it is illegal or NVRTC rejects it."""
    target, context = Target.parse(target_name), treadle_context()
    module = Parser(context, text).parse_module()
    group_of(module).schedule = UseAttr.get(template, dict(choices))
    lower(context, module, target, after="schedule", to="loops")
    (kernel,) = [op for op in module.walk() if isinstance(op, LoopFuncOp)]
    accesses = memory_transactions(kernel)
    again = {each.buffer for each in accesses if each.is_global and not each.is_store and each.excess}
    fetched = fetched_sectors(kernel, again)
    blocks, threads = kernel.grid.value.data, kernel.threads.value.data
    lower(context, module, target, after="loops")
    (lowered,) = [op for op in module.walk() if isinstance(op, CudaKernelOp)]
    (unit,) = print_kernels(module)
    cubin = compile_cubin(unit, target)
    resources = cubin.resources[unit.name]
    dynamic = lowered.shared_bytes(dynamic=True)
    resident = occupancy(resources, target, threads, dynamic)
    return Compiled(
        blocks, threads, resources.registers, _register_limit(lowered, target),
        resources.spill_store_bytes + resources.spill_load_bytes,
        resources.shared_bytes + dynamic, resident.fraction, resident.limiter,
        sum(each.conflicts for each in accesses if each.space is Space.SHARED),
        sum(each.excess for each in accesses if each.is_global),
        _excess_sectors(accesses, fetched, target.shared_per_multiprocessor // resident.blocks - dynamic),
        _instructions(cubin.image) if template in TENSOR_CORES else (),
    )  # fmt: skip


@cache
def compiled_default(name: str, target_name: str) -> Compiled:
    """What the default schedule of a case compiles to; KeyError where there is no such case."""
    case = cases()[name]
    default = case.default(Target.parse(target_name))
    return compiled(case.text(), default.template.data, default.knobs(), target_name)


def _instructions(image: bytes) -> tuple[str, ...]:
    """Which of the instructions in `TELLING` a cubin's one kernel has."""
    try:
        (code,) = disassemble(image).values()
    except TreadleError as error:
        if "not installed" not in error.message:
            raise
        return ()
    return tuple(opcode for opcode in TELLING if code.has(opcode))


def _register_limit(kernel: CudaKernelOp, target: Target) -> int:
    """The most registers of a thread of a kernel."""
    least = kernel.attributes.get("min_blocks_per_sm")
    blocks = least.value.data if isinstance(least, IntegerAttr) else 1
    warps = blocks * -(-kernel.threads // target.warp_size)
    available = target.registers_per_multiprocessor // (warps * target.warp_size)
    return min(target.registers_per_thread, available // _REGISTERS_AT_ONCE * _REGISTERS_AT_ONCE)


def _excess_sectors(accesses: Sequence[MemoryTransactions], fetched: Sequence[Fetched], cache_bytes: int) -> int:
    """Sectors moved beyond the ideal, given a block's part of the L1 cache.

    A block's repeated loads hit the cache if all sectors of the buffers in question fit.
    """
    fits = SECTOR_BYTES * sum(each.sectors for each in fetched) <= cache_bytes
    reused: Sequence[Fetched] = fetched if fits else ()
    cached = {each.buffer for each in reused}
    asked = (each for each in accesses if each.is_global and (each.is_store or each.buffer not in cached))
    return sum(each.excess for each in asked) + sum(each.excess for each in reused)


def _product(x: Sequence[SSAValue]) -> Sequence[Operation]:
    return [MatmulOp(x[0], x[1])]


def _tf32_product(x: Sequence[SSAValue]) -> Sequence[Operation]:
    product = MatmulOp(x[0], x[1])
    product.precision = StringAttr("tf32")
    return [product]


def _byte_product(x: Sequence[SSAValue]) -> Sequence[Operation]:
    right = TransposeOp(x[1], [1, 0])
    return [right, MatmulOp(x[0], right.result, sums=i32)]


def _product_by_rows(x: Sequence[SSAValue]) -> Sequence[Operation]:
    right = TransposeOp(x[1], [1, 0])
    return [right, MatmulOp(x[0], right.result)]


def _turned_product(x: Sequence[SSAValue]) -> Sequence[Operation]:
    a, b = TransposeOp(x[0], [1, 0]), TransposeOp(x[1], [1, 0])
    return [a, b, MatmulOp(a.result, b.result)]


def _layer(x: Sequence[SSAValue]) -> Sequence[Operation]:
    product = MatmulOp(x[0], x[1])
    shifted = BinaryOp("add", product.result, x[2])
    return [product, shifted, UnaryOp("relu", shifted.result)]


def _tf32_layer(x: Sequence[SSAValue]) -> Sequence[Operation]:
    product, *rest = _layer(x)
    assert isinstance(product, MatmulOp)
    product.precision = StringAttr("tf32")
    return [product, *rest]


def _softmax(x: Sequence[SSAValue]) -> Sequence[Operation]:
    return [SoftmaxOp(x[0], 1)]


def _layer_norm(x: Sequence[SSAValue]) -> Sequence[Operation]:
    return [LayerNormOp(x[0], x[1], x[2], 1, 1e-5)]


def _transpose(*order: int) -> Operators:
    return lambda x: [TransposeOp(x[0], order)]


def _reduction(dim: int) -> Operators:
    return lambda x: [ReductionOp("add", x[0], [dim], keep=False)]


def _pointwise(x: Sequence[SSAValue]) -> Sequence[Operation]:
    shifted = BinaryOp("add", x[0], x[1])
    return [shifted, UnaryOp("relu", shifted.result)]


def _pool(x: Sequence[SSAValue]) -> Sequence[Operation]:
    return [PoolOp("max", x[0], [3, 3], [2, 2], [1] * 4, [1, 1])]


def _depthwise(x: Sequence[SSAValue]) -> Sequence[Operation]:
    return [ConvOp(x[0], x[1], [1, 1], [1] * 4, [1, 1], 96)]


def _attention(*, causal: bool) -> Operators:
    return lambda x: [AttentionOp(*x[:3], *x[3:], scale=0.125, causal=causal)]


@cache
def cases() -> Mapping[str, Case]:
    """The anchors, by name."""
    listed = (
        Case("matmul 4096 x 4096 x 4096", ((4096, 4096), (4096, 4096)), _product),
        Case("matmul 2039 x 2039 x 2039", ((2039, 2039), (2039, 2039)), _product),
        Case("matmul of transposes, 1024 x 1024 x 1024", ((1024, 1024), (1024, 1024)), _turned_product),
        Case("layer 128 x 768 x 3072", ((128, 768), (768, 3072), (3072,)), _layer),
        Case("matmul of 12 heads, 128 x 64 x 128", ((12, 128, 64), (12, 64, 128)), _product),
        Case("f16 matmul 4096 x 4096 x 4096", ((4096, 4096), (4096, 4096)), _product, "float16"),
        Case("f16 matmul 2039 x 2039 x 2039", ((2039, 2039), (2039, 2039)), _product, "float16"),
        Case("f16 layer 128 x 768 x 3072", ((128, 768), (768, 3072), (3072,)), _layer, "float16"),
        Case("int8 matmul 4096 x 4096 x 4096", ((4096, 4096), (4096, 4096)), _byte_product, "int8"),
        Case("tf32 matmul 4096 x 4096 x 4096", ((4096, 4096), (4096, 4096)), _tf32_product),
        Case("matmul 64 x 4096 x 64", ((64, 4096), (4096, 64)), _product),
        Case("f16 matmul 64 x 4096 x 64", ((64, 4096), (4096, 64)), _product, "float16"),
        Case("tf32 layer 128 x 3072 x 768", ((128, 3072), (3072, 768), (768,)), _tf32_layer),
        Case("f16 matmul 1 x 4096 x 4096, by rows", ((1, 4096), (4096, 4096)), _product_by_rows, "float16"),
        Case("softmax of 1536 rows of 128", ((1536, 128),), _softmax),
        Case("layer norm of 128 rows of 768", ((128, 768), (768,), (768,)), _layer_norm),
        Case("sum of rows of 1024 x 1024", ((1024, 1024),), _reduction(1)),
        Case("sum of columns of 1024 x 1024", ((1024, 1024),), _reduction(0)),
        Case("channels last, 8 x 64 x 56 x 56", ((8, 64, 56, 56),), _transpose(0, 2, 3, 1)),
        Case("channels first, 8 x 56 x 56 x 64", ((8, 56, 56, 64),), _transpose(0, 3, 1, 2)),
        Case("pointwise 8 x 1024 x 768", ((8, 1024, 768), (768,)), _pointwise),
        Case("max pooling 8 x 64 x 112 x 112", ((8, 64, 112, 112),), _pool),
        Case("depthwise convolution 1 x 96 x 56 x 56", ((1, 96, 56, 56), (96, 1, 3, 3)), _depthwise),
        Case(
            "masked attention of 12 heads, 128 x 64",
            (*((1, 12, 128, 64),) * 3, (1, 1, 1, 128)),
            _attention(causal=False),
        ),
        Case("causal attention of 16 heads, 2048 x 64", ((1, 16, 2048, 64),) * 3, _attention(causal=True)),
        Case(
            "f16 masked attention of 12 heads, 128 x 64",
            (*((1, 12, 128, 64),) * 3, (1, 1, 1, 128)),
            _attention(causal=False),
            "float16",
        ),
        Case(
            "f16 causal attention of 16 heads, 2048 x 64", ((1, 16, 2048, 64),) * 3, _attention(causal=True), "float16"
        ),
        Case(
            "f16 causal attention of 16 heads, 2048 x 128",
            ((1, 16, 2048, 128),) * 3,
            _attention(causal=True),
            "float16",
        ),
        Case(
            "f16 attention of a query, 32 heads over 8 x 4096 x 128",
            ((1, 32, 1, 128), *((1, 8, 4096, 128),) * 2),
            _attention(causal=False),
            "float16",
        ),
    )
    return {case.name: case for case in listed}
