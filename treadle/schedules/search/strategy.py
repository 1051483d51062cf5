"""What all strategies share: each candidate is replayed once, and its time is predicted by whoever can."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Protocol

from treadle.errors import TreadleError
from treadle.schedules.search.candidate import Candidate, Measured, Task
from treadle.schedules.search.ledger import Ledger
from treadle.schedules.search.programs import Replayed

_MOST_MISSES = 500
"""Draws in a row that give nothing new, after which nothing new is expected: while one draw in a hundred is new, that
happens once in 150 times."""

_RECENT = 4096
"""Values of candidates that are kept: those of one proposal, for which several ask."""


class Predictor(Protocol):
    """Predicts seconds of candidates; None for one that no kernel can be made of.

    most_costly: predictions of one proposal that may take long
    """

    most_costly: int

    def __call__(self, candidates: Sequence[Candidate]) -> Sequence[float | None]:
        """The predicted seconds of legal candidates."""
        ...

    def is_costly(self, candidate: Candidate) -> bool:
        """Whether a prediction takes long, since the candidate has to be lowered for it. The same whenever it is
        asked."""
        ...


class Explored:
    """What is known of a task's candidates: what each gives, which ones were proposed, what was measured.

    A kernel counts once, whichever of the candidates that give it is met first.
    """

    def __init__(self, task: Task):
        self.task, self.ledger = task, Ledger()
        self.results: list[Measured] = []
        self._kernels: dict[Candidate, int | None] = {}
        self._recent: dict[Candidate, Replayed] = {}
        self._done: set[int] = set()

    def kernel(self, candidate: Candidate) -> int | None:
        """A number of what a candidate gives, the same for all that give the same; None if it is not legal.

        The number is a hash: the values themselves, of some hundred thousand candidates, would not fit into memory.
        """
        if candidate in self._kernels:
            return self._kernels[candidate]
        try:
            found = hash(self.replayed(candidate))
            self.ledger.accept()
        except TreadleError as error:
            found = None
            self.ledger.reject(candidate, error)
        self._kernels[candidate] = found
        return found

    def replayed(self, candidate: Candidate) -> Replayed:
        """What a candidate's kernel is written from. TreadleError for one that is not legal."""
        found = self._recent.get(candidate)
        if found is None:
            if len(self._recent) >= _RECENT:
                self._recent.clear()
            found = self._recent[candidate] = self.task.replay(candidate)
        return found

    def is_new(self, candidate: Candidate) -> bool:
        """Whether it is legal, and gives a kernel that was neither proposed nor measured."""
        kernel = self.kernel(candidate)
        return kernel is not None and kernel not in self._done

    def take(self, candidates: Iterable[Candidate]) -> None:
        """These were proposed."""
        self._done |= {kernel for each in candidates if (kernel := self.kernel(each)) is not None}

    def learn(self, results: Sequence[Measured]) -> None:
        """These were measured."""
        self.results += results
        self.take(each.candidate for each in results)

    def random(self, seed: str) -> Random:
        """Random numbers that depend on the seed and on how much was measured, and on nothing else: a search that was
        interrupted goes on as if it had not been."""
        return Random(f"{seed} {len(self.results)}")

    def draws(self, random: Random, programs: Sequence[str]) -> Iterator[Candidate]:
        """New candidates of some programs, each of another kernel, until none is found; the caller may change the list
        of programs meanwhile."""
        found: set[int] = set()
        misses = 0
        while programs and misses < _MOST_MISSES:
            candidate = self.draw(random, programs)
            kernel = None if candidate is None else self.kernel(candidate)
            if candidate is None or kernel is None or kernel in found or kernel in self._done:
                misses += 1
                continue
            misses = 0
            found.add(kernel)
            yield candidate

    def draw(self, random: Random, programs: Sequence[str]) -> Candidate | None:
        """A random candidate, legal or not."""
        name = programs[random.randrange(len(programs))]
        decisions = self.task.samplers[name].draw(random)
        return None if decisions is None else Candidate(name, decisions)


__all__ = ["Explored", "Predictor"]
