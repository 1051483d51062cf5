"""Which operands copies of boxes can bring: what templates ask before `hopper-form-boxes` makes tensor maps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, TensorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp
from treadle.dialects.graph import YieldOp as GraphYieldOp
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.scalar import is_zero
from treadle.errors import TreadleError
from treadle.index.algebra import Comparison, depends_on
from treadle.index.contiguity import merged_dimensions
from treadle.index.expr import Expr, const, var
from treadle.index.pixels import pixel_walk
from treadle.index.reader import IndexReader, comparisons_in
from treadle.target.tensor_map import ALIGNMENT, MOST_DIMENSIONS


def contiguous_axis(anchor: Operation, operand: SSAValue, whole: int | None = None) -> int | None:
    """The axis of an operand, -1 or -2, along which its elements are neighbours in memory; None where copies of boxes
    cannot bring it: its rows begin at no multiples of 16 bytes, or the group computes it, other than by choosing other
    indices of a tensor, along one dimension for rows and along one for columns.

    whole: of columns, the multiples of which tiles bring at once; if the operand has as many, they may be a part of a
    dimension, behind whose end is something else than nothing
    """
    assert isinstance(operand.type, TensorType)
    *_, m, n = operand.type.get_shape()
    producer, axis, starts = operand.owner, -1, const(0)
    if isinstance(producer, ComputeOp) and producer.parent_op() is anchor.parent_op():
        read = _only_read(producer)
        if read is None:
            return None
        operand = read.source
        assert isinstance(operand.type, TensorType)
        arguments = list(producer.body.block.args)[-2:]
        reader = IndexReader()
        indices = [reader.read(index) for index in read.indices]
        extents, places = merged_dimensions(operand.type.get_shape(), indices, arguments)
        rows, columns = (_moved(places, argument) for argument in arguments)
        if rows is None or columns is None or rows[0] == columns[0]:
            return None
        is_whole_row = rows[1] == 0 and extents[rows[0]] == m
        is_whole_column = columns[1] == 0 and extents[columns[0]] == n
        if not is_whole_row or not (is_whole_column or (whole is not None and n % whole == 0)):
            return None
        last = len(extents) - 1
        if last not in (rows[0], columns[0]):
            return None
        axis, starts = (-1, columns[1]) if columns[0] == last else (-2, rows[1])
    assert isinstance(operand.type, TensorType)
    shape, size = operand.type.get_shape(), byte_width(operand.type.get_element_type())
    unit = ALIGNMENT // size
    if len(shape) > MOST_DIMENSIONS or shape[-1] % unit or starts % unit != 0:
        return None
    return axis


@dataclass(frozen=True)
class Windows:
    """The terms of a convolution as a product: those of `taps` positions in a window, of `channels` each."""

    taps: int
    channels: int


def windows_of(anchor: Operation, operand: SSAValue) -> Windows | None:
    """The terms of an operand `[pixels, terms]` that the group makes of images `[N, spatial..., C]`: its rows are their
    pixels in order, some steps apart, each moved by the position in a window. None where copies of pixels cannot bring
    it."""
    found = _windows_of(anchor, operand)
    return found if isinstance(found, Windows) else None


def obstacle_to_windows(anchor: Operation, operand: SSAValue) -> str | None:
    """Why copies of pixels cannot bring an operand that the group makes of images; None where they can, and for other
    operands."""
    found = _windows_of(anchor, operand)
    return found if isinstance(found, str) else None


def _windows_of(anchor: Operation, operand: SSAValue) -> Windows | str | None:
    """What the terms are, or why there are no copies of them; None for what is no window over images."""
    producer = operand.owner
    if not isinstance(producer, ComputeOp) or producer.parent_op() is not anchor.parent_op():
        return None
    *_, end = producer.body.block.ops
    assert isinstance(end, GraphYieldOp) and isinstance(operand.type, TensorType)
    read, shape = end.value.owner, operand.type.get_shape()
    if len(shape) != 2 or not isinstance(read, AtOp) or isinstance(read.source.owner, ComputeOp):
        return None
    assert isinstance(read.source.type, TensorType)
    extents = read.source.type.get_shape()
    channels = extents[-1]
    if shape[1] % channels:
        return None
    taps = shape[1] // channels
    row, channel, tap = var("row", 0, shape[0] - 1), var("channel", 0, channels - 1), const(0)
    if taps > 1:
        tap = var("tap", 0, taps - 1)
    reader = IndexReader(dict(zip(producer.body.block.args, (row, tap * channels + channel), strict=True)))
    places = [reader.read(index) for index in read.indices]
    walk = pixel_walk(places[:-1], row)
    if walk is None or places[-1] != channel or any(depends_on(start, "channel") for start in walk.starts):
        return None
    if read.predicate is not None and not _is_inside(reader, read, places):
        return None
    of_pixel = channels * byte_width(read.source.type.get_element_type())
    if of_pixel % ALIGNMENT:
        return f"a pixel has {of_pixel} bytes, and copies begin at multiples of {ALIGNMENT}"
    pixels = walk.box(extents, shape[0])
    if pixels is None:
        return "its windows reach further than copies of pixels do"
    try:
        pixels.check(extents[1:-1])
    except TreadleError as error:
        return f"copies of pixels do not take {error.message}"
    return Windows(taps, channels)


def _is_inside(reader: IndexReader, read: AtOp, places: Sequence[Expr]) -> bool:
    """Whether an element is left out, and 0, for no other reason than that it lies outside of the tensor."""
    assert isinstance(read.source.type, TensorType) and read.predicate is not None
    if not is_zero(read.otherwise) or not compares_indices(read.predicate):
        return False
    inside = [*zip(read.source.type.get_shape(), places, strict=True)]
    return all(leaves_out_what_is_outside(each, inside) for each in comparisons_in(reader, read.predicate))


def compares_indices(condition: SSAValue) -> bool:
    """Whether a condition is comparisons of indices that must all hold, and nothing else."""
    op = condition.owner
    if isinstance(op, arith.AndIOp):
        return all(map(compares_indices, op.operands))
    return isinstance(op, arith.CmpiOp) and isinstance(op.lhs.type, IndexType)


def leaves_out_what_is_outside(comparison: Comparison, dimensions: Iterable[tuple[int, Expr]]) -> bool:
    """Whether a comparison is false for nothing but elements outside of a tensor of some extents, at some places."""
    kind, difference = comparison.kind, comparison.difference
    if kind == "slt":
        return any(difference == place - extent for extent, place in dimensions) or comparison.truth() is True
    is_start = kind == "sge" and any(difference == place for _, place in dimensions)
    return is_start or comparison.truth() is True


def _only_read(producer: ComputeOp) -> AtOp | None:
    """The one element that a definition yields, which may have other indices; None for a definition that does more."""
    *_, end = producer.body.block.ops
    assert isinstance(end, GraphYieldOp)
    read = end.value.owner
    return read if isinstance(read, AtOp) and read.predicate is None else None


def _moved(places: Sequence[Expr], argument: SSAValue) -> tuple[int, Expr] | None:
    """The dimension along which an argument moves, one for one, and where it starts; None for anything else."""
    found = [n for n, place in enumerate(places) if depends_on(place, argument)]
    if len(found) != 1:
        return None
    start = places[found[0]].substitute({argument: const(0)})
    moved = (places[found[0]] - start).as_atom()
    return (found[0], start) if getattr(moved, "key", None) is argument else None


__all__ = [
    "Windows",
    "compares_indices",
    "contiguous_axis",
    "leaves_out_what_is_outside",
    "obstacle_to_windows",
    "windows_of",
]
