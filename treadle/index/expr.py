"""Symbolic integers in a range-aware canonical form, for all index arithmetic.

An `Expr` is a polynomial with integer coefficients over atoms: variables with a known range, floor
divisions and remainders by positive constants.  Every operation returns the canonical form, so that two
spellings of one address usually compare equal:

    t = var("t", 0, 127)
    (t // 8) * 8 + t % 8 == t          # quotient and remainder recombine
    (t % 12) // 4 == (t // 4) % 3      # one orientation of nested division
    t % 128 == t                       # ranges decide

The rules hold for floor division on all integers (negative numerators included).  Nothing here knows
xDSL: a variable's key is any hashable value.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Hashable, Iterator, Mapping
from math import gcd
from typing import Any, TypeAlias

# Ranges of integers: inclusive bounds, open where unknown.

Range: TypeAlias = tuple[int | None, int | None]
"""Inclusive bounds (lo, hi); None is unbounded on that side."""


UNBOUNDED: Range = (None, None)
EMPTY: Range = (0, -1)


def is_inside(a: Range, b: Range) -> bool:
    """Whether all of a is in b."""
    above = b[0] is None or (a[0] is not None and a[0] >= b[0])
    return above and (b[1] is None or (a[1] is not None and a[1] <= b[1]))


def is_empty(a: Range) -> bool:
    """Whether a is empty."""
    return a[0] is not None and a[1] is not None and a[0] > a[1]


def range_product(a: Range, b: Range) -> Range:
    """Bounds of x * y for x in a, y in b."""
    if a == (0, 0) or b == (0, 0):
        return (0, 0)
    if None not in a and None not in b:
        products = [x * y for x in a for y in b if x is not None and y is not None]
        return min(products), max(products)
    (alo, ahi), (blo, bhi) = a, b
    if ahi is not None and ahi <= 0:
        return _negated(range_product(_negated(a), b))
    if bhi is not None and bhi <= 0:
        return _negated(range_product(a, _negated(b)))
    if alo is not None and blo is not None and alo >= 0 and blo >= 0:
        return alo * blo, None if ahi is None or bhi is None else ahi * bhi
    if alo is not None and alo >= 0 and ahi is not None:
        return None if blo is None else ahi * blo, None if bhi is None else ahi * bhi
    if blo is not None and blo >= 0 and bhi is not None:
        return None if alo is None else bhi * alo, None if ahi is None else bhi * ahi
    return None, None


def range_sum(a: Range, b: Range) -> Range:
    """Bounds of x + y for x in a, y in b."""
    return (
        None if a[0] is None or b[0] is None else a[0] + b[0],
        None if a[1] is None or b[1] is None else a[1] + b[1],
    )


def intersection(a: Range, b: Range) -> Range:
    """Bounds of the numbers that are in a and in b."""
    lo = max((x for x in (a[0], b[0]) if x is not None), default=None)
    return lo, min((x for x in (a[1], b[1]) if x is not None), default=None)


def range_min(a: Range, b: Range) -> Range:
    """Bounds of min(x, y) for x in a, y in b."""
    return _lowest(a[0], b[0]), min((x for x in (a[1], b[1]) if x is not None), default=None)


def range_max(a: Range, b: Range) -> Range:
    """Bounds of max(x, y) for x in a, y in b."""
    return max((x for x in (a[0], b[0]) if x is not None), default=None), _highest(a[1], b[1])


def range_union(a: Range, b: Range) -> Range:
    """Bounds of the numbers that are in a or in b."""
    return _lowest(a[0], b[0]), _highest(a[1], b[1])


def range_of_bits(a: Range, b: Range) -> Range:
    """Bounds of x and y, x or y, x exclusive or y, bit by bit, for x in a, y in b."""
    (alo, ahi), (blo, bhi) = a, b
    if alo is None or blo is None or alo < 0 or blo < 0:
        return None, None
    return 0, None if ahi is None or bhi is None else (1 << max(ahi, bhi).bit_length()) - 1


def _lowest(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else min(a, b)


def _highest(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else max(a, b)


def _negated(a: Range) -> Range:
    return None if a[1] is None else -a[1], None if a[0] is None else -a[0]


# The atoms of index expressions: variables, quotients, remainders.
#
# Equal atoms are one object, kept by weak references: they compare by identity, and are freed with the last expression
# over them.

_serial = itertools.count()
_interning = threading.RLock()


def _renew_lock() -> None:
    """In a forked child: a thread of the parent that held the lock does not exist there."""
    global _interning
    _interning = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class Atom:
    """A factor of a monomial.  Equal atoms are one object; the serial number orders them."""

    __slots__ = ("__weakref__", "range", "serial")
    serial: int
    range: Range


class Var(Atom):
    """A variable: `key` names it, `lo` and `hi` bound it inclusively (None: unbounded)."""

    __slots__ = ("hi", "key", "lo")

    def __init__(self, key: Hashable, lo: int | None, hi: int | None) -> None:
        self.key, self.lo, self.hi = key, lo, hi
        self.range = (lo, hi)

    def __str__(self) -> str:
        return str(self.key)


class Div(Atom):
    """Floor division of `arg` by the positive constant `divisor`; build it with `floordiv`.

    `flat` remembers an equal quotient in the form that recombination compares by.
    """

    __slots__ = ("arg", "divisor", "flat")
    flat: Atom | None

    def __init__(self, arg: Expr, divisor: int) -> None:
        self.arg, self.divisor, self.flat = arg, divisor, None
        lo, hi = arg.range()
        self.range = (None if lo is None else lo // divisor, None if hi is None else hi // divisor)

    def __str__(self) -> str:
        return f"(({self.arg}) // {self.divisor})"


class Mod(Atom):
    """Remainder of `arg` in [0, divisor); build it with `mod`."""

    __slots__ = ("arg", "divisor")

    def __init__(self, arg: Expr, divisor: int) -> None:
        self.arg, self.divisor = arg, divisor
        self.range = (0, divisor - 1)

    def __str__(self) -> str:
        return f"(({self.arg}) % {self.divisor})"


Monomial: TypeAlias = tuple[Atom, ...]

_atoms: weakref.WeakValueDictionary[tuple[Hashable, ...], Atom] = weakref.WeakValueDictionary()


def intern(kind: type[Var] | type[Div] | type[Mod], *fields: Hashable) -> Atom:
    """The one atom of this kind with these fields."""
    with _interning:
        atom = _atoms.get((kind, *fields))
        if atom is None:
            atom = kind(*fields)  # pyright: ignore[reportArgumentType, reportCallIssue]
            atom.serial = next(_serial)
            _atoms[(kind, *fields)] = atom
        return atom


def atom_order(atom: Atom) -> int:
    """Sorts the factors of a monomial."""
    return atom.serial


class Expr:
    """An integer polynomial in canonical form: `terms` maps monomials to coefficients, plus `constant`.

    Immutable and hashable; compares equal to an `int` when it is that constant.
    """

    __slots__ = ("_hash", "_range", "constant", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...], constant: int) -> None:
        """Takes terms that are sorted and free of zeros; use `var`, `const` and the operators instead."""
        self.terms, self.constant = terms, constant
        self._hash = hash((terms, constant)) if terms else hash(constant)
        self._range: Range | None = None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return not self.terms and self.constant == other
        if not isinstance(other, Expr):
            return NotImplemented
        return self._hash == other._hash and self.constant == other.constant and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Expr | int) -> Expr:
        other = _expr(other)
        if not other.terms:
            return self if other.constant == 0 else Expr(self.terms, self.constant + other.constant)
        terms = dict(self.terms)
        for monomial, coefficient in other.terms:
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return sum_of(terms, self.constant + other.constant)

    def __mul__(self, other: Expr | int) -> Expr:
        other = _expr(other)
        if not other.terms:
            scale = other.constant
            return Expr(tuple((m, c * scale) for m, c in self.terms) if scale else (), self.constant * scale)
        if not self.terms:
            return other * self.constant
        terms: dict[Monomial, int] = {}
        for (left, a), (right, b) in itertools.product(_all_terms(self), _all_terms(other)):
            monomial = tuple(sorted(left + right, key=atom_order))
            terms[monomial] = terms.get(monomial, 0) + a * b
        constant = terms.pop((), 0)
        return sum_of(terms, constant)

    def __sub__(self, other: Expr | int) -> Expr:
        return self + _expr(other) * -1

    def __rsub__(self, other: int) -> Expr:
        return self * -1 + other

    def __neg__(self) -> Expr:
        return self * -1

    def __floordiv__(self, divisor: int) -> Expr:
        return floordiv(self, divisor)

    def __mod__(self, divisor: int) -> Expr:
        return mod(self, divisor)

    __radd__ = __add__
    __rmul__ = __mul__

    def range(self) -> Range:
        """Inclusive bounds (lo, hi) by interval arithmetic; None where unbounded."""
        if self._range is None:
            lo: int | None = self.constant
            hi: int | None = self.constant
            for monomial, coefficient in self.terms:
                bounds: Range = (coefficient, coefficient)
                for atom in monomial:
                    bounds = range_product(bounds, atom.range)
                lo = None if lo is None or bounds[0] is None else lo + bounds[0]
                hi = None if hi is None or bounds[1] is None else hi + bounds[1]
            self._range = (lo, hi)
        return self._range

    def as_int(self) -> int | None:
        """The value when it is a constant."""
        return None if self.terms else self.constant

    def as_atom(self) -> Atom | None:
        """The atom when the expression is exactly one atom with coefficient 1."""
        if self.constant or len(self.terms) != 1 or self.terms[0][1] != 1 or len(self.terms[0][0]) != 1:
            return None
        return self.terms[0][0][0]

    def vars(self) -> tuple[Var, ...]:
        """All variables, also those inside divisions, each once, in order of creation."""
        found = {a.serial: a for a in _leaves(self)}
        return tuple(found[serial] for serial in sorted(found))

    def substitute(self, replacement: Mapping[Any, Expr]) -> Expr:
        """Replaces variables by key, and simplifies again."""
        if not any(v.key in replacement for v in _leaves(self)):
            return self
        result = const(self.constant)
        for monomial, coefficient in self.terms:
            product = const(coefficient)
            for atom in monomial:
                product = product * _substitute_atom(atom, replacement)
            result = result + product
        return result

    def evaluate(self, values: Mapping[Any, int]) -> int:
        """The value where each variable has the value of its key (KeyError when one is missing)."""
        total = self.constant
        for monomial, coefficient in self.terms:
            for atom in monomial:
                coefficient *= _evaluate_atom(atom, values)
            total += coefficient
        return total

    def __str__(self) -> str:
        parts = [" * ".join([*([str(c)] if c != 1 else []), *(str(a) for a in monomial)]) for monomial, c in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")

    def __repr__(self) -> str:
        return f"Expr({self})"


def var(key: Hashable, lo: int | None, hi: int | None) -> Expr:
    """The variable `key` with lo <= key <= hi (None: unbounded on that side)."""
    return _of_atom(intern(Var, key, lo, hi))


def const(value: int) -> Expr:
    """A constant."""
    return Expr((), value)


def floordiv(e: Expr, c: int) -> Expr:
    """Floor division by a constant c > 0 (ValueError otherwise)."""
    _check_divisor(c)
    if (known := _known_quotient(e, c)) is not None:
        return const(known)
    out = Expr(tuple((m, k // c) for m, k in e.terms if k % c == 0), e.constant // c)
    rest = Expr(tuple(t for t in e.terms if t[1] % c), e.constant % c)
    quotient = _divide_reduced(sum_of(dict(rest.terms), rest.constant), c)
    return sum_of(dict(out.terms), out.constant) + quotient


def mod(e: Expr, c: int) -> Expr:
    """The remainder in [0, c) of division by a constant c > 0 (ValueError otherwise)."""
    _check_divisor(c)
    if (known := _known_quotient(e, c)) is not None:
        return e - known * c
    rest = sum_of({m: k for m, k in e.terms if k % c}, e.constant % c)
    if (known := _known_quotient(rest, c)) is not None:
        return rest - known * c
    inner = rest.as_atom()
    if isinstance(inner, Mod) and inner.divisor % c == 0:
        return mod(inner.arg, c)
    if (split := _split_digit(rest, c)) is not None:
        g, high, low = split
        return mod(high, c // g) * g + low
    return _of_atom(intern(Mod, rest, c))


def _expr(value: Expr | int) -> Expr:
    return value if isinstance(value, Expr) else Expr((), value)


def _of_atom(atom: Atom) -> Expr:
    return Expr((((atom,), 1),), 0)


def _all_terms(e: Expr) -> Iterator[tuple[Monomial, int]]:
    yield from e.terms
    if e.constant:
        yield (), e.constant


def _check_divisor(c: int) -> None:
    if c <= 0:
        raise ValueError(f"division by {c}: the divisor of an index expression is a positive constant")


def _known_quotient(e: Expr, c: int) -> int | None:
    """The quotient by c where the range of e leaves only one."""
    lo, hi = e.range()
    return lo // c if lo is not None and hi is not None and lo // c == hi // c else None


def _divide_reduced(e: Expr, c: int) -> Expr:
    """Floor division where c divides no coefficient of e and 0 <= e.constant < c."""
    if (known := _known_quotient(e, c)) is not None:
        return const(known)
    if (split := _split_digit(e, c)) is not None:
        g, high, _ = split
        return floordiv(high, c // g)
    inner = (e - e.constant).as_atom()
    if isinstance(inner, Div):
        return floordiv(inner.arg + e.constant * inner.divisor, inner.divisor * c)
    if isinstance(inner, Mod) and not e.constant and inner.divisor % c == 0:
        return mod(floordiv(inner.arg, c), inner.divisor // c)
    return _of_atom(intern(Div, e, c))


def _split_digit(e: Expr, c: int) -> tuple[int, Expr, Expr] | None:
    """(g, high, low) with e = g * high + low, g > 1 a divisor of c, and 0 <= low < g."""
    for g in sorted({gcd(k, c) for _, k in e.terms} - {1}, reverse=True):
        low = Expr(tuple(t for t in e.terms if t[1] % g), e.constant)
        shift = _known_quotient(low, g)
        if shift is not None:
            high = {m: k // g for m, k in e.terms if k % g == 0}
            return g, sum_of(high, shift), low - shift * g
    return None


def without(monomial: Monomial, atom: Atom) -> Monomial:
    """The monomial divided by one of its atoms."""
    at = monomial.index(atom)
    return monomial[:at] + monomial[at + 1 :]


def sum_of(terms: dict[Monomial, int], constant: int) -> Expr:
    """The canonical sum: drops zero terms, recombines quotients with remainders, sorts."""
    items = [term for term in terms.items() if term[1]]
    if len(items) < 2:
        return Expr(tuple(items), constant)
    items.sort(key=_term_order)
    plain = Expr(tuple(items), constant)
    for monomial, k in items:
        for atom in monomial:
            if not isinstance(atom, Var):
                folded = _fold_atom(plain, monomial, k, atom)
                if folded is not None:
                    return folded
    return plain


def _term_order(term: tuple[Monomial, int]) -> list[int]:
    return [atom.serial for atom in term[0]]


def _fold_atom(e: Expr, monomial: Monomial, k: int, atom: Atom) -> Expr | None:
    """e with the term k * monomial recombined through `atom`, a quotient or remainder among the monomial's factors."""
    cofactor = without(monomial, atom)
    scale = Expr(((cofactor, k),), 0) if cofactor else const(k)
    if isinstance(atom, Mod):
        return _fold_mod(e, monomial, scale, atom)
    return _fold_div(e, monomial, k, cofactor, atom) if isinstance(atom, Div) else None


