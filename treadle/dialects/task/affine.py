"""Expressions over a worker `w` and a step `s`: the coordinates of a custom task mapping.

Spelled as in MLIR's affine maps: `+`, `-`, `*`, `floordiv`, `mod`, integers, `w`, `s`.  An expression is a
tree that evaluates over anything with Python's integer operators: integers, or symbolic expressions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from treadle.errors import TreadleError

_OPERATORS: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "+": (1, operator.add),
    "-": (1, operator.sub),
    "*": (2, operator.mul),
    "floordiv": (2, operator.floordiv),
    "mod": (2, operator.mod),
}
"""Spelling -> (how tightly it binds, its meaning)."""


@dataclass(frozen=True)
class Affine:
    """A tree: a leaf `w`, `s` or an integer, or an operator with two sides.

    Python's `+ - * // %` build trees, so `lambda w, s: (w % 8, w // 8 + s)` traces to its coordinates.
    """

    value: str | int
    left: Affine | None = None
    right: Affine | None = None

    def evaluate(self, w: Any, s: Any) -> Any:
        """The value at worker w and step s (integers, or values with integer operators)."""
        if self.left is not None and self.right is not None:
            apply = _OPERATORS[str(self.value)][1]
            return apply(self.left.evaluate(w, s), self.right.evaluate(w, s))
        if isinstance(self.value, int):
            return self.value
        return w if self.value == "w" else s

    def __add__(self, other: Affine | int) -> Affine:
        return Affine("+", self, affine(other))

    def __radd__(self, other: int) -> Affine:
        return Affine("+", affine(other), self)

    def __sub__(self, other: Affine | int) -> Affine:
        return Affine("-", self, affine(other))

    def __rsub__(self, other: int) -> Affine:
        return Affine("-", affine(other), self)

    def __mul__(self, other: Affine | int) -> Affine:
        return Affine("*", self, affine(other))

    def __rmul__(self, other: int) -> Affine:
        return Affine("*", affine(other), self)

    def __floordiv__(self, other: int) -> Affine:
        return Affine("floordiv", self, _divisor(other))

    def __mod__(self, other: int) -> Affine:
        return Affine("mod", self, _divisor(other))

    def __str__(self) -> str:
        return self._text(0)

    def _text(self, binding: int) -> str:
        if self.left is None or self.right is None:
            return str(self.value)
        own = _OPERATORS[str(self.value)][0]
        text = f"{self.left._text(own)} {self.value} {self.right._text(own + 1)}"
        return text if own >= binding else f"({text})"


WORKER = Affine("w")
STEP = Affine("s")


def affine(value: Affine | int) -> Affine:
    """`value` as a tree; a negative integer is a subtraction from 0, as its text form is."""
    if isinstance(value, Affine):
        return value
    return Affine(value) if value >= 0 else Affine("-", Affine(0), Affine(-value))


def binding_of(spelling: str) -> int:
    """How tightly an operator binds; 0 for what is none."""
    return _OPERATORS[spelling][0] if spelling in _OPERATORS else 0


def combine(spelling: str, left: Affine, right: Affine) -> Affine:
    """The tree of a parsed operator; a divisor must be a positive integer."""
    if spelling in ("floordiv", "mod"):
        return Affine(spelling, left, _divisor(right.value if right.left is None else right))
    return Affine(spelling, left, right)


def _divisor(value: object) -> Affine:
    if not isinstance(value, int) or value <= 0:
        raise TreadleError(f"a task mapping divides by {value}", accepted="a positive integer as divisor")
    return Affine(value)
