"""Expressions as linear functions of one variable, and their divisors."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import gcd

from treadle.index.atom import Monomial, Var
from treadle.index.expr import Expr, const, floordiv, sum_of, var, variables_of, without


def split_linear(e: Expr, key: Hashable) -> tuple[Expr, Expr] | None:
    """(coefficient, rest) with e = coefficient * key + rest, or None where e is not affine in key."""
    coefficient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, k in e.terms:
        holders = [a for a in monomial if any(v.key == key for v in variables_of(a))]
        if len(holders) > 1 or (holders and not isinstance(holders[0], Var)):
            return None
        if holders:
            coefficient[without(monomial, holders[0])] = k
        else:
            rest[monomial] = k
    constant = coefficient.pop((), 0)
    return sum_of(coefficient, constant), sum_of(rest, e.constant)


def stride_along(e: Expr, key: Hashable) -> int | None:
    """How far e advances when the variable advances by one; None where that is not constant."""
    split = split_linear(e, key)
    return None if split is None else split[0].as_int()


def depends_on(e: Expr, key: Hashable) -> bool:
    """Whether the variable occurs in e."""
    return any(v.key == key for v in e.vars())


def function_of(key: Hashable, arguments: Iterable[Expr]) -> Expr:
    """An unknown function of some expressions, named `key`: it is affine in none of their variables. It depends on each
    variable, even one that would cancel in the sum of the expressions (`max(i, -i)`).
    """
    unknown = var(key, None, None)
    terms: dict[Monomial, int] = {(v,): 1 for argument in arguments for v in argument.vars()}
    if not terms:
        return unknown
    ((own, _),) = unknown.terms
    terms[own] = terms.get(own, 0) + 1
    return floordiv(sum_of(terms, 0), 2)


def alignment(e: Expr) -> int:
    """The largest known divisor of e: the gcd of its coefficients; 0 for the constant 0."""
    return gcd(e.constant, *(k for _, k in e.terms))


def always_less(a: Expr | int, b: Expr | int) -> bool | None:
    """Whether a < b for all values in range; None where the ranges do not decide it."""
    difference = (a if isinstance(a, Expr) else const(a)) - b
    lo, hi = difference.range()
    if hi is not None and hi < 0:
        return True
    return False if lo is not None and lo >= 0 else None
