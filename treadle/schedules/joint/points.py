"""Calls of a ranged model that stand for all of them: values of its symbols, spread over the range or as often as they
occur."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from treadle.dynamic_shapes import ExtentExpression
from treadle.errors import TreadleError
from treadle.shapes import Dim

POINTS = 16
"""Points of a range: kernels are chosen by those, and the tree's borders lie between them."""
Weights = Mapping[str, Mapping[int, float]]
"""By the name of a symbol, how often its values occur."""


@dataclass(frozen=True)
class Point:
    """values: of the symbols; extents: of @main's `extents`; weight: its part of all calls."""

    values: tuple[int, ...]
    extents: tuple[int, ...]
    weight: float


def points_of(
    symbols: Sequence[Dim], extents: Sequence[str], weights: Weights | None = None, most: int = POINTS
) -> list[Point]:
    """At most so many points of a range, its smallest and its largest among them, in ascending order of values.

    weights: the values of these symbols are the most frequent ones, with the ends of the range; other symbols, and all
        of them without weights, are spread: half of the values by their logarithms, half evenly. TreadleError for
        weights of an unknown symbol, of values that are not in its range, and for ones that are negative or all 0.
    """
    given = checked(weights or {}, symbols)
    # Of one symbol, so that all combinations are at most so many; at least the two ends.
    values_each = max(2, int(most ** (1 / max(1, len(symbols))) + 1e-9))
    each = [
        _weighted(dim, given[dim.name], values_each) if dim.name in given else _spread(dim, values_each)
        for dim in symbols
    ]
    names = [dim.name for dim in symbols]
    expressions = [ExtentExpression(text, names) for text in extents]
    found: dict[tuple[int, ...], Point] = {}
    for combined in product(*each):
        values = tuple(value for value, _ in combined)
        at = tuple(e.value(dict(zip(names, values, strict=True))) for e in expressions)
        weight = prod(part for _, part in combined) + (found[at].weight if at in found else 0.0)
        found[at] = Point(values, at, weight)
    return list(found.values())


def checked(weights: Weights, symbols: Sequence[Dim]) -> Weights:
    """The same weights; TreadleError that names the symbol whose weights cannot be used."""
    known = {dim.name: dim for dim in symbols}
    for name, histogram in weights.items():
        where = f"weights of '{name}'"
        if name not in known:
            raise TreadleError(f"the model has no symbol {name!r}", "weights", list(known) or "a model with a range")
        for value, weight in histogram.items():
            if value not in known[name]:
                raise TreadleError(f"the extent {value} is not in the range", where, str(known[name]))
            if not 0 <= weight < float("inf"):
                raise TreadleError(f"the weight of {value} is {weight:g}", where, "numbers from 0 upwards")
        if sum(histogram.values()) <= 0:
            raise TreadleError("no value has a weight above 0", where, "at least one")
    return weights


def _spread(dim: Dim, most: int) -> list[tuple[int, float]]:
    low, high, half = dim.least, dim.greatest, most // 2
    wanted = [low * (high / low) ** (n / half) for n in range(half)]
    wanted += [low + (high - low) * n / (most - half) for n in range(1, most - half + 1)]
    values = sorted({low, high, *(_multiple(dim, value) for value in wanted)})
    return [(value, 1 / len(values)) for value in values]


def _weighted(dim: Dim, histogram: Mapping[int, float], most: int) -> list[tuple[int, float]]:
    """The heaviest values and the ends; the weight of others goes to the nearest larger one of these."""
    heaviest = sorted(histogram, key=lambda value: (-histogram[value], value))[: max(0, most - 2)]
    values = sorted({dim.least, dim.greatest, *heaviest})
    total, parts = sum(histogram.values()), dict.fromkeys(values, 0.0)
    for value, weight in histogram.items():
        parts[next(each for each in values if each >= value)] += weight / total
    return list(parts.items())


def _multiple(dim: Dim, value: float) -> int:
    return min(max(round(value / dim.multiple) * dim.multiple, dim.least), dim.greatest)


__all__ = ["POINTS", "Point", "Weights", "checked", "points_of"]
