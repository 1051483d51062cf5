"""Extents that change from call to call: numbers that are expressions of the symbols.

While a model is imported, a dynamic dimension is an `Extent`: the expression that says its extent in a call. Arithmetic
gives others, so that converters compute shapes as they do with integers. A comparison that holds for some calls and not
for others is an error, not a guess; so is a conversion to an integer: `bound_of` says the largest one by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, inf, prod
from typing import TYPE_CHECKING, NoReturn, Self, TypeGuard

import numpy as np
from numpy.typing import NDArray

from treadle.dialects.graph.definition import Misfit
from treadle.index.algebra import exact_quotient, extremes
from treadle.index.expr import Expr, const, floordiv, mod, var

if TYPE_CHECKING:
    # What computes with shapes takes extents where it takes integers.
    Integer = int
else:
    # To whatever is written in C, such as `range` and NumPy, a subclass of int would be its integer.
    Integer = object

Array = NDArray[np.generic]
"""Arrays of any element type, as the frontends hold weights and what they fold."""


MERGED = "a dimension that merges at most one that changes"
"""What is accepted instead of a dimension that was merged from several that change, by position."""
_STATIC = "a static extent"
_ALIKE = "dimensions that are merged and split alike for all extents of the range"
_DIVISORS = "a divisor that is a number above 0, or a factor of the extent"


class Extent(Integer):
    """A dimension's extent in a call, `expression`; Misfit wherever one integer is needed.

    `factors` are the dimensions that a merged one consists of, outermost first: position `i` of a merge of batch and
    sequence is `(i // 512, i % 512)` where 512 is the longest sequence. A dimension that was not merged has none.
    """

    expression: Expr
    factors: tuple[Extent | int, ...]
    __array_ufunc__ = None
    """NumPy's operators leave arithmetic with arrays to the extent, which refuses it."""

    def __new__(cls, expression: Expr, factors: Sequence[Extent | int] = ()) -> Self:
        self = super().__new__(cls)
        self.expression, self.factors = expression, tuple(factors)
        return self

    @property
    def parts(self) -> tuple[Extent | int, ...]:
        """The factors; of a dimension that was not merged, itself."""
        return self.factors or (self,)

    @property
    def lowest(self) -> int:
        """The smallest extent of any call; no call's is smaller, where that is not known exactly."""
        return extremes(self.expression)[0] or 0

    @property
    def bound(self) -> int:
        """The largest extent of any call, which buffers have; of a merged dimension the product of its factors'."""
        if self.factors:
            return prod(map(bound_of, self.factors))
        return extremes(self.expression)[1] or 0

    def __repr__(self) -> str:
        return f"{self.expression} <= {self.bound}"

    __str__ = __repr__

    def _refused(self, *_: object) -> NoReturn:
        raise Misfit(f"the extent {self}, which changes from call to call, where a number is needed", _STATIC)

    if not TYPE_CHECKING:
        __index__ = __int__ = __float__ = __trunc__ = __floor__ = __ceil__ = __round__ = _refused
        __truediv__ = __rtruediv__ = __divmod__ = __rdivmod__ = __pow__ = __rpow__ = __abs__ = _refused
        __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __and__ = __rand__ = __or__ = __ror__ = _refused

    def __add__(self, other: object) -> int:
        return _combined(self, other, lambda a, b: a + b)

    def __radd__(self, other: object) -> int:
        return _combined(self, other, lambda a, b: a + b)

    def __sub__(self, other: object) -> int:
        return _combined(self, other, lambda a, b: a - b)

    def __rsub__(self, other: object) -> int:
        return _combined(self, other, lambda a, b: b - a)

    def __mul__(self, other: object) -> int:
        return _combined(self, other, lambda a, b: a * b)

    def __rmul__(self, other: object) -> int:
        return _combined(self, other, lambda a, b: a * b)

    def __neg__(self) -> int:
        return of_expression(-self.expression)

    def __floordiv__(self, other: object) -> int:
        return _divided(self, other)

    def __rfloordiv__(self, other: object) -> int:
        return _divided(other, self)

    def __mod__(self, other: object) -> int:
        return _remainder(self, other)

    def __rmod__(self, other: object) -> int:
        return _remainder(other, self)

    def __eq__(self, other: object) -> bool:
        return _is_number(other) and expression_of(other) == self.expression

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.expression)

    def __bool__(self) -> bool:
        return _decided(self, 0, lambda low, high: True if low > 0 or high < 0 else None, "!=")

    def __lt__(self, other: object) -> bool:
        return _less(self, other, 0, "<")

    def __le__(self, other: object) -> bool:
        return _less(self, other, 1, "<=")

    def __gt__(self, other: object) -> bool:
        return not _less(self, other, 1, ">")

    def __ge__(self, other: object) -> bool:
        return not _less(self, other, 0, ">=")


