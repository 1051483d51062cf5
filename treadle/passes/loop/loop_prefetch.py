"""loop-prefetch: loops ask early for the cache lines that later iterations read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import ceil, prod

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ModuleOp, NoneAttr
from xdsl.ir import Block, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.loop import FuncOp, KernelOp, PrefetchOp, type_of
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Expr, const
from treadle.index.linear import stride_along
from treadle.index.reader import IndexReader
from treadle.passes.loop.accesses import Access, accesses
from treadle.passes.loop.counted_loops import loops_in, trip_count
from treadle.passes.loop.kernels import constant_index, kernels_of
from treadle.schedules.op_cost import op_cost
from treadle.schedules.search.cache_traffic import LINE
from treadle.target import KIB

_CYCLES = 128
_ARITHMETIC = 4
_NEAR_BYTES, _NEAR_STREAM_BYTES = 32 * KIB, 256 * KIB
"""`python -m benchmarks.prefetch` on a Xeon with 48 KiB and 1.25 MiB of caches a core (`benchmarks/results/`): the 15
products and convolutions of ResNet-50 that prefetch take 0.94 of the time that they take without, from 0.85 to 1.01;
BERT's one 0.97. The limits come from a few such pairs of kernels, timed before there was the benchmark and not kept: up
to 32 KiB of rows apart, and up to 256 KiB in one stream, that a loop reads again took 1.0 to 1.1 times as long with
prefetches, and so did the kernel's own buffers; 64, 96 and 192 cycles differed by less than such runs do."""
_MOST_PLACES = 64
"""Places of one access in unrolled loops."""


@dataclass(frozen=True)
class LoopPrefetchPass(ModulePass):
    """Writes `loop.prefetch` for the lines that a loop's later iterations read, where one iteration reads others than
    the one before.

    ```mlir
    scf.for %k = %c0 to %c512 step %c1 {
      %at = arith.muli %k, %c16 : index
      %v = vector.load %B[%at] : memref<8192xf32>, vector<16xf32>
      ...
    }
    ```
    becomes, if an iteration has 16 operations on vectors, which take 8 cycles,
    ```mlir
    scf.for %k = %c0 to %c512 step %c1 {
      %0 = arith.muli %k, %c16 : index
      %1 = arith.addi %0, %c256 : index
      loop.prefetch %B at %1 : memref<8192xf32>
      ...
    }
    ```
    In loops without other loops but unrolled ones, with at least `arithmetic` operations on vectors for each line: a
    processor fetches by itself what loops with less of it stream through. The lines are those of `cycles` later,
    two operations a cycle, also where the loop ends before that and those around it go on with the next lines. Not
    prefetched are the kernel's own buffers, which it has just written; lines that several iterations read from; what
    ends before twice that time; and what a loop around reads again and again: up to 32 KiB, or 256 KiB where iterations
    read on without gaps.
    """

    name = "loop-prefetch"
    cycles: int = _CYCLES
    arithmetic: int = _ARITHMETIC

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in kernels_of(op):
            self._prefetch(kernel)

    def _prefetch(self, kernel: KernelOp | FuncOp) -> None:
        reader = IndexReader()
        for loop in list(loops_in(kernel.body.block)):
            body = None if _is_unrolled(loop) else _Body.of(loop)
            lines = [] if body is None else _lines(body, reader)
            if body is None or body.arithmetic < max(1, self.arithmetic * len(lines)):
                continue
            ahead = ceil(self.cycles / (body.arithmetic / 2))
            _write(loop, [line for line in lines if _is_far(line, lines, loop, ahead)], ahead)


@dataclass(frozen=True)
class _Line:
    """A line of a buffer by its offset in elements in an iteration, and how far the next iteration's is away."""

    buffer: SSAValue
    offset: Expr
    stride: int


@dataclass
class _Body:
    """What an iteration of a loop does that has only unrolled loops inside: operations on floats, and the reads that
    it always executes, with the loops around each."""

    loop: scf.ForOp
    arithmetic: float = 0.0
    reads: list[tuple[Access, tuple[scf.ForOp, ...]]] = field(
        default_factory=list[tuple[Access, tuple[scf.ForOp, ...]]]
    )

    @staticmethod
    def of(loop: scf.ForOp) -> _Body | None:
        """None for a loop with another one inside that stays a loop."""
        if not all(_is_unrolled(inner) for inner in loops_in(loop.body.block)):
            return None
        body = _Body(loop)
        body._add(loop.body.block, ())
        return body

    def _add(self, block: Block, around: tuple[scf.ForOp, ...]) -> None:
        times = prod(trip_count(loop) or 0 for loop in around)
        for op in block.ops:
            if isinstance(op, scf.ForOp):
                self._add(op.body.block, (*around, op))
                continue
            self.arithmetic += op_cost(op) * times
            self.reads += [(access, around) for access in accesses(op) if not access.is_store]


def _is_unrolled(loop: scf.ForOp) -> bool:
    return "loop.unroll" in loop.attributes and trip_count(loop) is not None


