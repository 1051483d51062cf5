"""Patterns: expressions that a value is compared with, and what their names stand for then."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from math import isclose, prod

import numpy as np
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import BinaryOp, Operator, ReductionOp, ReshapeOp, UnaryOp
from treadle.dialects.graph.definition import int_list
from treadle.dialects.graph.dtypes import epsilon, is_float_dtype
from treadle.passes.graph.rewriting import constant_of, shape_of


@dataclass(frozen=True)
class Match:
    """What the names of a pattern stand for, and the dimensions of its reductions, which are the same in all."""

    values: Mapping[str, SSAValue] = field(default_factory=dict[str, SSAValue])
    dims: tuple[int, ...] | None = None

    def __getitem__(self, name: str) -> SSAValue:
        return self.values[name]

    def number(self, name: str) -> float:
        """The number that a name of `Number` stands for."""
        found = scalar_of(self[name])
        assert found is not None
        return found


class Pattern(ABC):
    """An expression of operators, which a value may be in several ways.

    ```
    x = Capture("x")
    square_root = unary("sqrt", x) | x ** Number(0.5)
    ```
    Operands of commutative operators may stand in either order; a name that stands twice is the same value twice.
    """

    @abstractmethod
    def ways(self, value: SSAValue, known: Match) -> Iterator[Match]:
        """What each way in which a value is the expression adds to what is known."""

    def matches(self, value: SSAValue) -> Iterator[Match]:
        """Each way in which a value is the expression."""
        return self.ways(value, Match())

    def __or__(self, other: Pattern) -> Pattern:
        return _Either(self, other)

    def __add__(self, other: Pattern) -> Pattern:
        return Applied(BinaryOp, (self, other), "add")

    def __sub__(self, other: Pattern) -> Pattern:
        return Applied(BinaryOp, (self, other), "sub")

    def __mul__(self, other: Pattern) -> Pattern:
        return Applied(BinaryOp, (self, other), "mul")

    def __truediv__(self, other: Pattern) -> Pattern:
        return Applied(BinaryOp, (self, other), "div")

    def __pow__(self, other: Pattern) -> Pattern:
        return Applied(BinaryOp, (self, other), "pow")


@dataclass(frozen=True)
class _Either(Pattern):
    first: Pattern
    second: Pattern

    def ways(self, value: SSAValue, known: Match) -> Iterator[Match]:
        yield from self.first.ways(value, known)
        yield from self.second.ways(value, known)


@dataclass(frozen=True)
class Capture(Pattern):
    """A value that gets a name: any, or one that `pattern` describes."""

    name: str
    pattern: Pattern | None = None

    def ways(self, value: SSAValue, known: Match) -> Iterator[Match]:
        if self.name in known.values:
            yield from [known] if same_value(known[self.name], value) else []
            return
        for match in [known] if self.pattern is None else self.pattern.ways(value, known):
            yield replace(match, values={**match.values, self.name: value})


@dataclass(frozen=True)
class Number(Pattern):
    """A constant of floats that are all equal: any, which gets a name, or one equal to `number`, up to the rounding of
    its type and of a literal where `number` is a float."""

    number: str | float | Callable[[Match], float]

    def ways(self, value: SSAValue, known: Match) -> Iterator[Match]:
        if isinstance(self.number, str):
            yield from Capture(self.number).ways(value, known) if scalar_of(value) is not None else ()
        elif is_number(value, self.number(known) if callable(self.number) else self.number):
            yield known


@dataclass(frozen=True)
class Applied(Pattern):
    """An operator of a class, and of a kind if it has kinds, applied to operands; where some are numbers, another one
    has the shape of the result."""

    operator: type[Operator]
    operands: tuple[Pattern, ...]
    kind: str | None = None

    def ways(self, value: SSAValue, known: Match) -> Iterator[Match]:
        op = value.owner
        if not isinstance(op, self.operator) or self.kind != kind_of(op):
            return
        orders = [op.operands, op.operands[::-1]] if self.kind in _COMMUTATIVE else [op.operands]
        for operands in orders:
            others = [x for x, each in zip(operands, self.operands, strict=True) if not isinstance(each, Number)]
            if len(others) == len(operands) or any(shape_of(x) == op.shape for x in others):
                yield from _all(self.operands, operands, known)


_COMMUTATIVE = ("add", "mul")


def unary(kind: str, x: Pattern) -> Pattern:
    """A `graph.unary`."""
    return Applied(UnaryOp, (x,), kind)


@dataclass(frozen=True)
class Reduced(Pattern):
    """A `graph.reduction` that keeps its dimensions, over those of all other reductions of the pattern."""

    kind: str
    x: Pattern

    def ways(self, value: SSAValue, known: Match) -> Iterator[Match]:
        op = value.owner
        if not isinstance(op, ReductionOp) or op.kind.data != self.kind or not op.keep.value.data:
            return
        dims = tuple(sorted(int_list(op.properties, "dims")))
        if known.dims in (None, dims):
            yield from self.x.ways(op.x, replace(known, dims=dims))


@dataclass(frozen=True)
class Product(Pattern):
    """Factors in any order, in whichever order they are multiplied."""

    factors: tuple[Pattern, ...]

    def ways(self, value: SSAValue, known: Match) -> Iterator[Match]:
        found = factors(value)
        for order in permutations(found) if len(found) == len(self.factors) else ():
            yield from _all(self.factors, order, known)


def _all(patterns: Sequence[Pattern], values: Sequence[SSAValue], known: Match) -> Iterator[Match]:
    if not patterns:
        yield known
        return
    for match in patterns[0].ways(values[0], known):
        yield from _all(patterns[1:], values[1:], match)


# Parts of patterns that several operators have.


def mean(x: Pattern, like: str) -> Pattern:
    """The mean of rows, or their sum divided by (or multiplied with the reciprocal of) the number of its terms; `like`
    names a value of the same shape as x."""

    def terms(match: Match) -> float:
        return float(prod(shape_of(match[like])[d] for d in match.dims or ()))

    total = Reduced("add", x)
    return Reduced("mean", x) | total / Number(terms) | total * Number(lambda match: 1 / terms(match))


def root(x: Pattern) -> Pattern:
    """The square root."""
    return unary("sqrt", x) | x ** Number(0.5)


def inverse_root(x: Pattern) -> Pattern:
    """The reciprocal square root."""
    direct = unary("rsqrt", x) | x ** Number(-0.5)
    return direct | unary("reciprocal", root(x)) | Number(1.0) / root(x)


def square(x: Pattern) -> Pattern:
    """The square."""
    return x * x | x ** Number(2)


# Questions about values.


def scalar_of(value: SSAValue) -> float | None:
    """The number that a constant holds in each of its elements; None for any other value."""
    constant = constant_of(value)
    if constant is None or constant.size == 0 or not is_float_dtype(constant.dtype):
        return None
    first = constant.reshape(-1)[0]
    return float(first) if bool(np.all(constant == first)) else None


def is_number(value: SSAValue, number: float) -> bool:
    """Whether a value is a constant equal to `number`, up to the rounding of its type and of a literal if that is a
    float."""
    found, constant = scalar_of(value), constant_of(value)
    if found is None or constant is None:
        return False
    return isclose(found, number, rel_tol=0.0 if isinstance(number, int) else 4 * epsilon(constant.dtype))


def kind_of(op: Operation) -> str | None:
    """The kind of a `graph.unary` or `graph.binary`."""
    return op.kind.data if isinstance(op, UnaryOp | BinaryOp) else None


def factors(value: SSAValue) -> list[SSAValue]:
    """What is multiplied to give a value, through products that nothing else uses."""
    op = value.owner
    if not isinstance(op, BinaryOp) or op.kind.data != "mul":
        return [value]
    return [f for o in op.operands for f in (factors(o) if o.has_one_use() else [o])]


def same_value(a: SSAValue, b: SSAValue) -> bool:
    """Whether two values are one, or reshapes of one to the same shape."""
    first, second = a.owner, b.owner
    reshaped = isinstance(first, ReshapeOp) and isinstance(second, ReshapeOp) and first.x is second.x
    return a is b or (reshaped and a.type == b.type)
