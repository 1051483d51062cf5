"""Pooling and depthwise convolution on a CPU: a register tile of windows by one vector."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import ceil, prod
from typing import ClassVar

from xdsl.dialects import arith
from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, WholeOp
from treadle.dialects.graph.compute import only_reduce
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.schedules.access_analysis import Windows, vector_width, windows_of, windows_split
from treadle.schedules.kernel_builder import Index, KernelBuilder, kernel_builder
from treadle.schedules.template import Anchor, Choices, Knob, Template, check_limit, number
from treadle.schedules.templates.window_tile import Values, WindowTile
from treadle.target import Target

_MANY_TERMS = 512
"""Terms of a window from which on they are better shared out."""
_WIDEST = 16
"""Elements of a window up to which several windows fit into registers."""
_MOST = 8
"""Windows of a tile."""
_MOST_ROWS = 1024
"""Rows of a block."""
_NARROWEST = 4
"""Elements of the shortest vectors."""


class WindowCpu(Template):
    """A register tile of `windows` neighbours along a dimension of which each element is a vector along the last one,
    such as the lanes of a block of channels.

    The vectors under the windows are read once, and so are terms that do not depend on the window, such as weights: a
    3x3 depthwise convolution reads 36 instead of 126 vectors for a tile of seven. The first and the last tile of a row
    have code of their own, so that those between them test no border; the other dimensions' borders are tested once
    for a row of a window. A block computes `rows` rows of tiles (see `windows_split`).
    """

    name: ClassVar[str] = "window_cpu"
    kind: ClassVar[str] = "cpu"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("windows", tuple(range(1, _MOST + 1)), "neighbouring windows of a tile"),
        Knob("rows", tuple(range(1, _MOST_ROWS + 1)), "rows of tiles that a block computes"),
    )

    def fits(self, anchor: Anchor) -> bool:
        if isinstance(anchor, WholeOp) or anchor.type.get_element_type() != f32:
            return False
        reduce = only_reduce(anchor)
        if reduce is None or reduce.result.type != f32 or prod(reduce.shape) > _MANY_TERMS:
            return False
        windows = windows_of(anchor, reduce)
        return windows is not None and windows.width <= _WIDEST and _widest_vector(anchor, _NARROWEST) == _NARROWEST

    def has_default(self, anchor: Anchor, target: Target) -> bool:
        return _widest_vector(anchor, target.lanes) == target.lanes

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        widest = _widest_vector(anchor, target.lanes)
        message = f"window_cpu: vectors of {target.lanes} elements, of which {widest} are neighbours in every operand"
        accepted = f"a target whose vectors have at most {widest} elements"
        check_limit("elements of a vector", target.lanes, widest, None, message, accepted)

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        windows = _windows(anchor)
        sizes = range(1, min(_MOST, windows.extent) + 1)
        fitting = [n for n in sizes if _fit(_registers(windows, n), target)]
        count = min(fitting or [1], key=lambda n: (ceil(windows.extent / n), n))
        return {"windows": count, "rows": self._rows(windows, target)}

    def _rows(self, windows: Windows, target: Target) -> int:
        """Rows of a block where none are chosen."""
        return min(windows_split(windows, target.lanes).default_rows(target.cores), _MOST_ROWS)

    def canonical(self, anchor: Anchor, choices: Choices, target: Target) -> Choices:
        """A tile has no more windows than a row; blocks have as many rows, but for the last one."""
        windows = _windows(anchor)
        extent = windows_split(windows, target.lanes).extent
        parts = ceil(extent / min(number(choices, "rows"), extent))
        rows = ceil(extent / parts)
        return {"windows": min(number(choices, "windows"), windows.extent), "rows": rows}

    def listed(self, anchor: Anchor, target: Target) -> Iterable[Choices]:
        """All tiles, and one block, or 1, 2, 4, 8 and 16 for each core. The windows are analysed once for all."""
        windows = _windows(anchor)
        extent = windows_split(windows, target.lanes).extent
        blocks = {1, *(min(target.cores * 2**n, extent) for n in range(5))}
        rows = sorted({min(ceil(extent / count), _MOST_ROWS) for count in blocks} | {self._rows(windows, target)})
        counts = range(1, min(_MOST, windows.extent) + 1)
        if self.has_default(anchor, target):
            yield from ({"windows": count, "rows": each} for count in counts for each in rows)

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, ComputeOp)
        windows, tensors = _windows(anchor), anchor.tensors()
        count, rows = number(choices, "windows"), number(choices, "rows")
        b = kernel_builder(tensors, anchor.type)
        split, at_once = windows_split(windows, target.lanes), _rows_at_once(windows, count, target)
        with b.loop("row", rows) as row:
            index = split.index(b.block, row, rows)
            with b.when(index[split.rows] < split.extent if split.extent % rows else None):
                index[-1] = index[-1] * target.lanes
                _row(b, windows, count, target.lanes, index, at_once)
        comment = f"{anchor.operators.data if anchor.operators is not None else 'windows'} to {anchor.type}"
        return b.kernel(name, tensors, anchor.type, split.blocks(rows), 1, comment)


def _row(
    b: KernelBuilder, windows: Windows, count: int, lanes: int, index: Sequence[Index], at_once: int | None
) -> None:
    """The tiles along the windows' dimension: the first, those in the middle, and the last ones.

    at_once: rows of a window that are unrolled, and no more, if it is given and there is a loop over tiles
    """
    whole, rest = divmod(windows.extent, count)
    tested = any(at.predicate is not None for at in windows.sliding)
    ends = [0, 1, whole - (rest == 0), whole] if whole > 1 and tested else [0, whole]
    if all(end - begin <= 1 for begin, end in pairwise(ends)):
        at_once = None
    for begin, end in pairwise(ends):
        if begin < end:
            at_border = end - begin == 1
            with b.loop("tile", end, begin=begin) as tile:
                place = [tile * count if d == windows.dim else i for d, i in enumerate(index)]
                _CpuTile(b, windows, count, lanes, at_border, at_once).write(place)
    if rest:
        place = [b.index(whole * count) if d == windows.dim else i for d, i in enumerate(index)]
        _CpuTile(b, windows, rest, lanes, at_border=True, at_once=at_once).write(place)


class _CpuTile(WindowTile):
    """A tile whose windows all exist. Conditions that hold, or not, for all of them are tested once."""

    def __init__(
        self, b: KernelBuilder, windows: Windows, count: int, vector: int, at_border: bool, at_once: int | None
    ):
        super().__init__(b, windows, count, vector, exact=True, at_once=at_once)
        self.at_border = at_border

    def _read_places(self, at: AtOp, values: Values, buffer: SSAValue) -> None:
        b = self.b
        of_row, of_place = self._conditions(at)
        if not of_row:
            self._read_each(at, values, buffer, of_place)
            return
        assert at.otherwise is not None
        with b.loop("p", self.span, unroll=True) as p, self._elements(values) as (e, own):
            b.store(self._emit(at.otherwise, own), buffer, [p, e])
        first = self._at(values, b.index(0))
        with b.when(b.all([self._emit(condition, first) for condition in of_row])):
            self._read_each(at, dict(values), buffer, of_place)

    def _conditions(self, at: AtOp) -> tuple[list[SSAValue], list[SSAValue]]:
        """The conditions of a read: those that all places share, and the others."""
        conditions = [] if at.predicate is None else _conjuncts(at.predicate)
        shared = [c for c in conditions if self.windows.is_shared(c)]
        return shared, [c for c in conditions if c not in shared]

    def _read_each(self, at: AtOp, values: Values, buffer: SSAValue, conditions: Sequence[SSAValue]) -> None:
        """Reads the elements under the windows, place by place where some may be outside."""
        b = self.b
        if not (self.at_border and conditions):
            with b.loop("p", self.span, unroll=True) as p:
                self._read_one(at, values, buffer, conditions, p)
            return
        for p in range(self.span):
            self._read_one(at, values, buffer, conditions, b.index(p))

    def _read_one(self, at: AtOp, values: Values, buffer: SSAValue, conditions: Sequence[SSAValue], p: Index) -> None:
        b = self.b
        with self._elements(values) as (e, own):
            own = self._at(own, p)
            indices = [self._emit(i, own) for i in at.indices]
            where = b.all([self._emit(condition, own) for condition in conditions])
            otherwise = None if where is None or at.otherwise is None else self._emit(at.otherwise, own)
            b.store(b.load(own[at.source], indices, where, otherwise), buffer, [p, e])

    def _at(self, values: Values, place: Index) -> Values:
        """Values at a place, counted from the start of the first window."""
        return values | {self.reduce.body.block.args[self.windows.term]: place.value}


def _conjuncts(predicate: SSAValue) -> list[SSAValue]:
    op = predicate.owner
    return [*_conjuncts(op.lhs), *_conjuncts(op.rhs)] if isinstance(op, arith.AndIOp) else [predicate]


def _windows(anchor: Anchor) -> Windows:
    assert isinstance(anchor, ComputeOp)
    reduce = only_reduce(anchor)
    windows = None if reduce is None else windows_of(anchor, reduce)
    assert windows is not None, "fits rejects definitions without windows"
    return windows


def _widest_vector(anchor: Anchor, most: int) -> int:
    """Neighbouring elements along the last dimension, up to `most`, that each read gives as neighbours or as one."""
    assert isinstance(anchor, ComputeOp)
    return vector_width(anchor, anchor.body.block.args[-1], most)


def _registers(windows: Windows, count: int) -> int:
    """Vectors that a tile of so many windows keeps."""
    span = (count - 1) * windows.step + windows.width
    return span * len(windows.sliding) + windows.width * len(windows.shared) + count


def _rows_at_once(windows: Windows, count: int, target: Target) -> int | None:
    """One row of a window, where the registers do not hold what all tiles of a row share: compilers read it before the
    loop over tiles once all rows are unrolled. They hold the places of one window at a time."""
    shared = prod(windows.reduce.shape) * len(windows.shared)
    return None if _fit(windows.width * len(windows.sliding) + shared + count, target) else 1


def _fit(vectors: int, target: Target) -> bool:
    """Whether registers hold so many vectors and one more, for what is read or computed."""
    return vectors + 1 < target.vector_registers
