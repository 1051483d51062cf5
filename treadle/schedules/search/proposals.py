"""Chooses the next candidates of a finite space: random ones, and neighbours of the best ones so far."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from treadle.dialects.schedule import Choice

Combination = tuple[str, Mapping[str, Choice]]
"""A template and its choices."""


class Proposals:
    """Draws from a list of combinations without replacement; the seed determines the order.

    Source: MetaSchedule (NeurIPS 2022), section 5, where a population is drawn anew and mutated.
    """

    def __init__(self, combinations: Sequence[Combination], seed: str):
        self._left = {_key(each): each for each in combinations}
        self._random = random.Random(seed)
        self._order = list(self._left)
        self._random.shuffle(self._order)

    def __len__(self) -> int:
        return len(self._left)

    def drop(self, combination: Combination) -> None:
        """Removes a combination."""
        self._left.pop(_key(combination), None)

    def draw(self, count: int, best: Sequence[Combination]) -> list[Combination]:
        """At most `count` combinations: half of them differ in one choice from the best ones, if so many are left."""
        near = [key for each in best for key in self._neighbours(each)]
        keys = list(dict.fromkeys(near))[: count // 2]
        keys += [key for key in self._order if key in self._left and key not in keys][: count - len(keys)]
        return [self._left.pop(key) for key in keys]

    def _neighbours(self, combination: Combination) -> list[str]:
        """The combinations not yet drawn that differ from this one in one choice, nearest values first."""
        template, choices = combination
        found: list[tuple[float, str]] = []
        for key, (other, values) in self._left.items():
            if other != template:
                continue
            distances = [_distance(choices.get(name), value) for name, value in values.items()]
            if sum(d > 0 for d in distances) == 1:
                found.append((sum(distances), key))
        return [key for _, key in sorted(found)]


def ranked(
    combinations: Sequence[Combination], seconds: Callable[[Combination], float | None]
) -> list[tuple[Combination, float]]:
    """The combinations that have a predicted time, fastest first; equal ones stay in their order."""
    times = [(each, seconds(each)) for each in combinations]
    return sorted(((each, time) for each, time in times if time is not None), key=lambda pair: pair[1])


def _distance(one: Choice | None, other: Choice) -> float:
    """The distance of two values of a knob; two words or switches are equal or far apart."""
    if one == other and isinstance(one, bool) == isinstance(other, bool):
        return 0.0
    if not isinstance(one, int) or not isinstance(other, int) or isinstance(one, bool) or min(one, other) <= 0:
        return 1.0
    return max(one, other) / min(one, other) - 1 + 1e-9


def _key(combination: Combination) -> str:
    template, choices = combination
    return f"{template} {sorted(choices.items())}"


__all__ = ["Combination", "Proposals", "ranked"]
