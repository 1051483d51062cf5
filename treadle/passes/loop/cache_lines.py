"""The cache lines that a loop's iterations read, and which of the loops around it moves them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

from xdsl.dialects import scf
from xdsl.dialects.builtin import NoneAttr
from xdsl.ir import Block, SSAValue

from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.loop import FuncOp, KernelOp, type_of
from treadle.dialects.loop.accesses import Access, accesses
from treadle.index.algebra import depends_on, stride_along
from treadle.index.expr import Expr, const
from treadle.index.reader import IndexReader
from treadle.passes.loop.kernels import constant_index, loops_in, most_trips, trip_count
from treadle.schedules.work.cpu_work import LINE
from treadle.schedules.work.gpu_work import op_cost

_MOST_PLACES = 64
"""Places of one access in unrolled loops."""


@dataclass(frozen=True)
class EnclosingLoop:
    """A loop around an access that runs more than once, or the grid; `loop` is None for the grid.

    value: the number of the iteration as an index
    lower, step, trips: its first value, the distance, and how many there are, at most
    """

    key: SSAValue
    value: Expr
    lower: int
    step: int
    trips: int
    loop: scf.ForOp | None

    def stride(self, offset: Expr) -> int | None:
        """How many elements an iteration moves an offset; None where that is not the same for all iterations."""
        along = stride_along(offset, self.key)
        return None if along is None else along * self.step

    def moves(self, offset: Expr) -> bool:
        """Whether an offset depends on the iteration."""
        return depends_on(offset, self.key)

    def next(self, offset: Expr) -> Expr:
        """The offset in the next iteration."""
        return offset.substitute({self.key: self.value + self.step})

    @property
    def number(self) -> Expr:
        """How many iterations came before."""
        return (self.value - self.lower) // self.step


@dataclass(frozen=True)
class Lines:
    """Lines of a buffer that an iteration of a level reads and the next one does not.

    base: an offset in elements, with the loops inside of the level at their first iterations
    starts: where the lines begin, in elements from there
    level: the position of the level among those of the access
    """

    buffer: SSAValue
    base: Expr
    starts: tuple[int, ...]
    level: int

    @property
    def bytes(self) -> int:
        return len(self.starts) * LINE

    @property
    def spacing(self) -> int | None:
        """Elements from a line to the next; None where that differs."""
        gaps = {b - a for a, b in zip(self.starts, self.starts[1:], strict=False)}
        return (gaps or {0}).pop() if len(gaps) <= 1 else None


@dataclass
class Body:
    """What an iteration of a loop does that has only unrolled loops inside: operations on floats, and the reads that
    it always executes, with the loops around each."""

    loop: scf.ForOp
    arithmetic: float = 0.0
    reads: list[tuple[Access, tuple[scf.ForOp, ...]]] = field(
        default_factory=list[tuple[Access, tuple[scf.ForOp, ...]]]
    )

    @staticmethod
    def of(loop: scf.ForOp) -> Body | None:
        """None for an unrolled loop, and for one with another inside that stays a loop."""
        if is_unrolled(loop) or not all(is_unrolled(inner) for inner in loops_in(loop.body.block)):
            return None
        body = Body(loop)
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

    def places(self, reader: IndexReader) -> Iterator[tuple[SSAValue, Expr, Sequence[int]]]:
        """Buffers in memory, the offsets in elements of the accesses to them in all iterations of the unrolled loops
        around each, and where the lines of an access begin, in elements from there."""
        for access, around in self.reads:
            last = (access.elements - 1) * access.stride
            for offset in _offsets(access, around, reader):
                yield access.buffer, offset, range(0, last + 1, max(1, LINE // element_bytes(access.buffer)))


def _offsets(access: Access, around: Sequence[scf.ForOp], reader: IndexReader) -> Iterator[Expr]:
    """Nothing for a kernel's own buffers, nor where there are too many."""
    if access.space is not None or not isinstance(access.type.layout, NoneAttr):
        return
    offset = const(0)
    for index, stride in zip(access.indices, access.strides, strict=True):
        offset = offset + reader.read(index) * stride
    inner = [each for each in around if any(v.key == each.body.block.args[0] for v in offset.vars())]
    if prod(trip_count(each) or 0 for each in inner) > _MOST_PLACES:
        return
    for values in product(*map(_values, inner)):
        yield offset.substitute(
            {each.body.block.args[0]: const(value) for each, value in zip(inner, values, strict=True)}
        )


