"""Greedy construction of tiles, level by level and without a way back: what Gensor's walk is compared with.

From the smallest aligned tiles, a thread's register tile grows along the axis that saves most traffic for the memory
that it takes, while it fits and traffic falls; then the tile of the next level around it. The path is one of a tree,
and its objective is reuse alone. It has no virtual threads. What is no tile (widths of copies, numbers of buffers) and
the program are chosen at the end by predicted time, as Roller ranks its last candidates.

Source: Roller (OSDI 2022) as Gensor (2025), sections I and II-B, describes it. Roller begins at the tile of shared
memory and divides it among threads; levels of our programs are factors, whose product that tile is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from math import prod

from treadle.dialects.loop.tiles import SECTOR_BYTES
from treadle.dialects.schedule import Choice, UseAttr
from treadle.schedules.search.candidate import Candidate, Measured
from treadle.schedules.search.strategy import Explored, Predictor
from treadle.schedules.search.walk import Action, Etir, PaperBenefits, TileLevel, actions, etir, levels_of, memories_of

_LOOKED_AT = 2000
"""Decisions among which the first legal one is the smallest."""


def reuse_for_footprint(before: Etir, after: Etir, number: int) -> float:
    """The bytes of traffic that a larger tile of a level saves for each byte more that it takes."""
    saved = before.traffic[number] - after.traffic[number]
    return saved / max(1, after.footprints[number] - before.footprints[number])


class Greedy:
    """Proposes what greedy construction makes of each of a task's programs, the best predicted one first, then the
    states that it passed."""

    def __init__(self, explored: Explored, predict: Predictor, seed: str):
        del seed  # nothing is random
        self._explored, self._predict = explored, predict
        self._memories = PaperBenefits(memories_of(explored.task.target))
        self._left: list[Candidate] | None = None

    def propose(self, count: int) -> Sequence[Candidate]:
        """At most `count` candidates; none when those that were constructed are proposed."""
        if self._left is None:
            with self._explored.counted("all"):
                paths = [self.path(name) for name in self._explored.task.by_name]
            ends = self._ranked([path[-1] for path in paths if path])
            self._left = [*ends, *self._ranked([each for path in paths for each in path if each not in ends])]
        found: list[Candidate] = []
        while self._left and len(found) < count:
            candidate = self._left.pop(0)
            if self._explored.is_new(candidate):
                self._explored.take([candidate])
                found.append(candidate)
        return found

    def learn(self, results: Sequence[Measured]) -> None:
        """What was measured is not proposed."""
        self._explored.learn(results)

    def path(self, name: str) -> list[Candidate]:
        """The states from the smallest aligned tiles of a program to the last one, in order; none if there is no legal
        one to begin with."""
        levels = levels_of(self._explored.task.by_name[name])
        start = next(self._smallest(name, levels), None) if levels else None
        found = [] if start is None else [start]
        for number in reversed(range(len(levels) if found else 0)):
            while (larger := self._grown(found[-1], levels, number)) is not None:
                found.append(larger)
        return [*found, *self._set(found[-1], levels)] if found else []

    def _smallest(self, name: str, levels: Sequence[TileLevel]) -> Iterator[Candidate]:
        """The legal candidates in the order of their decisions: first those whose outermost step of a reduction is
        whole sectors of float32, then all."""
        sampler = self._explored.task.samplers[name]
        labels = [label for level in levels if level.role == "loop" for label in level.labels]
        every = [Candidate(name, each) for each in islice(sampler.enumerate(), _LOOKED_AT)]
        terms = [prod(_last(each.decisions[label]) for label in labels) for each in every]
        aligned = [each for each, step in zip(every, terms, strict=True) if step * 4 % SECTOR_BYTES == 0]
        return (each for each in (*aligned, *every) if self._explored.kernel(each) is not None)

    def _grown(self, state: Candidate, levels: Sequence[TileLevel], number: int) -> Candidate | None:
        """The larger tile of a level with the best score; None if none fits and saves traffic."""
        before = self._view(state, levels)
        memory = self._memories.memories[self._memories.memory(number, len(levels))]
        best, found = 0.0, None
        for action in self._tried(state, levels, number):
            if action.kind != "tile" or action.after is None or self._explored.kernel(action.after) is None:
                continue
            after = self._view(action.after, levels)
            score = reuse_for_footprint(before, after, number)
            if score > best and after.footprints[number] <= memory.capacity:
                best, found = score, action.after
        return found

    def _set(self, state: Candidate, levels: Sequence[TileLevel]) -> list[Candidate]:
        """The states to which each sample that is no tile leads, when it takes what is predicted to be fastest."""
        found: list[Candidate] = []
        while True:
            near = [each.after for each in self._tried(state, levels, len(levels) - 1) if each.kind == "set"]
            ranked = self._ranked([state, *(each for each in near if each is not None)])
            if not ranked or ranked[0] == state:
                return found
            state = ranked[0]
            found.append(state)

    def _tried(self, state: Candidate, levels: Sequence[TileLevel], number: int) -> list[Action]:
        task = self._explored.task
        return actions(task.by_name[state.program], task.samplers[state.program], state, levels, number)

    def _ranked(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The legal ones by predicted time."""
        legal = [each for each in dict.fromkeys(candidates) if self._explored.kernel(each) is not None]
        times = [(s, n) for n, s in enumerate(self._predict(legal)) if s is not None]
        return [legal[n] for _, n in sorted(times)]

    def _view(self, candidate: Candidate, levels: Sequence[TileLevel]) -> Etir:
        nest = self._explored.task.replay(candidate)
        assert not isinstance(nest, UseAttr)
        return etir(nest, levels)


def _last(value: Choice) -> int:
    """The last factor of a level."""
    last = value[-1] if isinstance(value, tuple) else value
    assert isinstance(last, int)
    return last


__all__ = ["Greedy", "reuse_for_footprint"]
