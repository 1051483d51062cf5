"""Addresses as sums over digits: the variables split where an address takes quotients and remainders of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeAlias

from treadle.index.algebra import divisor_chain, divisors_of, stride_along
from treadle.index.expr import Expr, Var, const, var

Digits: TypeAlias = Sequence[tuple[float, int]]
"""(extent, stride) of each digit of a variable, the lowest first."""


def digits_of(address: Expr, steps: Mapping[Hashable, int]) -> dict[Hashable, list[tuple[float, int]]]:
    """(extent, distance) of each variable's digits, the lowest first. `steps` has the steps of loops."""
    found = signed_digits_of(address, steps)
    return {variable: [(size, abs(step)) for size, step in digits] for variable, digits in found.items()}


def signed_digits_of(address: Expr, steps: Mapping[Hashable, int]) -> dict[Hashable, list[tuple[float, int]]]:
    """The same with strides, which are negative where an address falls.

    Where the address is not linear in a digit, the stride is the difference of the addresses for 0 and 1.
    """
    flat, digits = _in_digits(address, steps)
    return {variable: [(float(size), _stride(flat, key)) for key, size in keys] for variable, keys in digits.items()}


def is_sum_of_digits(address: Expr) -> bool:
    """Whether an address is linear in all digits of its variables."""
    flat, digits = _in_digits(address, {})
    return all(stride_along(flat, key) is not None for keys in digits.values() for key, _ in keys)


def _in_digits(address: Expr, steps: Mapping[Hashable, int]) -> tuple[Expr, dict[Hashable, list[tuple[Hashable, int]]]]:
    """An address as an expression of the digits of its variables; the digits' keys and extents, the lowest first."""
    counted = address.substitute({v.key: _counter_of(v, steps) for v in address.vars() if None not in v.range})
    divisors = divisors_of([counted])
    replacement: dict[Hashable, Expr] = {}
    digits: dict[Hashable, list[tuple[Hashable, int]]] = {}
    for v in counted.vars():
        lo, hi = v.range
        if lo is None or hi is None:
            continue
        ends = [end for end in divisor_chain(divisors.get(v.key, ())) if end <= hi]
        total, weight, keys = const(0), 1, list[tuple[Hashable, int]]()
        for n, end in enumerate([*ends, None]):
            size = -(-(hi + 1) // weight) if end is None else end // weight
            total = total + var((v.key, n), 0, max(size - 1, 0)) * weight
            keys.append(((v.key, n), size))
            weight = end or weight
        replacement[v.key], digits[v.key] = total, keys
    return counted.substitute(replacement), digits


def _counter_of(v: Var, steps: Mapping[Hashable, int]) -> Expr:
    """A variable in terms of one of the same key that counts its values from 0."""
    lo, hi = v.range
    assert lo is not None
    assert hi is not None
    step = steps.get(v.key, 1)
    return var(v.key, 0, (hi - lo) // step) * step + lo


def _stride(e: Expr, key: Hashable) -> int:
    known = stride_along(e, key)
    if known is not None:
        return known
    at = {v.key: v.range[0] or 0 for v in e.vars()}
    return e.evaluate({**at, key: 1}) - e.evaluate({**at, key: 0})


__all__ = ["Digits", "digits_of", "is_sum_of_digits", "signed_digits_of"]
