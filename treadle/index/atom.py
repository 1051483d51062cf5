"""The atoms of index expressions: variables, quotients, remainders.

Equal atoms are one object, kept by weak references: they compare by identity, and are freed with the last expression
over them.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Hashable
from typing import TYPE_CHECKING, TypeAlias

from treadle.index.ranges import Range

if TYPE_CHECKING:
    from treadle.index.expr import Expr

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