def levels_around(loop: scf.ForOp, reader: IndexReader) -> list[EnclosingLoop]:
    """The loop and those around it, outwards, then the grid, without those of one iteration; up to the first whose
    bounds are not known."""
    levels: list[EnclosingLoop] = []
    op = loop
    while op is not None:
        if isinstance(op, scf.ForOp):
            lower, step, trips = constant_index(op.lb), constant_index(op.step), most_trips(op, reader)
            if lower is None or step is None or trips is None:
                break
            key = op.body.block.args[0]
            levels.append(EnclosingLoop(key, reader.read(key), lower, step, trips, op))
        if isinstance(op, FuncOp | KernelOp):
            levels.append(EnclosingLoop(op.block_id, reader.read(op.block_id), 0, 1, op.grid.value.data, None))
            break
        op = op.parent_op()
    return [level for level in levels if level.trips > 1]


def lines_by_level(body: Body, levels: Sequence[EnclosingLoop], reader: IndexReader) -> list[Lines]:
    """The lines that an iteration reads, by the innermost level whose iterations read different ones. Without those
    that a level moves by less than a line at a time through several, and those whose offsets are computed inside."""
    found: dict[tuple[SSAValue, Expr, int], set[int]] = {}
    keys = {level.key for level in levels}
    for buffer, offset, starts in body.places(reader):
        at = _moving_level(offset, levels, element_bytes(buffer))
        if at is None or any(v.key not in keys and not _is_outside(v.key, levels) for v in offset.vars()):
            continue
        first = offset.substitute({inner.key: const(inner.lower) for inner in levels[:at]})
        constants = found.setdefault((buffer, first - first.constant, at), set())
        constants.update(first.constant + start for start in starts)
    return [
        Lines(buffer, base, tuple(apart(sorted(constants), element_bytes(buffer))), at)
        for (buffer, base, at), constants in found.items()
    ]


def _moving_level(offset: Expr, levels: Sequence[EnclosingLoop], width: int) -> int | None:
    """The position of the innermost level that moves an offset by a line or more; None without one, and where one
    further in moves it by less and through more than a line."""
    for position, level in enumerate(levels):
        stride = level.stride(offset)
        if stride is None or abs(stride) * width >= LINE:
            return position
        if abs(stride) * level.trips * width > LINE:
            return None
    return None


def apart(offsets: Sequence[int], width: int) -> Iterator[int]:
    """Those of ascending offsets in elements of a width in bytes that are at least a line apart."""
    last: int | None = None
    for offset in offsets:
        if last is None or (offset - last) * width >= LINE:
            yield offset
            last = offset


def is_unrolled(loop: scf.ForOp) -> bool:
    """Whether a loop is written out when it is compiled."""
    return "loop.unroll" in loop.attributes and trip_count(loop) is not None


def element_bytes(buffer: SSAValue) -> int:
    """Of an element of a buffer."""
    return byte_width(type_of(buffer).get_element_type())


def _values(loop: scf.ForOp) -> Sequence[int]:
    lower, step = constant_index(loop.lb), constant_index(loop.step)
    assert lower is not None and step is not None, "an unrolled loop has constant bounds"
    return [lower + step * n for n in range(trip_count(loop) or 0)]


def _is_outside(key: object, levels: Sequence[EnclosingLoop]) -> bool:
    """Whether a value is known before the outermost loop begins."""
    loops = [level.loop for level in levels if level.loop is not None]
    return isinstance(key, SSAValue) and not loops[-1].is_ancestor(key.owner)


__all__ = [
    "Body", "EnclosingLoop", "Lines", "apart", "element_bytes", "is_unrolled", "levels_around", "lines_by_level",
]  # fmt: skip
