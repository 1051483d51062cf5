"""Gensor's Markov chain on all states of a program: its matrix, stationary distribution and optimum, without sampling.

    walk = Walk(Explored(task), Forecast(task), "0")
    graph = state_graph(walk, "nest0")                     # all legal states, with the walk's actions and benefits
    end = graph.after(graph.at(start), steps=100)          # where a walk of 100 steps ends, as a distribution
    best_payoffs, _ = graph.values()                       # value iteration

A state is a candidate and the level that is being scheduled. `Walk.options` gives actions and benefits, and
`walk.probabilities` makes probabilities of them: what is computed here is what a walk draws from. For programs whose
decisions are few enough to be enumerated; `python -m benchmarks.walks --exact` prints it for Gensor's operators.

Source: Gensor (2025), section IV-D, equations (4) to (6); docs/adr/0029 says what holds of its claims.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from treadle.errors import TreadleError
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.walk import Walk, levels_of, probabilities

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]

MOST_DECISIONS = 5000
"""Of a program whose graph is built: each legal one is predicted, which takes milliseconds."""
_CLOSE = 1e-12
"""Distributions and values that differ by less are equal."""


@dataclass(frozen=True, eq=False)
class StateGraph:
    """The states of a program and the actions between them.

    states: a legal candidate and the number of the level that is being scheduled
    seconds: the predicted time of each state
    sources, targets: the numbers of the states that each action leads from and to, ordered by the first
    benefits, caches: of each action, before it is weighed by the step; whether it goes on to the next level
    sharpness: of the walk
    """

    states: tuple[tuple[Candidate, int], ...]
    seconds: Floats
    sources: Numbers
    targets: Numbers
    benefits: Floats
    caches: NDArray[np.bool_]
    sharpness: float
    numbers: Mapping[tuple[Candidate, int], int] = field(repr=False)

    @cached_property
    def _firsts(self) -> Numbers:
        """The number of the first action of each state; each has one."""
        return np.searchsorted(self.sources, np.arange(len(self.states)))

    def transitions(self, step: int) -> Floats:
        """The matrix P of equation (4) at a step of the walk, as one probability for each action: P(i, j) is the sum of
        those of the actions from i to j. The probabilities of a state's actions add up to 1."""
        return probabilities(self.benefits, self.caches, self._firsts, step, self.sharpness)

    def at(self, candidate: Candidate) -> Floats:
        """The distribution that is in one state, at the first level. TreadleError for a candidate that is not legal."""
        found = np.zeros(len(self.states))
        if (candidate, 0) not in self.numbers:
            raise TreadleError(f"{candidate} is no state", "state graph", "a legal candidate of the program")
        found[self.numbers[candidate, 0]] = 1.0
        return found

    def _moved(self, share: Floats, transitions: Floats) -> Floats:
        found = np.zeros(len(share))
        np.add.at(found, self.targets, share[self.sources] * transitions)
        return found

    def after(self, begin: Floats, steps: int = 100, goal: NDArray[np.bool_] | None = None) -> Floats:
        """The distribution of the states of a walk after its steps, the probabilities changing with each.

        goal: states that a walk does not leave: what they have is the probability that a walk has met one of them
        """
        found = begin
        for step in range(steps):
            moved = self._moved(found if goal is None else np.where(goal, 0.0, found), self.transitions(step))
            found = moved if goal is None else moved + np.where(goal, found, 0.0)
        return found

    def stationary(self, begin: Floats, step: int, most: int = 100_000) -> Floats:
        """The stationary distribution that power iteration finds from another one, at the probabilities of one step.

        It is that of (P + I) / 2, which is that of P, and converges where P has a period, too. TreadleError if `most`
        iterations do not suffice.
        """
        found, transitions = begin, self.transitions(step)
        for _ in range(most):
            moved = (found + self._moved(found, transitions)) / 2
            if np.abs(moved - found).sum() < _CLOSE:
                return moved
            found = moved
        raise TreadleError(f"no stationary distribution after {most} iterations", "state graph", "more iterations")

    def values(self) -> tuple[Floats, int]:
        """The largest payoff from each state, and the iterations that found it.

        A path's payoff is the product of its actions' benefits, and a walk may stop in any state:
        `V(i) = max(1, max_a benefit(a | i) V(j))`, equation (6) with the benefits themselves. With the model's, which
        are ratios of throughputs, it is the throughput of the best state that can be reached over that of i, and never
        falls from one iteration to the next. TreadleError where products of benefits grow without end, as those of
        formulas (1) to (3) may.
        """
        found = np.ones(len(self.states))
        for iteration in range(1, 2 * len(self.states) + 2):
            paths = np.maximum.reduceat(self.benefits * found[self.targets], self._firsts)
            better = np.where(paths > found * (1 + _CLOSE), paths, found)
            if np.array_equal(better, found):
                return found, iteration
            found = better
        raise TreadleError("payoffs grow without end", "state graph", "benefits whose product along a cycle is 1")

    def printed_values(self, iterations: int, step: int = 0) -> Floats:
        """Equation (6) as printed, from values of 1: `V(i) = max_a P(a | i) V(j)`, with normalised benefits. They fall,
        to 0 wherever a path has to choose."""
        found, transitions = np.ones(len(self.states)), self.transitions(step)
        for _ in range(iterations):
            found = np.maximum.reduceat(transitions * found[self.targets], self._firsts)
        return found

    @cached_property
    def optimum(self) -> float:
        """The least predicted seconds of all states."""
        return float(self.seconds.min())

    @cached_property
    def classes(self) -> tuple[Numbers, ...]:
        """States of one level that reach one another by actions that can be undone, the levels in order. The chain is
        irreducible within each; those of the last level, which a walk does not leave, are its recurrent ones."""
        neighbours, left = self._undoable, np.ones(len(self.states), bool)
        found: list[Numbers] = []
        for first in range(len(self.states)):
            if left[first]:
                left[first], members = False, [first]
                for each in members:
                    new = [other for other in neighbours[each] if left[other]]
                    left[new] = False
                    members += new
                found.append(np.array(members))
        return tuple(found)

    def period(self, members: Numbers) -> int:
        """The greatest common divisor of the lengths of all cycles of a class: 2 if its states fall into two parts
        between which every action leads, else 1 (actions that can be undone are cycles of 2)."""
        part = {int(members[0]): 0}
        for each in map(int, members):  # each but the first follows a neighbour
            for other in self._undoable[each]:
                if part.setdefault(other, 1 - part[each]) == part[each]:
                    return 1
        return 2 if len(members) > 1 else 1

    @cached_property
    def _undoable(self) -> list[list[int]]:
        """The states that each reaches by an action that another one undoes."""
        pairs = {*zip(self.sources.tolist(), self.targets.tolist(), strict=True)}
        found: list[list[int]] = [[] for _ in self.states]
        for source, target in sorted(pairs):
            if (target, source) in pairs:
                found[source].append(target)
        return found