def _fold_mod(e: Expr, monomial: Monomial, scale: Expr, atom: Mod) -> Expr | None:
    """s*b*(y // b) + s*(y % b) -> s*y, and s*b*((y // b + r) % d) + s*(y % b) -> s*((y + b*r) % (b*d))."""
    y, b = atom.arg, atom.divisor
    quotient = floordiv(y, b)
    rest = _take(e, scale * quotient * b, monomial)
    if rest is not None:
        return rest + scale * y
    terms = dict(e.terms)
    cofactor, k = scale.terms[0] if scale.terms else ((), scale.constant)
    for other, coefficient in e.terms:
        if coefficient != k * b:
            continue
        digit = next((a for a in other if isinstance(a, Mod)), None)
        if digit is None or without(other, digit) != cofactor:
            continue
        offset = _remove(digit.arg, quotient)
        if offset is not None:
            del terms[other], terms[monomial]
            return sum_of(terms, e.constant) + scale * mod(y + offset * b, b * digit.divisor)
    return None


def _fold_div(e: Expr, monomial: Monomial, k: int, cofactor: Monomial, atom: Div) -> Expr | None:
    """s*x - s*c*(x // c) -> s*(x % c)."""
    if k % atom.divisor:
        return None
    k = -k // atom.divisor
    scale = Expr(((cofactor, k),), 0) if cofactor else const(k)
    rest = _take(e, scale * atom.arg, monomial)
    return None if rest is None else rest + scale * mod(atom.arg, atom.divisor)


