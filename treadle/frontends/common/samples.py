"""Shape arithmetic in floats: numbers that are known for every value of the symbols.

A symbol has finitely many values. A number that is computed from extents by float arithmetic is the array of what NumPy
computes, in the type of the tensor, at each of them. Cast back to integers, it is an extent again if some quotient
`(a * symbol + b) // d` is the same number at every value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.frontends.common.extent import Extent, Symbolic, of_expression
from treadle.index.algebra import MOST_POINTS
from treadle.index.expr import Atom, Expr, Var, floordiv, var

Table = NDArray[Any]
_LARGEST_DIVISOR = 64
_LARGEST = 1 << 53

_UNARY: Mapping[str, Callable[[Table], Table]] = {
    "floor": np.floor, "ceil": np.ceil, "round": np.rint, "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt,
}  # fmt: skip
_BINARY: Mapping[str, Callable[[Table, Table], Table]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Sampled:
    """A number, `values` with an axis for each variable, from its lowest to its highest value."""

    variables: tuple[Var, ...]
    values: Table

    def at(self, variables: Sequence[Var]) -> Table:
        """The values with axes for these variables, of which it has some in this order."""
        shape = [_count(v) if v in self.variables else 1 for v in variables]
        return self.values.reshape(shape)


Number = Sampled | np.generic


def sampled(number: Symbolic, dtype: np.dtype[Any]) -> Number | None:
    """An extent or an integer in a type; None where there are too many values to try."""
    if not isinstance(number, Extent):
        return dtype.type(number)
    variables = _ordered(number.expression.vars())
    if not _are_few(variables):
        return None
    counts = [_count(v) for v in variables]
    points = np.indices(counts)
    at = {v.key: points[n] + (v.lo or 0) for n, v in enumerate(variables)}
    return Sampled(variables, np.asarray(number.expression.evaluate(at)).astype(dtype))  # pyright: ignore


def of_kind(kind: str, operands: Sequence[Number]) -> Number | None:
    """What an operator of one or two numbers gives; None for others than those of shape arithmetic."""
    rule = _UNARY.get(kind) if len(operands) == 1 else _BINARY.get(kind)
    variables = _ordered({v for each in operands if isinstance(each, Sampled) for v in each.variables})
    if rule is None or not _are_few(variables):
        return None
    tables = [each.at(variables) if isinstance(each, Sampled) else np.asarray(each) for each in operands]
    with np.errstate(all="ignore"):
        return _settled(variables, np.asarray(rule(*tables)))


def whole(number: Number) -> Symbolic | None:
    """The integer or the extent that a number is, cut off towards zero; None where it is no quotient of one symbol."""
    values = np.trunc(number.values if isinstance(number, Sampled) else np.asarray(number)).astype(np.float64)
    if not np.isfinite(values).all() or np.abs(values).max() >= _LARGEST:
        return None
    if not isinstance(number, Sampled):
        return int(values)
    settled = _settled(number.variables, values)
    if not isinstance(settled, Sampled):
        return int(settled)
    found = _quotient(number.variables[0], values.astype(np.int64)) if len(number.variables) == 1 else None
    return None if found is None else of_expression(found)


def is_whole(number: Number) -> bool:
    """Whether it is an integer at every value."""
    values = number.values if isinstance(number, Sampled) else np.asarray(number)
    return bool(np.equal(np.trunc(values), values).all())


def _settled(variables: tuple[Var, ...], values: Table) -> Number:
    """One number where it is the same at every value."""
    first = values.reshape(-1)[0]
    return first if bool(np.equal(values, first).all()) else Sampled(variables, values)


def _quotient(v: Var, values: NDArray[np.int64]) -> Expr | None:
    """`(a * v + b) // d` of the smallest d that gives the values; what there is of it is checked at each."""
    lowest = v.lo or 0
    places = np.arange(lowest, lowest + len(values))
    rise = int(values[-1] - values[0])
    for divisor in range(1, _LARGEST_DIVISOR + 1):
        nearest = rise * divisor // (len(values) - 1)
        for factor in range(nearest - 1, nearest + 3):
            gap = values * divisor - places * factor
            least, most = int(gap.max()), int(gap.min()) + divisor - 1
            if least <= most:
                offset = min(max(0, least), most)
                return floordiv(var(v.key, v.lo, v.hi) * factor + offset, divisor)
    return None


def _ordered(variables: Sequence[Var] | set[Var] | tuple[Var, ...]) -> tuple[Var, ...]:
    return tuple(sorted(variables, key=_serial))


def _serial(atom: Atom) -> int:
    return atom.serial


def _are_few(variables: Sequence[Var]) -> bool:
    known = all(v.lo is not None and v.hi is not None for v in variables)
    return known and prod(map(_count, variables)) <= MOST_POINTS


def _count(v: Var) -> int:
    assert v.lo is not None and v.hi is not None
    return v.hi - v.lo + 1


__all__ = ["Number", "Sampled", "is_whole", "of_kind", "sampled", "whole"]
