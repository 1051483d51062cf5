"""Which operands copies of boxes can bring: what templates ask before `hopper-form-boxes` makes tensor maps."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp
from treadle.dialects.graph import YieldOp as GraphYieldOp
from treadle.dialects.graph.dtypes import byte_width
from treadle.index.algebra import depends_on
from treadle.index.contiguity import merged_dimensions
from treadle.index.expr import Expr, const
from treadle.index.reader import IndexReader
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


__all__ = ["contiguous_axis"]
