"""Indices and predicates of a kernel as values with operators: `row * tile + r` writes `arith` operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from treadle.dialects.graph.definition import DefinitionBuilder, Scalar


@dataclass(frozen=True, eq=False)
class Index:
    """A value of type `index`, and the builder at whose insertion point operators write.

    Operations are written when an operator is evaluated, operands first, from left to right:

    >>> row * 8 + r  # %0 = arith.constant 8 : index; %1 = arith.muli %row, %0; %2 = arith.addi %1, %r

    `//` and `%` take non-negative indices. Adding 0, and multiplying or dividing by 1, writes nothing. `==` compares
    Python objects, so that indices can be looked up; `equals` writes a comparison.
    """

    value: SSAValue
    builder: DefinitionBuilder

    def __add__(self, other: Index | int) -> Index:
        return self._index(self.builder.add(self.value, _plain(other)))

    def __radd__(self, other: int) -> Index:
        return self._index(self.builder.add(other, self.value))

    def __sub__(self, other: Index | int) -> Index:
        return self._index(self.builder.binary("sub", self.value, _plain(other)))

    def __rsub__(self, other: int) -> Index:
        return self._index(self.builder.binary("sub", other, self.value))

    def __mul__(self, other: Index | int) -> Index:
        return self._index(self.builder.mul(self.value, _plain(other)))

    def __floordiv__(self, other: int) -> Index:
        return self._index(self.builder.div(self.value, other))

    def __mod__(self, other: int) -> Index:
        return self._index(self.builder.mod(self.value, other))

    def __lt__(self, other: Index | int) -> Predicate:
        return self._compare("lt", other)

    def __le__(self, other: Index | int) -> Predicate:
        return self._compare("le", other)

    def __gt__(self, other: Index | int) -> Predicate:
        return self._compare("gt", other)

    def __ge__(self, other: Index | int) -> Predicate:
        return self._compare("ge", other)

    def equals(self, other: Index | int) -> Predicate:
        """Whether both are the same number."""
        return self._compare("eq", other)

    def min(self, other: Index | int) -> Index:
        """The smaller of both, as signed numbers."""
        return self._index(self.builder.binary("min", self.value, _plain(other)))

    def max(self, other: Index | int) -> Index:
        """The larger of both, as signed numbers."""
        return self._index(self.builder.binary("max", self.value, _plain(other)))

    def delinearize(self, shape: Sequence[int]) -> list[Index]:
        """The row-major indices of this position, which lies inside the shape."""
        return [self._index(i) for i in self.builder.delinearize(self.value, shape)]

    def _index(self, value: SSAValue) -> Index:
        return Index(value, self.builder)

    def _compare(self, kind: str, other: Index | int) -> Predicate:
        return Predicate(self.builder.binary(kind, self.value, _plain(other)), self.builder)


@dataclass(frozen=True, eq=False)
class Predicate:
    """A value of type `i1` that a kernel computes: `(row < m) & (column < n)`."""

    value: SSAValue
    builder: DefinitionBuilder

    def __and__(self, other: Predicate) -> Predicate:
        return Predicate(self.builder.binary("and", self.value, other.value), self.builder)

    def __or__(self, other: Predicate) -> Predicate:
        return Predicate(self.builder.binary("or", self.value, other.value), self.builder)

    def select(self, then: Index, otherwise: Index) -> Index:
        """One of two indices."""
        return Index(self.builder.select(self.value, then.value, otherwise.value), self.builder)

    def __bool__(self) -> bool:
        """Not known before the kernel runs: `a < b < c` and `p and q` would need it."""
        raise TypeError("a kernel's predicate has no value in Python: combine predicates with & and |")


IndexLike = Index | SSAValue | int
"""What memory operations and loops take as an index."""


def all_of(conditions: Sequence[Predicate | None]) -> Predicate | None:
    """The conjunction of those that are given; None, which holds everywhere, where none is."""
    result: Predicate | None = None
    for condition in conditions:
        if condition is not None:
            result = condition if result is None else result & condition
    return result


def ssa_values(indices: Sequence[Index]) -> list[Scalar]:
    """The values of indices, as operands of operations."""
    return [i.value for i in indices]


def _plain(other: Index | int) -> SSAValue | int:
    return other.value if isinstance(other, Index) else other


__all__ = ["Index", "IndexLike", "Predicate", "all_of", "ssa_values"]
