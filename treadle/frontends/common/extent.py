"""Extents that change from call to call: integers that remember which expression of the symbols they are.

While a model is imported, a dynamic dimension is an `Extent`: an `int`, the largest extent that it can have, with the
expression that says its extent in a call. Arithmetic keeps both, so that converters compute shapes as they always do.
A comparison that holds for some calls and not for others is an error, not a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Self

from xdsl.utils.exceptions import VerifyException

from treadle.index.division import exact_quotient
from treadle.index.expr import Expr, const, floordiv, mod, var


class Extent(int):
    """A dimension's largest extent, as an integer, and its extent in a call, `expression`.

    `factors` are the dimensions that a merged one consists of, outermost first, each with its largest extent: position
    `i` of a merge of batch and sequence is `(i // 512, i % 512)` where 512 is the longest sequence. A dimension that
    was not merged has none.
    """

    expression: Expr
    factors: tuple[Extent | int, ...]

    def __new__(cls, bound: int, expression: Expr, factors: Sequence[Extent | int] = ()) -> Self:
        self = int.__new__(cls, bound)
        self.expression, self.factors = expression, tuple(factors)
        return self

    @property
    def parts(self) -> tuple[Extent | int, ...]:
        """The factors; of a dimension that was not merged, itself."""
        return self.factors or (self,)

    @property
    def lowest(self) -> int:
        """The smallest extent of any call, as far as ranges tell."""
        return self.expression.range()[0] or 0

    def __repr__(self) -> str:
        return f"{self.expression} <= {int(self)}"

    __str__ = __repr__

    def __add__(self, other: object) -> int:
        return _combined(self, other, int.__add__, lambda a, b: a + b)

    def __radd__(self, other: object) -> int:
        return _combined(self, other, int.__radd__, lambda a, b: a + b)

    def __sub__(self, other: object) -> int:
        return _combined(self, other, int.__sub__, lambda a, b: a - b)

    def __rsub__(self, other: object) -> int:
        return _combined(self, other, int.__rsub__, lambda a, b: b - a)

    def __mul__(self, other: object) -> int:
        return _combined(self, other, int.__mul__, lambda a, b: a * b)

    def __rmul__(self, other: object) -> int:
        return _combined(self, other, int.__rmul__, lambda a, b: a * b)

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
        return isinstance(other, int) and expression_of(other) == self.expression

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
        expression = var(key, -(-lower // multiple), upper // multiple) * multiple
        self = int.__new__(cls, upper // multiple * multiple)
        self.expression, self.factors = expression, ()
        self.name = name
        return self


def of_expression(expression: Expr) -> Symbolic:
    """The extent, or the integer, that an expression is; its bound is the largest value that its range allows."""
    value = expression.as_int()
    if value is not None:
        return value
    highest = expression.range()[1]
    return Extent(highest if highest is not None else 0, expression)


def expression_of(extent: Symbolic) -> Expr:
    """The expression of an extent, or of an integer."""
    return extent.expression if isinstance(extent, Extent) else const(int(extent))


def is_symbolic(shape: Sequence[Symbolic]) -> bool:
    """Whether a shape depends on a symbol."""
    return any(isinstance(extent, Extent) for extent in shape)


def reshaped(source: Sequence[Symbolic], to: Sequence[Symbolic]) -> tuple[Symbolic, ...]:
    """The dimensions of a reshape, which split and merge those of the source without moving an element.

    Positions are those of the largest shape: a merge of two symbolic dimensions keeps both as factors, and a split has
    to find them again. VerifyException for a reshape that does not divide, or that divides otherwise for some call.
    """
    waiting = [part for extent in source for part in (extent.parts if isinstance(extent, Extent) else (extent,))]
    waiting = [part for part in waiting if isinstance(part, Extent) or part != 1]
    result: list[Symbolic] = []
    for extent in to:
        taken = _taken(waiting, expression_of(extent))
        if taken is None:
            shown = f"[{', '.join(map(str, source))}] to [{', '.join(map(str, to))}]"
            raise VerifyException(f"a reshape of {shown} splits a dimension otherwise for some extents")
        result.append(_merged(taken))
    if waiting:
        raise VerifyException(f"a reshape to [{', '.join(map(str, to))}] leaves {', '.join(map(str, waiting))} over")
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
        if inner is None or (within := inner.as_int()) is None or within < 1 or int(first) % within:
            return None
        taken.append(_with_bound(wanted, int(first) // within))
        waiting[0] = within
        break
    return taken


def _with_bound(expression: Expr, bound: int) -> Symbolic:
    return bound if expression.as_int() is not None else Extent(bound, expression)


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
    expression = const(1)
    for part in dense:
        expression = expression * expression_of(part)
    return Extent(prod(int(part) for part in dense), expression, dense)


def _combined(a: Extent, other: object, whole: Callable[[int, int], int], rule: Callable[[Expr, Expr], Expr]) -> int:
    """Both values of a sum, a difference or a product; NotImplemented for what is no integer."""
    if not isinstance(other, int):
        return NotImplemented
    bound, expression = whole(int(a), int(other)), rule(a.expression, expression_of(other))
    value = expression.as_int()
    return Extent(bound, expression) if value is None else value


def _divided(a: object, b: object) -> int:
    if not isinstance(a, int) or not isinstance(b, int):
        return NotImplemented
    quotient = exact_quotient(expression_of(a), expression_of(b))
    if quotient is not None:
        value = quotient.as_int()
        # Bounds divide as the extents do, also those of merged dimensions, which are larger than their range.
        return Extent(int(a) // int(b), quotient) if value is None else value
    if isinstance(b, Extent) or b <= 0:
        raise VerifyException(f"{a} divided by {b} is no whole number for every extent")
    expression = floordiv(expression_of(a), b)
    value = expression.as_int()
    return Extent(int(a) // b, expression) if value is None else value


def _remainder(a: object, b: object) -> int:
    if not isinstance(a, int) or not isinstance(b, int):
        return NotImplemented
    if exact_quotient(expression_of(a), expression_of(b)) is not None:
        return 0
    if isinstance(b, Extent) or b <= 0:
        raise VerifyException(f"{a} divided by {b} has a remainder that depends on the extents")
    return of_expression(mod(expression_of(a), b))


def _less(a: Extent, other: object, margin: int, sign: str) -> bool:
    """Whether a < other + margin."""
    if isinstance(other, float):
        other = int(other)
    if not isinstance(other, int):
        return NotImplemented
    return _decided(a, other, lambda low, high: True if high < margin else False if low >= margin else None, sign)


def _decided(a: Extent, b: int, rule: Callable[[int, int], bool | None], sign: str) -> bool:
    low, high = (a.expression - expression_of(b)).range()
    found = None if low is None or high is None else rule(low, high)
    if found is None:
        raise VerifyException(f"whether {a.expression} {sign} {expression_of(b)} depends on the extents of a call")
    return found


__all__ = [
    "Extent", "Symbol", "Symbolic", "expression_of", "is_symbolic", "of_expression", "reshaped",
]  # fmt: skip
