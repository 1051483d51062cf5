"""Reductions on a GPU: the threads of a block share elements, and fold in their warps and in shared memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod
from typing import ClassVar

from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import ComputeOp, MatmulOp, ReduceOp, WholeOp, YieldOp, definition
from treadle.dialects.graph.compute import only_reduce
from treadle.dialects.graph.definition import Scalar, widened
from treadle.dialects.graph.dtypes import accumulator, is_float
from treadle.dialects.graph.reduction import identity
from treadle.dialects.loop import KernelOp, Space
from treadle.dialects.loop.tiles import WARP, lanes_fold
from treadle.dialects.schedule import Choice
from treadle.schedules.access_analysis import has_contiguous_rows
from treadle.schedules.kernel_builder import (
    Index,
    KernelBuilder,
    all_of,
    emit_block,
    kernel_builder,
    narrowed,
    ssa_values,
)
from treadle.schedules.reduction_end import ReductionEnd, reduction_end, steps_of, with_end
from treadle.schedules.template import Anchor, Choices, Knob, Template, number
from treadle.schedules.templates.reduce_cpu import walks_contiguously
from treadle.target import Target

_FEW_IN_TILES = 4096
"""Elements up to which a product has too few tiles to fill a GPU, and its reduction is shared out instead."""
_ROWS_OF_A_TILE, _TERMS_OF_SLICES = 16, 512
"""Rows and columns that fill half of a tile, and terms of two slices or more, from which split-k of tiles is better:
their elements are then read less often than by a reduction."""
_FEW_IN_THREADS = 1 << 16
"""Elements up to which one thread per output under-occupies the GPU."""


class ReduceCuda(Template):
    """A block computes `outputs` elements, each shared by `threads / outputs` threads: a thread folds every so
    many terms in a register, then a tree folds the threads' results: among the lanes of a warp if these share an
    element, else in shared memory, a barrier between rounds.

    Consecutive threads take consecutive terms where these lie next to one another in memory, else consecutive
    elements of the result. A product of few elements and many terms is such a reduction, too.
    """

    name: ClassVar[str] = "reduce_cuda"
    kind: ClassVar[str] = "cuda"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("threads", (32, 64, 128, 256, 512), "threads of a block"),
        Knob("outputs", (1, 2, 4, 8, 16, 32), "elements that a block computes"),
    )

    def fits(self, anchor: Anchor) -> bool:
        if isinstance(anchor, MatmulOp):
            # A row or a column wastes nearly all of any tile; of other products, a warp's worth of terms is needed.
            terms = 4 if min(anchor.shape[-2:]) < 8 else 32
            few = prod(anchor.shape) <= _FEW_IN_TILES and anchor.reduction_extent >= terms
            in_slices = min(anchor.shape[-2:]) >= _ROWS_OF_A_TILE and anchor.reduction_extent >= _TERMS_OF_SLICES
            known = is_float(anchor.type.get_element_type()) or anchor.sums is not None
            return few and not in_slices and known
        if isinstance(anchor, WholeOp):
            return False
        reduce = only_reduce(anchor)
        if reduce is None or prod(reduce.shape) < 32:
            return False
        return prod(anchor.shape) <= _FEW_IN_THREADS or walks_contiguously(anchor, reduce)

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        outputs, extent, along_terms = _sizes(anchor)
        if along_terms:
            together = 4 if extent <= 128 and outputs % 4 == 0 and outputs >= 8 * target.multiprocessors else 1
            return {"threads": together * 32 if extent <= 128 else 128 if extent <= 2048 else 256, "outputs": together}
        # Rows of 32 consecutive elements are what memory moves at once; half of one where blocks are few.
        wide = 32 if outputs >= 32 * target.multiprocessors else 16 if outputs >= 16 else 8
        parts = 8 if extent <= 256 or outputs >= 1024 * target.multiprocessors else 16
        return {"threads": wide * parts, "outputs": wide}

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        compute = definition(anchor) if isinstance(anchor, WholeOp) else anchor
        shared = _Shares(number(choices, "threads"), number(choices, "outputs"), _along_terms(anchor, compute))
        kernel = _ReduceBody(compute, shared, reduction_end(anchor)).build(name)
        if compute is not anchor:
            compute.erase()
        return kernel


def _sizes(anchor: Anchor) -> tuple[int, int, bool]:
    """Elements of the result, terms of each, and whether these lie next to one another."""
    compute = definition(anchor) if isinstance(anchor, WholeOp) else anchor
    reduce = only_reduce(compute)
    assert reduce is not None
    sizes = prod(compute.shape), prod(reduce.shape), _along_terms(anchor, compute)
    if compute is not anchor:
        compute.erase()
    return sizes


def _along_terms(anchor: Anchor, compute: ComputeOp) -> bool:
    """Whether the terms of an element lie next to one another where they are read: of a product's operands that the
    group computes, such as transposed ones, as many as a warp takes in what these are computed from."""
    reduce = only_reduce(compute)
    if reduce is None:
        return False
    if isinstance(anchor, MatmulOp) and anchor.reduction_extent >= WARP:
        together = has_contiguous_rows(anchor, anchor.b, across=True, together=WARP)
        if together and has_contiguous_rows(anchor, anchor.a, together=WARP):
            return True
    return walks_contiguously(compute, reduce)


@dataclass(frozen=True)
class _Shares:
    """How a block's threads share its elements: `parts` threads an element, neighbours along the terms or not."""

    threads: int
    outputs: int
    along_terms: bool

    @property
    def parts(self) -> int:
        return self.threads // self.outputs

    def split(self, b: KernelBuilder) -> tuple[Index, Index]:
        """The calling thread's element of the block, and its part of that element's terms."""
        if self.along_terms:
            return b.thread // self.parts, b.thread % self.parts
        return b.thread % self.outputs, b.thread // self.outputs

    @property
    def distance(self) -> int:
        """Threads between neighbouring parts of an element."""
        return 1 if self.along_terms else self.outputs


