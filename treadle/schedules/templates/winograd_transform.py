"""Products of constant matrices with a few values, by additions where entries are 1; rows share what they can."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

from treadle.dialects.graph.definition import DefinitionBuilder, Scalar
from treadle.dialects.graph.winograd import Matrix

_Terms = dict[int, Fraction]
"""A linear combination: the factor of each value, by its number."""


def transformed(b: DefinitionBuilder, matrix: Matrix, values: Sequence[Scalar]) -> list[Scalar]:
    """Writes `matrix * values`."""
    return _Combinations(b, values).write([{n: f for n, f in enumerate(row) if f} for row in matrix])


class _Combinations:
    """Writes linear combinations of values."""

    def __init__(self, b: DefinitionBuilder, values: Sequence[Scalar]):
        self.b, self.values = b, list(values)

    def write(self, rows: list[_Terms]) -> list[Scalar]:
        """The values of combinations."""
        self._pair_values(rows)
        results: dict[int, Scalar] = {}
        for n, m in combinations(range(len(rows)), 2):
            if n in results or m in results or not _differ_in_signs(rows[n], rows[m]):
                continue
            same = self._sum({key: f for key, f in rows[n].items() if rows[m][key] == f})
            other = self._sum({key: f for key, f in rows[n].items() if rows[m][key] == -f})
            results[n], results[m] = self.b.add(same, other), self.b.binary("sub", same, other)
        return [results[n] if n in results else self._sum(row) for n, row in enumerate(rows)]

    def _pair_values(self, rows: list[_Terms]) -> None:
        """Replaces two values whose factors differ in signs only by their sum and their difference."""
        columns = {n: {r: row[n] for r, row in enumerate(rows) if n in row} for n in range(len(self.values))}
        for n, m in combinations(range(len(self.values)), 2):
            if n not in columns or m not in columns or not _differ_in_signs(columns[n], columns[m]):
                continue
            for kind in ("add", "sub"):
                self.values.append(self.b.binary(kind, self.values[n], self.values[m]))
            for r, factor in columns[n].items():
                of_sum = columns[m][r] == factor
                rows[r] = {key: f for key, f in rows[r].items() if key not in (n, m)}
                rows[r][len(self.values) - (2 if of_sum else 1)] = factor
            del columns[n], columns[m]

    def _sum(self, terms: _Terms) -> Scalar:
        """A combination, which begins with a term that is not negated, if there is one."""
        first, *rest = sorted(terms, key=lambda n: terms[n] < 0)
        total = self._scaled(first, terms[first])
        for n in rest:
            total = self.b.binary("add" if terms[n] > 0 else "sub", total, self._scaled(n, abs(terms[n])))
        return total

    def _scaled(self, n: int, factor: Fraction) -> Scalar:
        value = self.values[n]
        return value if factor == 1 else self.b.binary("mul", value, self.b.constant(float(factor), value.type))


def _differ_in_signs(a: _Terms, b: _Terms) -> bool:
    """Whether two combinations have the same factors but for the signs of some, not of all."""
    if a.keys() != b.keys() or any(abs(a[key]) != abs(b[key]) for key in a):
        return False
    return 0 < sum(a[key] == b[key] for key in a) < len(a)


__all__ = ["transformed"]
