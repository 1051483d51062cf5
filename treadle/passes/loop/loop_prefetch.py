"""loop-prefetch: loops ask early for the cache lines that later iterations read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.loop import PrefetchOp
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Expr, const, var
from treadle.index.reader import IndexReader
from treadle.passes.loop.cache_lines import Body, EnclosingLoop, Lines, element_bytes, levels_around, lines_by_level
from treadle.passes.loop.kernels import kernels_of, loops_in, trip_count
from treadle.schedules.work.cpu_work import LINE
from treadle.target import KIB

_CYCLES = 128
_ARITHMETIC = 4
_NEAR_BYTES, _NEAR_STREAM_BYTES = 32 * KIB, 256 * KIB
"""`python -m benchmarks.prefetch` on a Xeon with 48 KiB and 1.25 MiB of caches a core (`benchmarks/results/`): the 15
products and convolutions of ResNet-50 that prefetch take 0.94 of the time that they take without, from 0.85 to 1.01;
BERT's one 0.97. The limits come from a few such pairs of kernels, timed before there was the benchmark and not kept: up
to 32 KiB of rows apart, and up to 256 KiB in one stream, that a loop reads again took 1.0 to 1.1 times as long with
prefetches, and so did the kernel's own buffers; 64, 96 and 192 cycles differed by less than such runs do."""
_SOON_BYTES, _PANEL_BYTES = 128 * KIB, 512 * KIB
"""What the second cache is to keep until it is read: guesses for 2 MiB, on the machine of docs/adr/0038. No others were
tried."""
_ONE = 1 << 16
"""In fixed-point numbers of lines."""


@dataclass(frozen=True)
class LoopPrefetchPass(ModulePass):
    """Writes `loop.prefetch` for lines that loops read later.

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
    There are three ways, for the lines of a loop that has only unrolled ones inside. Each wants `arithmetic` operations
    on vectors for a line: a processor fetches by itself what loops with less of it stream through.

    - Lines that each iteration moves: those of `cycles` later, two operations a cycle, also where the loop ends before
      that and those around it go on with the next lines. Not what ends before twice that time, nor what a loop around
      reads again and again: up to 32 KiB, or 256 KiB where iterations read on without gaps.
    - Lines that a loop around moves and the innermost ones read through, as rows of images in blocks of channels: in
      that loop, those of the next iteration of the outermost loop that reads up to 128 KiB of them.
    - Lines that a loop reads again, and one around it, or the next block, moves, as panels of weights under tiles of
      rows: each reading fetches a share of the next panel, up to 512 KiB. Of a panel without gaps these are consecutive
      lines, evenly over all readings; else a part of each row.

    The kernel's own buffers, which it has just written, are left out.
    """

    name = "loop-prefetch"
    cycles: int = _CYCLES
    arithmetic: int = _ARITHMETIC

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in kernels_of(op):
            reader, known = IndexReader(), dict[tuple[scf.ForOp, int], Expr]()
            for loop in list(loops_in(kernel.body.block)):
                body = Body.of(loop)
                if body is not None:
                    self._prefetch(body, reader, known)

    def _prefetch(self, body: Body, reader: IndexReader, known: dict[tuple[scf.ForOp, int], Expr]) -> None:
        levels = levels_around(body.loop, reader)
        if not levels or levels[0].loop is not body.loop:
            return
        groups, writer = lines_by_level(body, levels, reader), _Writer(levels, reader, known)
        lines = [each for each in groups if each.level == 0]
        arithmetic = body.arithmetic
        if arithmetic >= max(1, self.arithmetic * sum(len(each.starts) for each in lines)):
            ahead = ceil(self.cycles / (arithmetic / 2))
            for each in lines:
                if _is_far(each, levels, ahead):
                    writer.stream(each, ahead)
        for each in groups:
            times = prod(level.trips for level in levels[: each.level])
            if each.level > 0 and arithmetic * times >= self.arithmetic * len(each.starts):
                soon = _next_reading(each, levels)
                if soon is not None:
                    writer.next_reading(each, soon)
                    continue
            share, most = _share(each, levels), int(arithmetic * times / self.arithmetic)
            if share is not None and most >= share.lines:
                ahead = ceil(self.cycles / (arithmetic * times / 2))
                writer.share(each, share, most, ahead)


