"""The values that a sample may take: enumerated, drawn, and walked from neighbour to neighbour."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property
from itertools import combinations
from random import Random
from typing import TypeAlias

from treadle.dialects.schedule import Choice

_Line: TypeAlias = tuple[()] | tuple[int, int, int, tuple[int, ...]]
"""What its values share: the coordinates that change, of which the first is in order, their product, and the rest."""


class Support:
    """A finite, ordered set of values of one kind.

    Neighbours are symmetric. Those of a number are the next smaller and the next larger one. Those of a list of numbers
    differ from it in one of them, by one step among the values that the rest leaves; or in two whose product stays
    (one level of a tile gives a factor to another). Words and switches are all neighbours of each other.

    weights: how likely each value is drawn; none: all alike
    chained: lists have the one before and the one after as neighbours, too, since nothing says that they form a grid
    """

    def __init__(self, values: Sequence[Choice], weights: Sequence[float] = (), *, chained: bool = False):
        self.values, self._weights, self._chained = tuple(values), tuple(weights), chained
        self._places = {value: place for place, value in enumerate(self.values)}

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Choice]:
        return iter(self.values)

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, Hashable) or value not in self._places:
            return False
        return isinstance(value, bool) == isinstance(self.values[0], bool)  # True is 1 in Python, and no number here

    def draw(self, random: Random) -> Choice:
        """A random value of a support that is not empty."""
        if self._weights:
            return random.choices(self.values, self._weights)[0]
        return self.values[random.randrange(len(self.values))]

    def neighbours(self, value: Choice) -> list[Choice]:
        """The neighbours of a value of the support, each once."""
        found: dict[Choice, None] = {}
        for key in _lines(value):
            line = self._by_line[key]
            found |= dict.fromkeys(
                _beside(line, line.index(value)) if key else (each for each in line if each != value)
            )
        if self._chained and isinstance(value, tuple):
            found |= dict.fromkeys(_beside(self.values, self._places[value]))
        return list(found)

    @cached_property
    def _by_line(self) -> dict[_Line, list[Choice]]:
        """The values of each line, in its order."""
        found: dict[_Line, list[Choice]] = {}
        for value in self.values:
            for key in _lines(value):
                found.setdefault(key, []).append(value)
        for key, line in found.items():
            if key:
                line.sort(key=lambda value, axis=key[0]: _vector(value)[axis])
        return found


def _beside(line: Sequence[Choice], place: int) -> list[Choice]:
    """What stands before and after a place."""
    return [*line[max(place - 1, 0) : place], *line[place + 1 : place + 2]]


def _lines(value: Choice) -> list[_Line]:
    """The sets of values among which a value has neighbours. Words and switches are in one line of all."""
    if isinstance(value, bool | str):
        return [()]
    vector = _vector(value)
    lines: list[_Line] = [(axis, -1, 0, vector[:axis] + vector[axis + 1 :]) for axis in range(len(vector))]
    for one, other in combinations(range(len(vector)), 2):
        rest = tuple(number for n, number in enumerate(vector) if n not in (one, other))
        lines.append((one, other, vector[one] * vector[other], rest))
    return lines


def _vector(value: Choice) -> tuple[int, ...]:
    if isinstance(value, tuple):
        return value
    assert isinstance(value, int)
    return (value,)


__all__ = ["Support"]