def state_graph(walk: Walk, name: str, most: int = MOST_DECISIONS) -> StateGraph:
    """All legal states of a program of a walk's task. A state from which nothing can be done stays.

    TreadleError if the program has no tiles to walk over, no legal state, or more than `most` decisions.
    """
    levels, sampler = levels_of(walk.task.by_name[name]), walk.task.samplers[name]
    size = sampler.size()
    if size > most or not levels:
        message = f"program @{name} has {size} decisions and {len(levels)} levels of tiles"
        raise TreadleError(message, "state graph", f"up to {most} decisions, and a level")
    legal = walk.legal([Candidate(name, decisions) for decisions in sampler.enumerate()])
    if not legal:
        raise TreadleError(f"program @{name} has no legal state", "state graph", "one, at least")
    states = [(candidate, level) for level in range(len(levels)) for candidate in legal]
    numbers = {state: number for number, state in enumerate(states)}
    edges: list[tuple[int, int, float, bool]] = []
    for number, (candidate, level) in enumerate(states):
        options = walk.options(candidate, levels, level)
        for action, benefit in options:
            after = (candidate, level + 1) if action.after is None else (action.after, level)
            edges.append((number, numbers[after], benefit, action.after is None))
        if not options:
            edges.append((number, number, 1.0, False))
    sources, targets, benefits, caches = zip(*edges, strict=True)
    seconds = [np.inf if each is None else each for each in walk.seconds(legal)] * len(levels)
    arrays = np.array(sources), np.array(targets), np.array(benefits), np.array(caches)
    return StateGraph(tuple(states), np.array(seconds), *arrays, walk.sharpness, numbers)


__all__ = ["MOST_DECISIONS", "StateGraph", "state_graph"]
