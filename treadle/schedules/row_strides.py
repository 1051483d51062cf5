"""How a row computation walks through memory: along its columns, or across its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from xdsl.ir import SSAValue

from treadle.index.algebra import stride_along
from treadle.index.expr import Expr, const, floordiv, mod, var
from treadle.schedules.access_analysis import DefinitionAccesses
from treadle.schedules.row_analysis import Rows

_KEY = "walked"


def columns_are_contiguous(rows: Rows) -> bool:
    """Whether the elements of a row lie next to one another, where it is read or where the result is written."""
    digits = _digits(rows.extents)
    return 1 in _strides(rows, {arg: digits[n] for arg, n in rows.column_arguments()})


def neighbouring_dims(rows: Rows) -> tuple[int, ...]:
    """The last outer dimensions along which each column of consecutive rows lies at consecutive addresses: the longest
    suffix that every access walks with one stride, and some with stride 1; none if there is no such suffix."""
    args, shape = rows.compute.body.block.args, rows.compute.shape
    dims = tuple(d for d in rows.outer if shape[d] != 1)
    for first in range(len(dims)):
        inside = dims[first:]
        digits = _digits([shape[d] for d in inside])
        strides = _strides(rows, {args[d]: digit for d, digit in zip(inside, digits, strict=True)})
        if None not in strides and 1 in strides:
            return inside
    return ()


def neighbouring_rows(rows: Rows) -> int:
    """How many consecutive rows lie side by side in memory."""
    return prod(rows.compute.shape[d] for d in neighbouring_dims(rows))


def _digits(extents: Sequence[int]) -> list[Expr]:
    """The row-major indices at a position that runs over `extents`."""
    position = var(_KEY, 0, max(prod(extents) - 1, 0))
    quotients = [floordiv(position, prod(extents[n + 1 :])) for n in range(len(extents))]
    return [q if n == 0 else mod(q, extents[n]) for n, q in enumerate(quotients)]


def _strides(rows: Rows, overrides: Mapping[SSAValue, Expr]) -> list[int | None]:
    """How far apart each access of neighbouring positions is; of the result, too."""
    compute = rows.compute
    accesses = DefinitionAccesses(compute, overrides)
    result = const(0)
    for d, arg in enumerate(compute.body.block.args):
        result = result + accesses.index(arg) * prod(compute.shape[d + 1 :])
    differences = [comparison.difference for comparison in accesses.conditions()]
    positions = [*map(accesses.position, compute.reads()), *differences, result]
    return [stride_along(position, _KEY) for position in positions]