class _ReduceBody:
    """Writes the kernel of one reduction."""

    def __init__(self, compute: ComputeOp, shares: _Shares, end: ReductionEnd | None):
        self.compute, self.shares, self.end = compute, shares, end
        self.tensors = compute.tensors()
        self.operands = with_end(self.tensors, end)
        self.b = kernel_builder(self.operands, compute.type)

    def build(self, name: str) -> KernelOp:
        b, compute, shares = self.b, self.compute, self.shares
        total = prod(compute.shape)
        element, part = shares.split(b)
        position = b.block * shares.outputs + element
        whole = total % shares.outputs == 0
        # A thread beyond the result repeats the last element, so that all of them reach the barriers.
        index = (position if whole else position.min(total - 1)).delinearize(compute.shape)
        values: dict[SSAValue, SSAValue] = dict(zip(self.operands, b.inputs, strict=True))
        values.update(zip(compute.body.block.args, ssa_values(index), strict=True))
        reduce = next(op for op in compute.body.block.ops if isinstance(op, ReduceOp))
        for op in _between(compute.body.block.first_op, reduce):
            values[op.results[0]] = b.evaluated(op, values)
        total_of_terms = self._fold(reduce, values, part)
        last = compute.body.block.last_op
        assert isinstance(last, YieldOp)
        conditions = [part.equals(0)] + ([] if whole else [position < total])
        with b.when(all_of(conditions)):
            values[reduce.result] = narrowed(b, total_of_terms(), reduce.result.type)
            for op in _between(reduce.next_op, last):
                values[op.results[0]] = b.evaluated(op, values)
            b.store(values[last.value], b.output, index)
        grid = ceil(total / shares.outputs)
        return b.kernel(name, self.operands, compute.type, grid, shares.threads, f"{compute.type} by reduction")

    def _fold(self, reduce: ReduceOp, values: dict[SSAValue, SSAValue], first: Index) -> Callable[[], Scalar]:
        """Writes the fold of an element's terms; calling the result gives it where `first`, the calling thread's part,
        is 0."""
        b, shares = self.b, self.shares
        kind, extent, type = reduce.kind.data, prod(reduce.shape), accumulator(reduce.result.type)
        part = b.alloc("part", [1], type)
        b.store(b.constant(identity(kind, type), type), part, [0])
        with b.loop("k", steps_of(b, self.end, self.operands, extent, shares.parts)) as k:
            position = k * shares.parts + first
            with b.when(position < extent if extent % shares.parts else None):
                digits = position.delinearize(reduce.shape)
                inner = values | dict(zip(reduce.body.block.args, ssa_values(digits), strict=True))
                term = widened(b, emit_block(b, reduce.body.block, inner))
                b.store(b.binary(kind, b.load(part, [0]), term), part, [0])
        value = b.load(part, [0])
        lanes = min(shares.parts, WARP) if shares.along_terms and lanes_fold(kind, type) else 1
        if lanes > 1:
            value = b.fold_lanes(kind, value, lanes)
        if lanes == shares.parts:
            return lambda: value
        if lanes > 1:
            return self._across_warps(kind, value, first)
        return self._by_tree(kind, value, first)

    def _across_warps(self, kind: str, value: Scalar, first: Index) -> Callable[[], Scalar]:
        """One value of each warp in shared memory, folded in order by an element's first thread."""
        b, warps = self.b, self.shares.parts // WARP
        scratch = b.alloc("scratch", [self.shares.outputs * warps], value.type, Space.SHARED)
        with b.when((first % WARP).equals(0)):
            b.store(value, scratch, [b.thread // WARP])
        b.barrier()

        def total() -> Scalar:
            begin = b.thread // WARP
            others = b.load(scratch, [begin])
            return b.fold(
                "w", warps - 1, others,
                lambda w, acc: b.binary(kind, acc, b.load(scratch, [begin + w + 1])),
            )  # fmt: skip

        return total

    def _by_tree(self, kind: str, value: Scalar, first: Index) -> Callable[[], Scalar]:
        """Halves of an element's threads fold with the other halves in shared memory, a barrier between rounds."""
        b, shares = self.b, self.shares
        scratch = b.alloc("scratch", [shares.threads], value.type, Space.SHARED)
        b.store(value, scratch, [b.thread])
        b.barrier()
        width = shares.parts // 2
        while width:
            with b.when(first < width):
                other = b.load(scratch, [b.thread + width * shares.distance])
                b.store(b.binary(kind, b.load(scratch, [b.thread]), other), scratch, [b.thread])
            if width > 1:  # what the last round stores is read by the thread that stored it
                b.barrier()
            width //= 2
        return lambda: b.load(scratch, [b.thread])


def _between(first: Operation | None, end: Operation) -> list[Operation]:
    """The operations from `first` up to `end`, without it."""
    found: list[Operation] = []
    while first is not None and first is not end:
        found.append(first)
        first = first.next_op
    return found
