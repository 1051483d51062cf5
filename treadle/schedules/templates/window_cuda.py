"""Pooling, depthwise and grouped convolution on a GPU: a thread keeps what neighbouring windows share in registers."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from math import ceil, prod
from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, WholeOp, YieldOp
from treadle.dialects.graph.definition import Scalar
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.graph.reduction import identity
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.schedules.access_analysis import vector_width
from treadle.schedules.index_value import Index, ssa_values
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.limits import check_limit
from treadle.schedules.scalar_body import emit_operation
from treadle.schedules.template import Anchor, Choices, Knob, Template, number
from treadle.schedules.templates.reduce_cpu import only_reduce
from treadle.schedules.window_reads import Windows, windows_of
from treadle.target import Target

_FEW = 2048
"""Elements of a result up to which threads are better used on the terms."""
_MANY_TERMS = 512
"""Terms of a window from which on the terms are better shared out."""
_WIDEST = 16
"""Elements of a window up to which several windows fit into registers."""

_SECTOR_BYTES = 32
"""What global memory moves at once."""
_LONGEST_BYTES = 16
"""What a thread moves at once, at most."""
_MOST_REGISTERS = 128
"""Inputs, shared terms and accumulators that a thread may keep in registers."""

Values = dict[SSAValue, SSAValue]


class WindowCuda(Template):
    """Consecutive threads compute elements that are consecutive along the result's last dimension, so that reads and
    writes are coalesced; a thread computes `windows` neighbours along another one, whose windows overlap.

    Rows that begin at sectors are not cut among blocks, if a block has room for one: the windows of a row share what
    lies between them, and neither of two blocks would need all of the sector at the cut.

    The elements under its windows are read once, into registers, and so are terms that do not depend on the window,
    such as weights: a 3x3 depthwise convolution reads 6.75 instead of 18 values an element with four windows a thread.
    With channels last, a thread computes `vector` neighbouring channels, which one access reads.
    """

    name: ClassVar[str] = "window_cuda"
    kind: ClassVar[str] = "cuda"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("threads", (64, 128, 256), "threads of a block, at most: whole rows that begin at sectors are taken"),
        Knob("windows", (1, 2, 4, 8), "neighbouring windows of a thread"),
        Knob("vector", (1, 2, 4, 8), "consecutive elements along the last dimension that a thread takes"),
    )

    def fits(self, anchor: Anchor) -> bool:
        if isinstance(anchor, WholeOp) or prod(anchor.shape) <= _FEW:
            return False
        reduce = only_reduce(anchor)
        if reduce is None or prod(reduce.shape) > _MANY_TERMS:
            return False
        windows = windows_of(anchor, reduce)
        return windows is not None and windows.width <= _WIDEST

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        windows = _windows(anchor)
        # Four warps everywhere come before more elements a thread. Windows save reads, vectors only instructions.
        most = prod(anchor.shape) // (4 * target.warp_size * target.multiprocessors)
        count = next(n for n in (4, 2, 1) if n <= max(1, min(most, windows.extent)))
        widest = min(_widest_vector(anchor), most // count)
        vector = next(
            n for n in (8, 4, 2, 1) if n == 1 or (n <= widest and _registers(windows, count, n) <= _MOST_REGISTERS)
        )
        # Of two sizes the one whose warps have more busy lanes.
        threads = max((128, 256), key=lambda n: _busy(_block_threads(anchor, n, vector), target.warp_size))
        return {"threads": threads, "windows": count, "vector": vector}

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        vector, widest = number(choices, "vector"), _widest_vector(anchor)
        message = f"{self.name}: {vector} consecutive elements of reads are not one access, {vector - widest} too many"
        accepted = f"vector = {widest} or less for {anchor.type}"
        check_limit("consecutive elements of an access", vector, widest, None, message, accepted)

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, ComputeOp)
        vector = number(choices, "vector")
        body = _WindowBody(anchor, _windows(anchor), number(choices, "windows"), vector)
        return body.build(name, _block_threads(anchor, number(choices, "threads"), vector))


def _windows(anchor: Anchor) -> Windows:
    assert isinstance(anchor, ComputeOp)
    reduce = only_reduce(anchor)
    windows = None if reduce is None else windows_of(anchor, reduce)
    assert windows is not None, "fits rejects definitions without windows"
    return windows


def _block_threads(anchor: Anchor, most: int, vector: int) -> int:
    """Threads of a block, each with a vector of elements: as many whole rows of the result as there is room for, if
    rows begin at sectors."""
    elements = anchor.shape[-1]
    row = elements // vector
    begins_at_sectors = elements * byte_width(anchor.type.get_element_type()) % _SECTOR_BYTES == 0
    return most // row * row if begins_at_sectors and row <= most else most


def _busy(threads: int, warp: int) -> float:
    """The part of a block's lanes that have a thread."""
    return threads / (ceil(threads / warp) * warp)


