"""Indices as sums over digits of variables: what cost models ask of an index, in a fraction of the time of `Expr`.

A *position* is `constant + Σ coefficient * factor`. A factor is a digit of a variable, `(v // weight) % size`, or,
where no split into digits gives one, a quotient or a remainder as it stands. A division splits the digits that it
divides, for all positions over the same variable:

    t = Variable("t", 128).position()
    (t // 8) * 8 + t % 8  # t again: its digits are now of 8 and of 16
    (t + 3) // 8          # a quotient: 3 is carried into the higher digit, for some values

Splitting a variable of which the digit is no divisor rounds the higher digit's size up. Unlike `Expr`, a position is no
proof: bounds are those of the factors taken one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import gcd
from typing import Any
from weakref import WeakValueDictionary

from treadle.index.expr import Div, Expr, Mod, Var


class Variable:
    """What takes the values 0 to `size - 1`: the iterations of a loop, the blocks of a grid, the threads of a block.

    is_data: its values come from memory; is_unbounded: the size is not known, but some large number
    """

    __slots__ = ("is_data", "is_unbounded", "name", "size", "whole")

    def __init__(self, name: str, size: int, *, is_data: bool = False, is_unbounded: bool = False):
        self.name, self.size, self.is_data, self.is_unbounded = name, max(1, size), is_data, is_unbounded
        self.whole = Digit(self, 1, self.size)

    def position(self) -> Position:
        """The variable itself."""
        return Position(0, {self.whole: 1}) if self.size > 1 or self.is_data else Position(0, {})

    def fix(self, size: int) -> None:
        """Says how many values it takes, where that was not known before."""
        self.size = max(1, size)
        for digit in self.whole.leaves():
            if digit.weight * digit.size > self.size:
                digit.size = -(-self.size // digit.weight)

    def digits(self) -> list[Digit]:
        """The digits that it is split to so far, the lowest first."""
        return list(self.whole.leaves())

    def __repr__(self) -> str:
        return self.name


class Digit:
    """`(variable // weight) % size`; the highest digit takes no remainder."""

    __slots__ = ("high", "low", "size", "variable", "weight")

    def __init__(self, variable: Variable, weight: int, size: int):
        self.variable, self.weight, self.size = variable, weight, size
        self.low: Digit | None = None
        self.high: Digit | None = None

    def split(self, size: int) -> None:
        """Splits it in a lower digit of some size, and a higher one."""
        self.low = Digit(self.variable, self.weight, size)
        self.high = Digit(self.variable, self.weight * size, -(-self.size // size))

    def has_part(self, size: int) -> bool:
        """Whether it can be split there: a digit that is not the highest one only at a divisor."""
        return 1 < size < self.size and (self.size % size == 0 or self.weight * self.size >= self.variable.size)

    def leaves(self) -> Iterator[Digit]:
        """What it is split to, the lowest first; itself unless it is."""
        if self.low is None or self.high is None:
            yield self
        else:
            yield from self.low.leaves()
            yield from self.high.leaves()

    @property
    def bounds(self) -> tuple[int, int]:
        """Its least and its largest value."""
        return 0, self.size - 1

    @property
    def overhangs(self) -> bool:
        """Whether it is the highest one, and not all of its values occur with all those of the lower ones."""
        return self.weight * self.size > self.variable.size

    def at(self, values: Mapping[Variable, Any]) -> Any:
        """Its value, where variables have some values; those that have none are 0."""
        value = values.get(self.variable, 0)
        value = value // self.weight if self.weight > 1 else value
        return value % self.size if self.weight * self.size < self.variable.size else value

    def __repr__(self) -> str:
        return f"{self.variable}[{self.weight}:{self.size}]"


class Quotient:
    """`of // divisor` where the position is no sum of digits of it; `rest`: the remainder instead."""

    __slots__ = ("__weakref__", "divisor", "of", "rest")
    low: Digit | None = None
    high: Digit | None = None

    def __init__(self, of: Position, divisor: int, *, rest: bool):
        self.of, self.divisor, self.rest = of, divisor, rest

    @staticmethod
    def both(of: Position, divisor: int) -> tuple[Quotient, Quotient]:
        """The quotient and the remainder; those of one position are the same objects each time."""
        key = frozenset(of.terms.items()), of.constant, divisor
        found = _quotients.get(key), _remainders.get(key)
        quotient = found[0] or Quotient(of, divisor, rest=False)
        remainder = found[1] or Quotient(of, divisor, rest=True)
        _quotients[key], _remainders[key] = quotient, remainder
        return quotient, remainder

    @property
    def bounds(self) -> tuple[int, int]:
        """Its least and its largest value."""
        lo, hi = self.of.bounds
        return (0, self.divisor - 1) if self.rest else (lo // self.divisor, hi // self.divisor)

    def at(self, values: Mapping[Variable, Any]) -> Any:
        """Its value, where variables have some values; those that have none are 0."""
        value = self.of.at(values)
        return value % self.divisor if self.rest else value // self.divisor

    def __repr__(self) -> str:
        return f"({self.of}) {'%' if self.rest else '//'} {self.divisor}"


Factor = Digit | Quotient
_Key = tuple[frozenset[tuple[Factor, int]], int, int]
_quotients: WeakValueDictionary[_Key, Quotient] = WeakValueDictionary()
_remainders: WeakValueDictionary[_Key, Quotient] = WeakValueDictionary()


class Position:
    """`constant + Σ coefficient * factor`; nobody changes it."""

    __slots__ = ("_division", "_is_linear", "_terms", "constant")

    def __init__(self, constant: int, terms: dict[Factor, int]):
        self.constant, self._terms = constant, terms
        self._division: tuple[int, Position, Position] | None = None
        self._is_linear: bool | None = None

    @property
    def terms(self) -> dict[Factor, int]:
        """The coefficients of factors; digits that were split since are replaced by what they are split to."""
        for factor in self._terms:
            if factor.low is not None:
                break
        else:
            return self._terms
        found: dict[Factor, int] = {}
        for factor, k in self._terms.items():
            if isinstance(factor, Digit):
                base = factor.weight
                for leaf in factor.leaves():
                    found[leaf] = found.get(leaf, 0) + k * (leaf.weight // base)
            else:
                found[factor] = found.get(factor, 0) + k
        self._terms = found
        return found

    def __add__(self, other: Position | int) -> Position:
        if isinstance(other, int):
            return Position(self.constant + other, self._terms) if other else self
        if not other._terms:
            return Position(self.constant + other.constant, self._terms) if other.constant else self
        terms = dict(self.terms)
        for factor, k in other.terms.items():
            total = terms.get(factor, 0) + k
            if total:
                terms[factor] = total
            else:
                del terms[factor]
        found = Position(self.constant + other.constant, terms)
        for factor in other.terms:
            if isinstance(factor, Quotient):
                return found._recombined()
        return found

    def _recombined(self) -> Position:
        """The same with `k * c * (x // c) + k * (x % c)` as `k * x`."""
        for factor, k in self._terms.items():
            if isinstance(factor, Quotient) and factor.rest:
                quotient, _ = Quotient.both(factor.of, factor.divisor)
                if self._terms.get(quotient) == k * factor.divisor:
                    rest = {f: each for f, each in self._terms.items() if f is not factor and f is not quotient}
                    return Position(self.constant, rest) + factor.of * k
        return self

    __radd__ = __add__

    def __mul__(self, other: Position | int) -> Position:
        if not isinstance(other, int):
            if other._terms and self._terms:
                return Position(0, {Quotient(self + other, 1, rest=False): 1})
            self, other = (self, other.constant) if not other._terms else (other, self.constant)
        if other == 1:
            return self
        terms = {factor: k * other for factor, k in self._terms.items()} if other else {}
        return Position(self.constant * other, terms)

    __rmul__ = __mul__

    def __sub__(self, other: Position | int) -> Position:
        return self + (-other if isinstance(other, int) else other * -1)

    def __rsub__(self, other: int) -> Position:
        return self * -1 + other

    def __floordiv__(self, divisor: int) -> Position:
        return self._divided(divisor)[0]

    def __mod__(self, divisor: int) -> Position:
        return self._divided(divisor)[1]

    def _divided(self, c: int) -> tuple[Position, Position]:
        """Quotient and remainder; those that were asked for last are kept, if they are sums of digits."""
        kept = self._division
        if kept is not None and kept[0] == c:
            return kept[1], kept[2]
        found = self._newly_divided(c)
        if found[0].is_linear and found[1].is_linear:
            self._division = c, *found
        return found

    def _newly_divided(self, c: int) -> tuple[Position, Position]:
        if c == 1:
            return self, Position(0, {})
        whole, rest = dict[Factor, int](), dict[Factor, int]()
        for factor, k in self.terms.items():
            if k % c:
                rest[factor] = k
            else:
                whole[factor] = k // c
        carried, constant = divmod(self.constant, c)
        lo, hi = _bounds(constant, rest)
        if lo // c == hi // c:
            carried += lo // c
            return Position(carried, whole), Position(constant - lo // c * c, rest)
        if self._split(rest, constant, c):
            return self._newly_divided(c)
        g, high, low = _common(rest, constant, c)
        if g > 1:
            quotient, remainder = high._divided(c // g)
            return Position(carried, whole) + quotient, remainder * g + low
        quotient, remainder = Quotient.both(Position(constant, rest), c)
        return Position(carried, {**whole, quotient: 1}), Position(0, {remainder: 1})

    @staticmethod
    def _split(rest: Mapping[Factor, int], constant: int, c: int) -> bool:
        """Splits the digit that a division by c goes through, if that leaves no carry."""
        for factor, k in rest.items():
            if not isinstance(factor, Digit) or k <= 0 or c % k or not factor.has_part(c // k):
                continue
            lo, hi = _bounds(constant, {other: step for other, step in rest.items() if other is not factor})
            if lo >= 0 and hi < k:
                factor.split(c // k)
                return True
        return False

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the largest value, as far as factors do not depend on one another, and are not the digits of a
        whole variable."""
        lo, hi = _bounds(self.constant, self.terms)
        for factor, k in self.terms.items():
            if isinstance(factor, Digit) and factor.overhangs:
                beyond = self._beyond(factor, k)
                lo, hi = (lo - beyond, hi) if k < 0 else (lo, hi - beyond)
        return lo, hi

    def _beyond(self, highest: Digit, k: int) -> int:
        """By how much the sum of a variable's digits, from the highest one on as far as they have steps of one number,
        exceeds that of the variable's last value, if each is as large as it may be."""
        weight, step = highest.weight, k
        for digit in reversed(highest.variable.digits()[:-1]):
            if self.terms.get(digit, 0) * digit.size != step:
                break
            weight, step = digit.weight, step // digit.size
        last = highest.variable.size - 1
        return (highest.weight * highest.size // weight - 1 - last // weight) * step

    @property
    def as_int(self) -> int | None:
        """The value of a constant."""
        return None if self._terms else self.constant

    @property
    def variables(self) -> set[Variable]:
        """What it depends on."""
        found: set[Variable] = set()
        for factor in self._terms:
            if isinstance(factor, Digit):
                found.add(factor.variable)
            else:
                found |= factor.of.variables
        return found

    @property
    def is_data(self) -> bool:
        """Whether it is computed from memory."""
        return any(variable.is_data for variable in self.variables)

    @property
    def is_unbounded(self) -> bool:
        """Whether its bounds are not known."""
        return any(variable.is_unbounded for variable in self.variables)

    @property
    def is_linear(self) -> bool:
        """Whether it is a sum of digits alone."""
        if self._is_linear is None:
            self._is_linear = not any(factor.__class__ is Quotient for factor in self._terms)
        return self._is_linear

    @property
    def alignment(self) -> int:
        """What each of its values is a multiple of; 0 for the constant 0."""
        return gcd(self.constant, *self._terms.values())

    def at(self, values: Mapping[Variable, Any]) -> Any:
        """The value where variables have some values (numbers or arrays); those that have none are 0."""
        total: Any = self.constant
        for factor, k in self._terms.items():
            total = total + factor.at(values) * k
        return total

    def depends(self, digit: Digit) -> bool:
        """Whether a digit moves it."""
        terms = self.terms
        if digit in terms or self.is_linear:
            return digit in terms
        return any(isinstance(factor, Quotient) and factor.of.depends(digit) for factor in terms)

    def stride(self, digit: Digit) -> int:
        """How far one step of a digit moves it: in quotients and remainders, the first step from 0."""
        terms = self.terms
        total = terms.get(digit, 0)
        if self.is_linear:
            return total
        for factor, k in terms.items():
            if isinstance(factor, Quotient) and factor.of.depends(digit):
                one = {digit.variable: digit.weight}
                total += k * (factor.at(one) - factor.at({}))
        return total

    def steps(self, digits: Iterable[Digit]) -> list[tuple[int, int]]:
        """(number, distance) of the steps of some digits of a variable, the lowest first; neighbours are one as far as
        they move it as one."""
        found: list[tuple[int, int]] = []
        begin = 0
        for digit in digits:
            own = self._steps(digit)
            if begin and len(own) == 1 and own[0][1] == found[-1][1] * found[-1][0]:
                end = min(digit.variable.size, digit.weight * digit.size)
                found[-1] = -(-end // begin), found[-1][1]
                continue
            found += own
            begin = digit.weight if len(own) == 1 else 0
        return found

    def _steps(self, digit: Digit) -> list[tuple[int, int]]:
        """(number, distance) of the steps of a digit, the shortest first: one kind for each number of values after
        which a quotient of it has gone round."""
        ends = sorted(end for end in self._periods(digit) if 1 < end < digit.size)
        if not ends:
            return [(digit.size, self.stride(digit))]
        found: list[tuple[int, int]] = []
        begin, zero = 1, self.at({})
        for end in [*ends, digit.size]:
            if end % begin and end != digit.size:
                continue
            count = -(-end // begin)
            found.append((count, self.at({digit.variable: digit.weight * begin}) - zero))
            begin = end
        return found

    def _periods(self, digit: Digit) -> set[int]:
        """The numbers of values of a digit after which quotients and remainders of it go round."""
        found: set[int] = set()
        for factor in () if self.is_linear else self.terms:
            if isinstance(factor, Quotient):
                k = factor.of.terms.get(digit, 0)
                if k:
                    found.add(factor.divisor // gcd(k, factor.divisor))
                found |= factor.of._periods(digit)
        return found

    def is_linear_in(self, digit: Digit) -> bool:
        """Whether each step of a digit moves it as far."""
        return self.is_linear or not any(
            isinstance(factor, Quotient) and factor.of.depends(digit) for factor in self.terms
        )

    def renewed(self) -> Position:
        """The same, whose quotients and remainders are taken again: since digits were split, they may be sums."""
        if self.is_linear:
            return self
        total = Position(self.constant, {factor: k for factor, k in self.terms.items() if isinstance(factor, Digit)})
        for factor, k in self.terms.items():
            if isinstance(factor, Quotient):
                quotient, rest = factor.of.renewed()._divided(factor.divisor)
                total = total + (rest if factor.rest else quotient) * k
        return total

    def fixed(self, digits: Iterable[Digit], value: int) -> Position:
        """The position where some digits of a variable, in which it is linear, are those of a value."""
        terms, constant = dict(self.terms), self.constant
        for digit in digits:
            k = terms.pop(digit, 0)
            constant += k * digit.at({digit.variable: value}) if k else 0
        return Position(constant, terms)

    def __repr__(self) -> str:
        return " + ".join([*(f"{k} * {factor}" for factor, k in self.terms.items()), str(self.constant)])


def _bounds(constant: int, terms: Mapping[Factor, int]) -> tuple[int, int]:
    lo = hi = constant
    for factor, k in terms.items():
        least, most = factor.bounds
        if k < 0:
            least, most = most, least
        lo += least * k
        hi += most * k
    return lo, hi


def _common(rest: Mapping[Factor, int], constant: int, c: int) -> tuple[int, Position, Position]:
    """(g, high, low): the terms as g * high + low with 0 <= low < g, for the largest such divisor g of c; 1 without."""
    for g in sorted({gcd(k, c) for k in rest.values()} - {1, c}, reverse=True):
        low = {factor: k for factor, k in rest.items() if k % g}
        lo, hi = _bounds(constant, low)
        if lo // g == hi // g:
            shift = lo // g
            high = {factor: k // g for factor, k in rest.items() if not k % g}
            return g, Position(shift, high), Position(constant - shift * g, low)
    return 1, Position(0, {}), Position(0, {})


_ZERO = Position(0, {})


def position_of(e: Expr, known: Mapping[Any, Position]) -> Position:
    """An expression, given the positions of its variables by their keys; those that are not given are 0."""
    total = Position(e.constant, {})
    for monomial, k in e.terms:
        product = Position(k, {})
        for atom in monomial:
            if isinstance(atom, Var):
                factor = known.get(atom.key, _ZERO)
            elif isinstance(atom, Div):
                factor = position_of(atom.arg, known) // atom.divisor
            else:
                assert isinstance(atom, Mod)
                factor = position_of(atom.arg, known) % atom.divisor
            product = product * factor
        total = total + product
    return total


def row_major(indices: Iterable[Position], shape: Iterable[int]) -> Position:
    """The place of an element of a row-major array."""
    total = Position(0, {})
    for index, extent in zip(indices, shape, strict=True):
        total = total * extent + index
    return total