def _lines(body: _Body, reader: IndexReader) -> list[_Line]:
    """The lines that an iteration reads, and no other iteration."""
    found: dict[tuple[SSAValue, Expr, int], set[int]] = {}
    for access, around in body.reads:
        for buffer, offset, stride in _places(access, around, body.loop, reader):
            width = _element_bytes(buffer)
            last = (access.elements - 1) * access.stride
            starts = range(0, last + 1, max(1, LINE // width))
            found.setdefault((buffer, offset - offset.constant, stride), set()).update(
                offset.constant + start for start in starts
            )
    return [
        _Line(buffer, base + at, stride)
        for (buffer, base, stride), offsets in found.items()
        for at in _apart(sorted(offsets), buffer)
    ]


def _apart(offsets: Sequence[int], buffer: SSAValue) -> Iterator[int]:
    """Those that are at least a line apart."""
    width = _element_bytes(buffer)
    last: int | None = None
    for offset in offsets:
        if last is None or (offset - last) * width >= LINE:
            yield offset
            last = offset


def _places(
    access: Access, around: Sequence[scf.ForOp], loop: scf.ForOp, reader: IndexReader
) -> Iterator[tuple[SSAValue, Expr, int]]:
    """The offsets in elements of an access in all iterations of the unrolled loops around it, and how far an iteration
    of the loop outside of them moves it; nothing where that is less than a line, not the same for all iterations, or
    where the address comes from what the loop computes."""
    step = constant_index(loop.step)
    if step is None or access.space is not None or not isinstance(access.type.layout, NoneAttr):
        return
    offset = const(0)
    for index, stride in zip(access.indices, access.strides, strict=True):
        offset = offset + reader.read(index) * stride
    along = stride_along(offset, loop.body.block.args[0])
    if along is None or abs(along * step) * _element_bytes(access.buffer) < LINE:
        return
    inner = [each for each in around if any(v.key == each.body.block.args[0] for v in offset.vars())]
    if prod(trip_count(each) or 0 for each in inner) > _MOST_PLACES:
        return
    for values in product(*map(_values, inner)):
        known = {each.body.block.args[0]: const(value) for each, value in zip(inner, values, strict=True)}
        place = offset.substitute(known)
        if not any(_is_inside(v.key, loop) for v in place.vars()):
            yield access.buffer, place, along * step


def _is_far(line: _Line, lines: Sequence[_Line], loop: scf.ForOp, ahead: int) -> bool:
    """Whether the line of `ahead` iterations later, one of those that an iteration reads, is worth a prefetch."""
    together = sum(each.buffer is line.buffer for each in lines) * LINE
    is_stream = abs(line.stride) * _element_bytes(line.buffer) <= together
    near = _NEAR_STREAM_BYTES if is_stream else _NEAR_BYTES
    trips, around = trip_count(loop), _loop_around(loop)
    while trips is not None and around is not None:
        along, step = stride_along(line.offset, around.body.block.args[0]), constant_index(around.step)
        if along == 0 and trips * together <= near:
            return False
        outer = trip_count(around)
        if along is None or step is None or outer is None or along * step != line.stride * trips:
            break
        trips, around = trips * outer, _loop_around(around)
    return trips is None or trips >= 2 * ahead


def _loop_around(loop: scf.ForOp) -> scf.ForOp | None:
    """The next loop outside of a loop and of the branches that it is in."""
    around = loop.parent_op()
    while isinstance(around, scf.IfOp):
        around = around.parent_op()
    return around if isinstance(around, scf.ForOp) else None


def _element_bytes(buffer: SSAValue) -> int:
    return byte_width(type_of(buffer).get_element_type())


def _values(loop: scf.ForOp) -> Sequence[int]:
    lower, step = constant_index(loop.lb), constant_index(loop.step)
    assert lower is not None and step is not None, "an unrolled loop has constant bounds"
    return [lower + step * n for n in range(trip_count(loop) or 0)]


def _is_inside(key: object, loop: scf.ForOp) -> bool:
    """Whether a variable is known only inside of a loop, or is no value; the loop's own is known at its beginning."""
    if not isinstance(key, SSAValue):
        return True
    return key is not loop.body.block.args[0] and loop.is_ancestor(key.owner)


def _write(loop: scf.ForOp, lines: Sequence[_Line], ahead: int) -> None:
    """Prefetches at the beginning of the loop's body what is read `ahead` iterations later."""
    outer = IndexEmitter(InsertPoint.before(loop), location=loop.location)
    emitter = outer.inside(InsertPoint.at_start(loop.body.block))
    first = loop.body.block.first_op
    assert first is not None
    for line in lines:
        base, distance = line.offset - line.offset.constant, line.offset.constant + line.stride * ahead
        offset = arith.AddiOp(emitter.emit(base), emitter.emit(distance))
        prefetch = PrefetchOp(line.buffer, offset.result)
        offset.location = prefetch.location = loop.location
        Rewriter.insert_op([offset, prefetch], InsertPoint.before(first))


__all__ = ["LoopPrefetchPass"]