def _take(e: Expr, part: Expr, monomial: Monomial) -> Expr | None:
    """e without `monomial` and without `part`, if e has every term of part with its exact coefficient."""
    return _remove(Expr(tuple(t for t in e.terms if t[0] != monomial), e.constant), part)


def _remove(e: Expr, part: Expr) -> Expr | None:
    """e - part, if e has every term of part with its exact coefficient."""
    terms = dict(e.terms)
    spelled = {_flat(m): m for m in terms}
    for wanted, coefficient in part.terms:
        spelling = spelled.pop(_flat(wanted), None)
        if spelling is None or terms.pop(spelling) != coefficient:
            return None
    return sum_of(terms, e.constant - part.constant) if part.terms else None


def _flat(monomial: Monomial) -> Monomial:
    """The monomial with its quotients of quotients in one form, only to compare by."""
    if not any(isinstance(atom, Div) for atom in monomial):
        return monomial
    atoms = [_flat_quotient(atom) if isinstance(atom, Div) else atom for atom in monomial]
    return tuple(sorted(atoms, key=atom_order))


def _flat_quotient(atom: Div) -> Atom:
    """(x // a + r) // b as (x + a*r) // (a*b)."""
    if atom.flat is not None:
        return atom.flat
    arg = atom.arg
    inner = next((m[0] for m, k in arg.terms if k == 1 and len(m) == 1 and isinstance(m[0], Div)), None)
    if not isinstance(inner, Div):
        return atom
    rest = Expr(tuple(t for t in arg.terms if t[0] != (inner,)), arg.constant)
    whole = intern(Div, inner.arg + rest * inner.divisor, atom.divisor * inner.divisor)
    atom.flat = _flat_quotient(whole) if isinstance(whole, Div) else whole
    return atom.flat


def variables_of(atom: Atom) -> Iterator[Var]:
    """The variables inside an atom, some several times."""
    if isinstance(atom, Var):
        yield atom
    if isinstance(atom, Div | Mod):
        yield from _leaves(atom.arg)


def _leaves(e: Expr) -> Iterator[Var]:
    for monomial, _ in e.terms:
        for atom in monomial:
            yield from variables_of(atom)


def _substitute_atom(atom: Atom, replacement: Mapping[Any, Expr]) -> Expr:
    if isinstance(atom, Var):
        return replacement.get(atom.key, _of_atom(atom))
    if isinstance(atom, Div):
        return floordiv(atom.arg.substitute(replacement), atom.divisor)
    return mod(atom.arg.substitute(replacement), atom.divisor) if isinstance(atom, Mod) else _of_atom(atom)


def _evaluate_atom(atom: Atom, values: Mapping[Any, int]) -> int:
    if isinstance(atom, Div):
        return atom.arg.evaluate(values) // atom.divisor
    if isinstance(atom, Mod):
        return atom.arg.evaluate(values) % atom.divisor
    return values[atom.key] if isinstance(atom, Var) else 0