def _is_far(lines: Lines, levels: Sequence[EnclosingLoop], ahead: int) -> bool:
    """Whether the lines of `ahead` iterations later are worth prefetches."""
    stride = levels[0].stride(lines.base)
    if stride is None:
        return False
    is_stream = abs(stride) * element_bytes(lines.buffer) <= lines.bytes
    near, trips = _NEAR_STREAM_BYTES if is_stream else _NEAR_BYTES, levels[0].trips
    for level in levels[1:]:
        along = level.stride(lines.base)
        if along == 0 and trips * lines.bytes <= near:
            return False
        if along is None or along != stride * trips:
            break
        trips *= level.trips
    return trips >= 2 * ahead


def _next_reading(lines: Lines, levels: Sequence[EnclosingLoop]) -> EnclosingLoop | None:
    """The outermost level of which an iteration reads lines that few enough others are read between, and the next one
    others; None without one."""
    between, found = lines.bytes * levels[lines.level].trips, None
    for level in levels[lines.level + 1 :]:
        if not level.moves(lines.base) or between > _SOON_BYTES:
            break
        found, between = level, between * level.trips
    return found


@dataclass(frozen=True)
class _Share:
    """How many lines every iteration of `again`, which reads the same lines as the one before, has fetched at each
    place, of those so many elements away that are read next."""

    again: int
    distance: Expr
    lines: int
    dense: bool
    """Whether what is read again has no gaps in memory."""


def _share(lines: Lines, levels: Sequence[EnclosingLoop]) -> _Share | None:
    """None where no level reads lines again, none around it moves them, all by one distance, or they are too many for
    the second cache."""
    inner = [n for n, level in enumerate(levels) if n > lines.level and not level.moves(lines.base)]
    if not inner:
        return None
    again = inner[0]
    moving = next((level for level in levels[again:] if level.moves(lines.base)), None)
    panel = lines.bytes * prod(level.trips for level in levels[lines.level : again])
    if moving is None or panel > _PANEL_BYTES or lines.spacing is None:
        return None
    distance = moving.next(lines.base) - lines.base
    if any(level.moves(distance) for level in levels[:again]):
        return None
    return _Share(again, distance, ceil(len(lines.starts) / levels[again].trips), _is_dense(lines, levels[:again]))


def _is_dense(lines: Lines, levels: Sequence[EnclosingLoop]) -> bool:
    """Whether the lines of all iterations of those levels follow one another without gaps."""
    width = element_bytes(lines.buffer)
    if len(lines.starts) > 1 and (lines.spacing or 0) * width != LINE:
        return False
    stride = lines.bytes // width
    for level in levels[lines.level :]:
        if level.stride(lines.base) != stride:
            return False
        stride *= level.trips
    return True