Symbolic = Extent | int


class Symbol(Extent):
    """An extent that a caller of the model chooses: from `lower` to `upper`, a multiple of `multiple`.

    Its expression is `multiple` times a variable, whose text is a quotient, so that division by the multiple is exact.
    """

    name: str

    def __new__(cls, name: str, lower: int, upper: int, multiple: int = 1) -> Self:
        key = name if multiple == 1 else f"({name} // {multiple})"
        self = super().__new__(cls, var(key, -(-lower // multiple), upper // multiple) * multiple)
        self.name = name
        return self


def of_expression(expression: Expr) -> Symbolic:
    """The extent, or the integer, that an expression is."""
    value = expression.as_int()
    return Extent(expression) if value is None else value


def expression_of(extent: Symbolic) -> Expr:
    """The expression of an extent, or of an integer."""
    return extent.expression if isinstance(extent, Extent) else const(int(extent))


def bound_of(extent: Symbolic) -> int:
    """The largest integer that an extent is in any call: what its dimension has in buffers and types."""
    return extent.bound if isinstance(extent, Extent) else int(extent)


def least_of(extent: Symbolic) -> int:
    """The smallest integer that an extent is in any call."""
    return extent.lowest if isinstance(extent, Extent) else int(extent)


def bounds_of(shape: Sequence[Symbolic]) -> tuple[int, ...]:
    """The largest shape of any call."""
    return tuple(map(bound_of, shape))


def range_of(number: Symbolic) -> tuple[int, int] | None:
    """Bounds of a number in all calls; None where there are none."""
    low, high = extremes(expression_of(number))
    return None if low is None or high is None else (low, high)


def minimum(a: Symbolic, b: Symbolic) -> Symbolic:
    """The smaller of two numbers. Where that depends on the call, it is `a - (a - b) * step`, whose step is 1 from the
    extents on for which `a` is the larger one: a quotient of sums, and as such an extent like others. Misfit where
    ranges are too large to tell how large that is."""
    known = range_of(a - b)
    if known is None or known[1] <= 0:
        return a if known is not None else min(a, b)
    if known[0] >= 0:
        return b
    beyond = max(-known[0], known[1]) + 1
    found = a - (a - b) * ((a - b + beyond) // beyond)
    return found if bound_of(found) <= min(bound_of(a), bound_of(b)) else min(a, b)


def maximum(a: Symbolic, b: Symbolic) -> Symbolic:
    """The larger of two numbers."""
    known = range_of(a - b)
    if known is None:
        return max(a, b)
    return b if known[1] <= 0 else a if known[0] >= 0 else a + b - minimum(a, b)


def is_symbolic(shape: Sequence[Symbolic]) -> bool:
    """Whether a shape depends on a symbol."""
    return any(isinstance(extent, Extent) for extent in shape)


def reshaped(source: Sequence[Symbolic], to: Sequence[Symbolic]) -> tuple[Symbolic, ...]:
    """The dimensions of a reshape, which split and merge those of the source without moving an element.

    Positions are those of the largest shape: a merge of two symbolic dimensions keeps both as factors, and a split has
    to find them again. Misfit for a reshape that does not divide, or that divides otherwise for some call.
    """
    waiting = [part for extent in source for part in (extent.parts if isinstance(extent, Extent) else (extent,))]
    waiting = [part for part in waiting if isinstance(part, Extent) or part != 1]
    result: list[Symbolic] = []
    for extent in to:
        taken = _taken(waiting, expression_of(extent))
        if taken is None:
            shown = f"[{', '.join(map(str, source))}] to [{', '.join(map(str, to))}]"
            raise Misfit(f"a reshape of {shown} splits a dimension otherwise for some extents", _ALIKE)
        result.append(_merged(taken))
    if waiting:
        raise Misfit(f"a reshape to [{', '.join(map(str, to))}] leaves {', '.join(map(str, waiting))} over", _ALIKE)
    return tuple(result)


def _taken(waiting: list[Symbolic], wanted: Expr) -> list[Symbolic] | None:
    """Takes dimensions off the front, the last one in part, whose product is an expression."""
    taken: list[Symbolic] = []
    while wanted != 1:
        if not waiting:
            return None
        first = waiting[0]
        rest = exact_quotient(wanted, expression_of(first))
        if rest is not None:
            taken.append(waiting.pop(0))
            wanted = rest
            continue
        inner = exact_quotient(expression_of(first), wanted)
        if inner is None or (within := inner.as_int()) is None or within < 1 or bound_of(first) % within:
            return None
        taken.append(of_expression(wanted))
        waiting[0] = within
        break
    return taken


def _merged(parts: Sequence[Symbolic]) -> Symbolic:
    """One dimension of several; static ones behind a symbolic one are part of it."""
    dense: list[Symbolic] = []
    for part in parts:
        if dense and not isinstance(part, Extent):
            dense[-1] = dense[-1] * part
        else:
            dense.append(part)
    if len(dense) < 2:
        return dense[0] if dense else 1
    return Extent(expression_of(prod(dense)), dense)


def _is_number(value: object) -> TypeGuard[int]:
    """Whether arithmetic keeps an expression; Misfit for other numbers, whose result is none."""
    if isinstance(value, float | np.ndarray | np.generic):
        raise Misfit(f"an extent that changes from call to call and {value}: one number is needed", _STATIC)
    return isinstance(value, Extent | int)


def _combined(a: Extent, other: object, rule: Callable[[Expr, Expr], Expr]) -> int:
    """A sum, a difference or a product; NotImplemented for what is no integer."""
    if not _is_number(other):
        return NotImplemented
    return of_expression(rule(a.expression, expression_of(other)))


def _divided(a: object, b: object) -> int:
    if not _is_number(a) or not _is_number(b):
        return NotImplemented
    quotient = exact_quotient(expression_of(a), expression_of(b))
    if quotient is not None:
        return of_expression(quotient)
    if isinstance(b, Extent) or b <= 0:
        raise Misfit(f"{a} divided by {b} is no whole number for every extent", _DIVISORS)
    return of_expression(floordiv(expression_of(a), b))


def _remainder(a: object, b: object) -> int:
    if not _is_number(a) or not _is_number(b):
        return NotImplemented
    if exact_quotient(expression_of(a), expression_of(b)) is not None:
        return 0
    if isinstance(b, Extent) or b <= 0:
        raise Misfit(f"{a} divided by {b} has a remainder that depends on the extents", _DIVISORS)
    return of_expression(mod(expression_of(a), b))


def _less(a: Extent, other: object, margin: int, sign: str) -> bool:
    """Whether a < other + margin."""
    if isinstance(other, float):
        # Of integers, below 2.5 means below 3, and up to 2.5 means up to 2.
        if other != other or abs(other) == inf:
            return other > 0
        other = floor(other) if margin else ceil(other)
    if not _is_number(other):
        return NotImplemented
    return _decided(a, other, lambda low, high: True if high < margin else False if low >= margin else None, sign)


def _decided(a: Extent, b: int, rule: Callable[[int, int], bool | None], sign: str) -> bool:
    known = range_of(a - b)
    found = None if known is None else rule(*known)
    if found is None:
        comparison = f"{a.expression} {sign} {expression_of(b)}"
        raise Misfit(f"whether {comparison} depends on the extents of a call", "a range in which it does not")
    return found
