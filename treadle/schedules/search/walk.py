"""Gensor's construction: an annealed random walk from tile to tile and from level to level, without measuring.

States are the decisions of programs that tile; `etir.py` is the paper's view of them. An action's probability is its
benefit over the sum of all. The candidates are the best of all states that were seen, ranked by the predictor: those
from which the walk chose are more than the list that the paper keeps, and cost nothing more.

Source: Gensor (2025), section IV, algorithms 1 and 2; docs/adr/0029.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Literal

from treadle.dialects.schedule import UseAttr
from treadle.schedules.search.benefits import PaperBenefits, cache_weight, keep_probability, memories_of, roulette
from treadle.schedules.search.candidate import Candidate, Measured
from treadle.schedules.search.etir import Action, Etir, TileLevel, actions, etir, levels_of
from treadle.schedules.search.strategy import Explored, Predictor

_BEGINNINGS = ("smallest", "best", "random", "best")
"""Where walks begin, in turn."""
_LOOKS = 8
"""Random states of each program that are predicted before walks, which then begin with the best programs. Without them
800 states are met before each of the 12 to 22 programs of a product on a GPU has had a walk. For the three layers of
`benchmarks/strategies.py` the best states on sm_80 then take 66, 27 and 34 us (medians of three seeds), with them 39,
9.8 and 18; on a CPU they take 2.3, 0.41 and 0.97 ms, and 2.4, 0.41 and 0.97."""
_STARTS = 50
"""Random draws for a legal state to begin with."""


@dataclass(frozen=True)
class WalkSettings:
    """How a walk goes.

    benefits: `model` weighs an action by the predicted throughput after it over that before it, `paper` by the printed
        formulas
    temperature, threshold: the temperature halves with each step, until it is below the threshold: 100 steps
    states: walks are taken until so many states were predicted, every other walk from a random state. For the four
        products of `benchmarks/strategies.py` the best states of 400 take 1.00 to 1.03 of those of 800 on sm_80, of
        200 as well; on a CPU 1.00 to 1.02, and 1.00 to 1.03 (medians of three seeds, 2026-11-23)
    walks: of each program, at most
    """

    benefits: Literal["model", "paper"] = "model"
    temperature: float = 1.0
    threshold: float = 2.0**-100
    states: int = 400
    walks: int = 30


@dataclass(frozen=True)
class Step:
    """One step of a walk: what was done, what it led to, and whether the paper's list keeps that."""

    action: str
    candidate: Candidate
    level: int
    is_kept: bool