def _widest_vector(anchor: Anchor) -> int:
    """Consecutive elements along the last dimension that one access of each read takes."""
    assert isinstance(anchor, ComputeOp)
    most = max(1, _LONGEST_BYTES // byte_width(anchor.type.get_element_type()))
    return vector_width(anchor, anchor.body.block.args[-1], most)


def _registers(windows: Windows, count: int, vector: int) -> int:
    """Values that a thread of `count` windows of `vector` elements each keeps in registers."""
    span = (count - 1) * windows.step + windows.width
    return vector * (span * len(windows.sliding) + windows.width * len(windows.shared) + count)


class _WindowBody:
    """Writes the kernel of one definition."""

    def __init__(self, compute: ComputeOp, windows: Windows, count: int, vector: int):
        self.compute, self.windows, self.count, self.vector = compute, windows, count, vector
        self.reduce = windows.reduce
        self.tensors = compute.tensors()
        self.b = KernelBuilder([t.type for t in self.tensors if isinstance(t.type, TensorType)], compute.type)
        self.span = (count - 1) * windows.step + windows.width

    def build(self, name: str, threads: int) -> KernelOp:
        b, dim = self.b, self.windows.dim
        shape = list(self.compute.shape)
        shape[dim] = ceil(shape[dim] / self.count)
        shape[-1] //= self.vector
        total = prod(shape)
        position = b.block * threads + b.thread
        with b.when(position < total if total % threads else None):
            index = position.delinearize(shape)
            index[dim] = index[dim] * self.count
            index[-1] = index[-1] * self.vector
            self._column(index)
        operators = self.compute.operators.data if self.compute.operators is not None else "windows"
        comment = f"{operators} to {self.compute.type}"
        return b.kernel(name, self.tensors, self.compute.type, ceil(total / threads), threads, comment)

    def _column(self, index: Sequence[Index]) -> None:
        """The calling thread's windows, of which the first gives the element at `index`."""
        b, kind, element = self.b, self.reduce.kind.data, self.reduce.result.type
        values: Values = dict(zip(self.tensors, b.inputs, strict=True))
        values.update(zip(self.compute.body.block.args, ssa_values(index), strict=True))
        acc = b.alloc("acc", [self.count, self.vector], element)
        with b.loop("r", self.count, unroll=True) as r, self._elements(values) as (e, _):
            b.store(b.constant(identity(kind, element), element), acc, [r, e])
        self._terms(0, values, acc)
        with b.loop("r", self.count, unroll=True) as r:
            along = index[self.windows.dim] + r
            inside = along < self.windows.extent if self.windows.extent % self.count else None
            with b.when(inside), self._elements(values) as (e, own):
                end = self.compute.body.block.last_op
                assert isinstance(end, YieldOp)
                own = self._of_window(own, along) | {self.reduce.result: b.load(acc, [r, e])}
                at = [own[i] for i in self.compute.body.block.args]
                b.store(self._emit(end.value, own), b.output, at)

    @contextmanager
    def _elements(self, values: Values) -> Generator[tuple[Index, Values]]:
        """A loop over the calling thread's elements along the last dimension: its variable, and the values for it."""
        last = self.compute.body.block.args[-1]
        with self.b.loop("e", self.vector, unroll=True, vector=True) as e:
            yield e, values | {last: (self.b.index(values[last]) + e).value}

    def _of_window(self, values: Values, along: Index) -> Values:
        return values | {self.compute.body.block.args[self.windows.dim]: along.value}

    def _terms(self, depth: int, values: Values, acc: SSAValue) -> None:
        """Loops over the reduction's dimensions but the one along which windows slide, then all windows."""
        args = self.reduce.body.block.args
        if depth == len(args):
            self._slide(values, acc)
            return
        if depth == self.windows.term:
            self._terms(depth + 1, values, acc)
            return
        with self.b.loop(args[depth].name_hint or "k", self.reduce.shape[depth]) as k:
            self._terms(depth + 1, values | {args[depth]: k.value}, acc)

    def _slide(self, values: Values, acc: SSAValue) -> None:
        """Reads the elements under the windows and the shared terms once, and folds them into every window."""
        b, windows = self.b, self.windows
        k = self.reduce.body.block.args[windows.term]
        windows_read = {at: b.alloc("places", [self.span, self.vector], at.result.type) for at in windows.sliding}
        for at, buffer in windows_read.items():
            with b.loop("p", self.span, unroll=True) as p, self._elements(values) as (e, own):
                b.store(self._sliding_read(at, own, p), buffer, [p, e])
        shared = {at: b.alloc("shared", [windows.width, self.vector], at.result.type) for at in windows.shared}
        for at, buffer in shared.items():
            with b.loop("k", windows.width, unroll=True) as each, self._elements(values) as (e, own):
                b.store(self._emit(at.result, own | {k: each.value}), buffer, [each, e])
        with (
            b.loop("r", self.count, unroll=True) as r,
            b.loop("k", windows.width, unroll=True) as each,
            self._elements(values) as (e, own),
        ):
            along = b.index(values[self.compute.body.block.args[windows.dim]]) + r
            own = self._of_window(own, along) | {k: each.value}
            position = r * windows.step + each
            own |= {at.result: b.load(buffer, [position, e]) for at, buffer in windows_read.items()}
            own |= {at.result: b.load(buffer, [each, e]) for at, buffer in shared.items()}
            end = self.reduce.body.block.last_op
            assert isinstance(end, YieldOp)
            total = b.binary(self.reduce.kind.data, b.load(acc, [r, e]), self._emit(end.value, own))
            b.store(total, acc, [r, e])

    def _sliding_read(self, at: AtOp, values: Values, position: Index) -> Scalar:
        """What a sliding read gives at a position, counted from the start of the thread's first window."""
        b, windows = self.b, self.windows
        own = values | {self.reduce.body.block.args[windows.term]: position.value}
        indices = [self._emit(i, own) for i in at.indices]
        conditions = [] if at.predicate is None else [self._emit(at.predicate, own)]
        if windows.extent % self.count:
            # Positions that only windows beyond the result reach may lie outside the input.
            first = b.index(values[self.compute.body.block.args[windows.dim]]) * windows.step
            last = (windows.extent - 1) * windows.step + windows.width
            conditions.append((first + position < last).value)
        if not conditions:
            return b.load(own[at.source], indices)
        other = b.constant(0, at.result.type) if at.otherwise is None else self._emit(at.otherwise, own)
        return b.load(own[at.source], indices, b.all(conditions), other)

    def _emit(self, value: SSAValue, values: Values) -> Scalar:
        """Writes what a value of the definition is computed from, as far as `values` does not give it."""
        if value not in values:
            op = value.owner
            assert isinstance(op, Operation)
            for operand in op.operands:
                self._emit(operand, values)
            values[value] = emit_operation(self.b, op, values)
        return values[value]
