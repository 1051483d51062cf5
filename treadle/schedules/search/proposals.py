"""Chooses the next candidates of a finite space: random ones, and neighbours of the best ones so far."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from treadle.dialects.schedule import Choice
from treadle.schedules.search.candidate import Candidate


class Proposals:
    """Draws from a list of candidates without replacement; the seed determines the order.

    Source: MetaSchedule (NeurIPS 2022), section 5, where a population is drawn anew and mutated.
    """

    def __init__(self, candidates: Sequence[Candidate], seed: str):
        self._left = dict.fromkeys(candidates)
        self._random = random.Random(seed)
        self._order = list(self._left)
        self._random.shuffle(self._order)

    def __len__(self) -> int:
        return len(self._left)

    def drop(self, candidate: Candidate) -> None:
        """Removes a candidate."""
        self._left.pop(candidate, None)

    def draw(self, count: int, best: Sequence[Candidate]) -> list[Candidate]:
        """At most `count` candidates: half of them differ in one choice from the best ones, if so many are left."""
        near = [key for each in best for key in self._neighbours(each)]
        keys = list(dict.fromkeys(near))[: count // 2]
        keys += [key for key in self._order if key in self._left and key not in keys][: count - len(keys)]
        for key in keys:
            del self._left[key]
        return keys

    def _neighbours(self, candidate: Candidate) -> list[Candidate]:
        """The candidates not yet drawn that differ from this one in one decision, nearest values first."""
        found: list[tuple[float, Candidate]] = []
        for other in self._left:
            if other.program != candidate.program:
                continue
            distances = [_distance(candidate.decisions.get(name), value) for name, value in other.decisions.items()]
            if sum(d > 0 for d in distances) == 1:
                found.append((sum(distances), other))
        return [other for _, other in sorted(found, key=lambda pair: pair[0])]


def ranked(
    candidates: Sequence[Candidate], seconds: Callable[[Candidate], float | None]
) -> list[tuple[Candidate, float]]:
    """The candidates that have a predicted time, fastest first; equal ones stay in their order."""
    times = [(each, seconds(each)) for each in candidates]
    return sorted(((each, time) for each, time in times if time is not None), key=lambda pair: pair[1])


def _distance(one: Choice | None, other: Choice) -> float:
    """The distance of two values of a knob; two words or switches are equal or far apart."""
    if one == other and isinstance(one, bool) == isinstance(other, bool):
        return 0.0
    if not isinstance(one, int) or not isinstance(other, int) or isinstance(one, bool) or min(one, other) <= 0:
        return 1.0
    return max(one, other) / min(one, other) - 1 + 1e-9


__all__ = ["Proposals", "ranked"]