class Walk:
    """Proposes the best predicted of all states that walks over a task's programs meet, whatever was measured. Programs
    whose kernels have to be lowered for a prediction are left to other strategies."""

    def __init__(self, explored: Explored, predict: Predictor, seed: str, settings: WalkSettings | None = None):
        self._explored, self._predict, self._seed = explored, predict, seed
        self._settings = WalkSettings() if settings is None else settings
        self._seconds: dict[Candidate, float | None] = {}
        self._predicted = 0
        """States that have a predicted time."""
        self._best = dict[str, float]()
        """The best predicted seconds of each program so far."""
        self._rounds, self._goes_on = 0, True
        self._views: dict[Candidate, Etir] = {}
        self._benefits = PaperBenefits(memories_of(explored.task.target))

    def propose(self, count: int) -> Sequence[Candidate]:
        """At most `count` candidates, the best predicted ones first; walks go on where all states were proposed."""
        found: list[Candidate] = []
        while len(found) < count and self._goes_on:
            found += self._take(count - len(found))
            if len(found) < count:
                self._goes_on = self._round()
        return found

    def _take(self, count: int) -> list[Candidate]:
        """The best predicted states that are new; they are no longer."""
        times = sorted((s, n) for n, s in enumerate(self._seconds.values()) if s is not None)
        states, found = list(self._seconds), list[Candidate]()
        for _, n in times:
            if len(found) < count and self._explored.is_new(states[n]):
                self._explored.take([states[n]])
                found.append(states[n])
        return found

    def _round(self) -> bool:
        """Walks over all programs; whether that met a state that was not known. What was measured does not matter: an
        interrupted search goes on as if it had not been."""
        before = self._predicted
        with self._explored.counted(self._rounds):
            self._walks(Random(f"{self._seed} {self._rounds}"), before)
        self._rounds += 1
        return self._predicted > before

    def _walks(self, random: Random, before: int) -> None:
        names = [name for name, program in self._explored.task.by_name.items() if levels_of(program)]
        self._look(names, random)
        for number in range(self._settings.walks):
            for name in sorted(names, key=lambda name: self._best.get(name, inf)):
                if self._predicted < before + self._settings.states:
                    start = self.start(name, random, _BEGINNINGS[number % 4])
                    names = names if self.walk(name, random, start) else [each for each in names if each != name]

    def _look(self, names: Sequence[str], random: Random) -> None:
        """Predicts some random states of each program, so that walks begin where they may lead to something."""
        for name in names:
            drawn = (self._explored.draw(random, [name]) for _ in range(_LOOKS))
            self._legal([each for each in drawn if each is not None])

    def learn(self, results: Sequence[Measured]) -> None:
        """What was measured is not proposed."""
        self._explored.learn(results)

    def walk(self, name: str, random: Random, start: Candidate | None) -> list[Step]:
        """One walk over a program's states from a legal one; nothing without one."""
        program, state = self._explored.task.by_name[name], start
        levels = levels_of(program)
        if state is None:
            return []
        sampler, number, steps = self._explored.task.samplers[name], 0, list[Step]()
        temperature = self._settings.temperature
        while temperature > self._settings.threshold:
            options = actions(program, sampler, state, levels, number)
            weights = self._weights(state, options, levels, number, len(steps))
            if not weights:
                break
            action = options[roulette(weights, random.random())]
            state, number = (state, number + 1) if action.after is None else (action.after, number)
            is_kept = random.random() < keep_probability(temperature)
            steps.append(Step(action.kind, state, number, is_kept))
            temperature /= 2
        return steps

    def start(self, name: str, random: Random, where: str) -> Candidate | None:
        """A legal state: the `smallest` tiles, since the paper's initial state is not scheduled, the `best` one so far,
        or a random one."""
        found: list[Candidate | None] = []
        if where == "smallest":
            smallest = next(self._explored.task.samplers[name].enumerate(), None)
            found.append(None if smallest is None else Candidate(name, smallest))
        if where == "best":
            known = ((s, n, c) for n, (c, s) in enumerate(self._seconds.items()) if s is not None and c.program == name)
            found += [candidate for *_, candidate in [min(known, default=(None,))]]
        drawn = (self._explored.draw(random, [name]) for _ in range(_STARTS))
        for candidate in (*found, *drawn):
            if candidate is not None and self._legal([candidate]):
                return candidate
        return None

    def _legal(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those that replay and have a predicted time, which is remembered; what would have to be lowered has none."""
        new = [each for each in candidates if each not in self._seconds]
        legal = [e for e in new if self._explored.kernel(e) is not None and not self._predict.is_costly(e)]
        self._seconds |= dict.fromkeys(new, None)
        for candidate, seconds in zip(legal, self._predict(legal), strict=True):
            self._seconds[candidate] = seconds
            if seconds is not None:
                self._predicted += 1
                self._best[candidate.program] = min(seconds, self._best.get(candidate.program, inf))
        return [each for each in candidates if self._seconds[each] is not None]

    def _weights(
        self, state: Candidate, options: Sequence[Action], levels: Sequence[TileLevel], number: int, step: int
    ) -> dict[int, float]:
        """The benefit of each action that can be done, by its place."""
        legal = set(self._legal([each.after for each in options if each.after is not None]))
        found: dict[int, float] = {}
        for n, action in enumerate(options):
            if action.after is not None and action.after not in legal:
                continue
            benefit = (
                self._by_model(state, action)
                if self._settings.benefits == "model"
                else self._by_formulas(state, action, levels, number)
            )
            if benefit > 0:
                found[n] = benefit * (cache_weight(step) if action.kind == "cache" else 1.0)
        return found

    def _by_model(self, state: Candidate, action: Action) -> float:
        """Predicted throughput after the action over that before it; going on to the next level changes nothing."""
        if action.after is None:
            return 1.0
        before, after = self._seconds[state], self._seconds[action.after]
        assert before is not None
        assert after is not None
        return before / after

    def _by_formulas(self, state: Candidate, action: Action, levels: Sequence[TileLevel], number: int) -> float:
        """Formulas (1) to (3); what these do not know counts 1."""
        before = self._view(state, levels)
        if action.after is None:
            return self._benefits.cache(before, number)
        after = self._view(action.after, levels)
        if action.kind == "set":
            return 1.0
        if action.kind == "virtual":
            return self._benefits.virtual(after, number)
        return self._benefits.tile(before, after, number)

    def _view(self, candidate: Candidate, levels: Sequence[TileLevel]) -> Etir:
        if candidate not in self._views:
            nest = self._explored.task.replay(candidate)
            assert not isinstance(nest, UseAttr)
            self._views[candidate] = etir(nest, levels)
        return self._views[candidate]


__all__ = ["Step", "Walk", "WalkSettings"]
