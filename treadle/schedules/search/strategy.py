"""What all strategies share: each candidate is replayed once, and its time is predicted by whoever can."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Protocol

from treadle.errors import TreadleError
from treadle.schedules.search.candidate import Candidate, Measured, Task
from treadle.schedules.search.rejections import Ledger, Rejection, rejection, total

_MOST_MISSES = 500
"""Draws in a row that give nothing new, after which nothing new is expected: while one draw in a hundred is new, that
happens once in 150 times."""


class Predictor(Protocol):
    """Predicts seconds of candidates; None for one that no kernel can be made of."""

    def __call__(self, candidates: Sequence[Candidate]) -> Sequence[float | None]:
        """The predicted seconds of legal candidates."""
        ...


class Explored:
    """What is known of a task's candidates: what each gives, which ones were proposed, what was measured.

    A kernel counts once, whichever of the candidates that give it is met first.

    name: of the search, in the names of its draws
    ledgers: what became of the candidates that each draw has looked at, by the names of the draws; those of an earlier
        search may be put there
    drawn: the names of this search's draws since somebody last emptied the list
    """

    def __init__(self, task: Task, name: str = ""):
        self.task, self._name = task, name
        self.ledgers: dict[str, Ledger] = {}
        self.drawn: list[str] = []
        self.results: list[Measured] = []
        self._ledger: Ledger | None = None
        self._met: set[Candidate] = set()
        self._kernels: dict[Candidate, int | Rejection] = {}
        self._done: set[int] = set()

    def kernel(self, candidate: Candidate) -> int | None:
        """A number of what a candidate gives, the same for all that give the same; None if it is not legal.

        The number is a hash: the values themselves, of some hundred thousand candidates, would not fit into memory.
        """
        found = self._kernels.get(candidate)
        if found is None:
            try:
                found = hash(self.task.replay(candidate))
            except TreadleError as error:
                found = rejection(candidate, error)
            self._kernels[candidate] = found
        self._count(candidate, found)
        return None if isinstance(found, Rejection) else found

    def every(self) -> list[Candidate]:
        """A candidate for each kernel that there is, all others being looked at, too."""

        def reject(candidate: Candidate, error: TreadleError) -> None:
            self._count(candidate, rejection(candidate, error))

        found = self.task.distinct(rejected=reject)
        return [each for each in found if self.kernel(each) is not None]

    @property
    def ledger(self) -> Ledger:
        """What became of all candidates that draws have looked at, once in each draw."""
        return total(self.ledgers.values())

    @contextmanager
    def counted(self, draw: object) -> Generator[None]:
        """What is looked at inside is counted as that of one draw, whatever was met before: a search that was
        interrupted repeats the draw, and counts the same. `draw` is what decides, beside the seed, what is drawn."""
        name = f"{self._name} {draw}".strip()
        self._ledger = self.ledgers[name] = Ledger()
        self._met.clear()
        self.drawn.append(name)
        try:
            yield
        finally:
            self._ledger = None

    def _count(self, candidate: Candidate, found: int | Rejection) -> None:
        if self._ledger is None or candidate in self._met:
            return
        self._met.add(candidate)
        if isinstance(found, Rejection):
            self._ledger.reject(found)
        else:
            self._ledger.accept(candidate.program)

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
