"""Index maps as sums of mixed-radix digits of one row-major position, to prove them one-to-one and onto.

A *digit* of a position P is `(P // weight) % size`.  Reshapes, transposes and reversals compute every input
index from digits of the output position; written as one sum `constant + Σ coefficient * digit`, the input
position is a bijection of the output position exactly when the digits partition P and the coefficients,
sorted, are again the weights of a mixed-radix number (a negative coefficient is a reversed digit).  Pure
values: no IR.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from treadle.index.expr import Atom, Div, Expr, Mod, Var, const


@dataclass(frozen=True, order=True)
class Digit:
    """`(P // weight) % size` of a position P."""

    weight: int
    size: int

    @property
    def end(self) -> int:
        """The weight of the next digit."""
        return self.weight * self.size


@dataclass(frozen=True)
class DigitSum:
    """`constant + Σ coefficient * digit`; digits are disjoint, in order of their weights, coefficients
    nonzero.
    """

    constant: int
    terms: tuple[tuple[Digit, int], ...]

    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest value, inclusive."""
        ends = [c * (d.size - 1) for d, c in self.terms]
        return self.constant + sum(min(e, 0) for e in ends), self.constant + sum(max(e, 0) for e in ends)


@dataclass(frozen=True)
class PermutedDigit:
    """A digit of the source position and its weight in the target position; `flipped` counts it down."""

    digit: Digit
    weight: int
    flipped: bool


def digit_sum(constant: int, terms: Sequence[tuple[Digit, int]]) -> DigitSum | None:
    """The canonical sum: overlapping digits are split at each other's ends, adjacent ones merged.

    None where the ends do not divide each other, so that the digits have no common refinement.
    """
    points = sorted({p for d, _ in terms for p in (d.weight, d.end)})
    total: dict[Digit, int] = {}
    for digit, coefficient in terms:
        inside = [p for p in points if digit.weight <= p <= digit.end]
        for low, high in pairwise(inside):
            if high % low or low % digit.weight:
                return None
            part = Digit(low, high // low)
            total[part] = total.get(part, 0) + coefficient * (low // digit.weight)
    merged: list[tuple[Digit, int]] = []
    for digit, coefficient in sorted(total.items()):
        if not coefficient or digit.size == 1:
            continue
        last = merged[-1] if merged else None
        if last is not None and last[0].end == digit.weight and last[1] * last[0].size == coefficient:
            merged[-1] = (Digit(last[0].weight, last[0].size * digit.size), last[1])
        else:
            merged.append((digit, coefficient))
    return DigitSum(constant, tuple(merged))


def divided(value: DigitSum, c: int) -> tuple[DigitSum, DigitSum] | None:
    """Quotient and remainder of floor division by c > 0; None where c splits a digit."""
    high: list[tuple[Digit, int]] = []
    low: list[tuple[Digit, int]] = []
    for digit, k in value.terms:
        step = abs(k)
        if k % c == 0:
            high.append((digit, k // c))
        elif c % step == 0 and digit.size % (c // step) == 0:
            size, sign = c // step, k // step
            low.append((Digit(digit.weight, size), k))
            high.append((Digit(digit.weight * size, digit.size // size), sign))
        else:
            low.append((digit, k))
    rest = DigitSum(value.constant, tuple(low))
    smallest, largest = rest.bounds()
    if smallest // c != largest // c:
        return None
    shift = smallest // c
    quotient, remainder = digit_sum(shift, high), digit_sum(value.constant - shift * c, low)
    return None if quotient is None or remainder is None else (quotient, remainder)


def digits_of(expr: Expr, variables: Mapping[Hashable, DigitSum]) -> DigitSum | None:
    """An index expression as a sum of digits; None where it is none, or has a variable that is not given."""
    constant, terms = expr.constant, list[tuple[Digit, int]]()
    for monomial, coefficient in expr.terms:
        value = _atom_digits(monomial[0], variables) if len(monomial) == 1 else None
        if value is None:
            return None
        constant += coefficient * value.constant
        terms += [(digit, coefficient * k) for digit, k in value.terms]
    return digit_sum(constant, terms)


def _atom_digits(atom: Atom, variables: Mapping[Hashable, DigitSum]) -> DigitSum | None:
    if isinstance(atom, Var):
        return variables.get(atom.key)
    if not isinstance(atom, Div | Mod):
        return None
    argument = digits_of(atom.arg, variables)
    parts = None if argument is None else divided(argument, atom.divisor)
    if parts is None:
        return None
    return parts[0] if isinstance(atom, Div) else parts[1]


def as_permutation(value: DigitSum, volume: int) -> list[PermutedDigit] | None:
    """How `value` permutes the digits of P in [0, volume), if it is a bijection of [0, volume); else None."""
    permuted: list[PermutedDigit] = []
    constant = value.constant
    for digit, k in value.terms:
        permuted.append(PermutedDigit(digit, abs(k), k < 0))
        constant += min(k, 0) * (digit.size - 1)
    if constant:
        return None
    sources = [(p.digit.weight, p.digit.size) for p in permuted]
    targets = [(p.weight, p.digit.size) for p in permuted]
    return permuted if _tiles(sources, volume) and _tiles(targets, volume) else None


def _tiles(digits: Sequence[tuple[int, int]], volume: int) -> bool:
    """Whether digits of these weights and sizes are the digits of a mixed-radix number below `volume`."""
    end = 1
    for weight, size in sorted(digits):
        if weight != end:
            return False
        end *= size
    return end == volume


def strides(shape: Sequence[int]) -> list[int]:
    """Row-major strides in elements."""
    result = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        result[d] = result[d + 1] * shape[d + 1]
    return result


def index_digits(shape: Sequence[int]) -> list[DigitSum]:
    """Each index of a tensor as a digit of its row-major position."""
    return [
        DigitSum(0, ((Digit(stride, extent), 1),)) if extent > 1 else DigitSum(0, ())
        for stride, extent in zip(strides(shape), shape, strict=True)
    ]


def inverted(
    permuted: Sequence[PermutedDigit], shape: Sequence[int], target: Sequence[Expr], onto: Sequence[int]
) -> list[Expr]:
    """The source indices (of a tensor of `shape`) whose image is at the indices `target` of a tensor of shape
    `onto`.
    """
    position = const(0)
    for index, stride, extent in zip(target, strides(onto), onto, strict=True):
        position = position + index * stride if extent > 1 else position
    source = const(0)
    for p in permuted:
        value = position // p.weight % p.digit.size
        source = source + (p.digit.size - 1 - value if p.flipped else value) * p.digit.weight
    return [source // stride % extent for stride, extent in zip(strides(shape), shape, strict=True)]