class _Writer:
    """Writes prefetches at the beginning of loops around an access, and what their offsets share once."""

    def __init__(self, levels: Sequence[EnclosingLoop], reader: IndexReader, known: dict[tuple[scf.ForOp, int], Expr]):
        self._reader, self._known = reader, known
        loops = [level.loop for level in levels if level.loop is not None]
        self._levels = levels
        self._location = loops[0].location
        self._first: list[Operation] = [loop.body.block.first_op or loop for loop in loops]
        self._emitters: list[IndexEmitter] = []
        emitter = IndexEmitter(InsertPoint.before(loops[-1]), location=self._location)
        for first in reversed(self._first):
            emitter = emitter.inside(InsertPoint.before(first))
            self._emitters.insert(0, emitter)

    def stream(self, lines: Lines, ahead: int) -> None:
        """What the loop reads so many iterations later."""
        stride = self._levels[0].stride(lines.base)
        assert stride is not None
        for start in lines.starts:
            self._prefetch(lines, lines.base, start + stride * ahead)

    def next_reading(self, lines: Lines, moving: EnclosingLoop) -> None:
        """What the loop reads at this iteration, but in the next one of a loop around."""
        for start in lines.starts:
            self._prefetch(lines, moving.next(lines.base), start)

    def share(self, lines: Lines, share: _Share, most: int, ahead: int) -> None:
        """A share of what the level that moves the lines reads next, of so many lines at most; of a panel that a call
        reads once only, those of so many iterations later. With gaps it is part of what the loop reads in the same
        iteration there; where all shares are fetched, lines that are about to be read."""
        if share.dense:
            self._consecutive(lines, share, most, ahead)
            return
        again, spacing = self._levels[share.again], lines.spacing or 0
        first = again.number * share.lines
        distance = share.distance + first * spacing
        limited = None
        if share.lines * (again.trips - 1) >= len(lines.starts):
            limited, distance = self._if_less(share.again, first, len(lines.starts), distance), const(0)
        for n in range(share.lines):
            self._prefetch(lines, lines.base + distance, lines.starts[0] + n * spacing, limited)

    def _consecutive(self, lines: Lines, share: _Share, most: int, ahead: int) -> None:
        """As many lines of a panel without gaps in each iteration of each reading."""
        again, inner = self._levels[share.again], self._levels[lines.level : share.again]
        first, iteration, before = lines.base, const(0), 1
        for level in inner:
            first = first.substitute({level.key: const(level.lower)})
            iteration, before = iteration + level.number * before, before * level.trips
        number, emitter, distance = again.number * before + iteration, self._emitters[lines.level], share.distance
        line, each = LINE // element_bytes(lines.buffer), len(lines.starts)
        if again.loop is None or trip_count(again.loop) is not None:
            position, count = number * each // again.trips, share.lines
        else:
            of_call = self._lines_of_call(again, again.loop, each)
            distance = self._if_once(again.loop, of_call, each, ahead * each * line, distance)
            position, count = number * of_call // _ONE, min(most, each)
            emitter = self._after(again.loop, lines.level, share.again)
        for n in range(count):
            self._prefetch(lines, first + distance + position * line, lines.starts[0] + n * line, emitter=emitter)

    def _if_once(self, loop: scf.ForOp, of_call: Expr, lines: int, soon: int, distance: Expr) -> Expr:
        """Before a loop: how far away what it fetches is, which is `soon` where it runs once and reads on."""
        point = InsertPoint.before(loop)
        emitter = IndexEmitter(point, location=self._location)
        once = arith.CmpiOp(emitter.emit(of_call), emitter.emit(lines * _ONE), "sge")
        select = arith.SelectOp(once.result, emitter.emit(soon), emitter.emit(distance))
        for op in (once, select):
            op.location = self._location
            Rewriter.insert_op(op, point)
        return var(select.result, None, None)

    def _lines_of_call(self, again: EnclosingLoop, loop: scf.ForOp, lines: int) -> Expr:
        """How many of so many lines an iteration of a reading asks for, where only the call knows how many readings
        there are: a number with 16 bits behind the point, rounded up, written once for all that the loop reads."""
        known = self._known.get((loop, lines))
        if known is not None:
            return known
        end = loop.ub.owner
        point = InsertPoint.after(end) if isinstance(end, Operation) else InsertPoint.at_start(end)
        emitter = IndexEmitter(point, location=self._location)
        # One reading at least, since nothing is divided by 0.
        least = arith.MaxSIOp(loop.ub, emitter.emit(again.lower + 1))
        Rewriter.insert_op(least, point)
        _, most = self._reader.read(loop.ub).range()
        length = var(least.result, again.lower + 1, most) - again.lower
        readings = emitter.emit((length + (again.step - 1)) // again.step)
        total = arith.AddiOp(readings, emitter.emit(lines * _ONE - 1))
        share = arith.DivUIOp(total.result, readings)
        Rewriter.insert_op([total, share], point)
        for op in (least, total, share):
            op.location = self._location
        found = self._known[loop, lines] = var(share.result, 1, lines * _ONE)
        return found

    def _after(self, loop: scf.ForOp, level: int, outermost: int) -> IndexEmitter:
        """An emitter at the beginning of a level, of which nothing goes further out than just before a loop."""
        emitter = IndexEmitter(InsertPoint.before(loop), location=self._location)
        for first in reversed(self._first[level : outermost + 1]):
            emitter = emitter.inside(InsertPoint.before(first))
        return emitter

    def _if_less(self, at: int, value: Expr, limit: int, then: Expr) -> SSAValue:
        """At the beginning of a level's loop: one expression if another is less than a limit, else 0."""
        emitter = self._emitters[at]
        less = arith.CmpiOp(emitter.emit(value), emitter.emit(limit), "slt")
        select = arith.SelectOp(less.result, emitter.emit(then), emitter.emit(0))
        self._insert(at, less, select)
        return select.result

    def _prefetch(
        self,
        lines: Lines,
        base: Expr,
        start: int,
        distance: SSAValue | None = None,
        emitter: IndexEmitter | None = None,
    ) -> None:
        """Of the line so many elements, and a distance, behind a base."""
        emitter = emitter or self._emitters[lines.level]
        offset = emitter.emit(base)
        for more in (emitter.emit(start) if start else None, distance):
            if more is not None:
                total = arith.AddiOp(offset, more)
                self._insert(lines.level, total)
                offset = total.result
        self._insert(lines.level, PrefetchOp(lines.buffer, offset))

    def _insert(self, at: int, *operations: Operation) -> None:
        for operation in operations:
            operation.location = self._location
            Rewriter.insert_op(operation, InsertPoint.before(self._first[at]))


__all__ = ["LoopPrefetchPass"]
