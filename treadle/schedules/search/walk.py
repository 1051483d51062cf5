"""Gensor's construction: an annealed random walk from tile to tile and from level to level, without measuring.

States are the decisions of programs that tile; `Etir` is the paper's view of them. An action's probability is its
benefit over the sum of all. The candidates are ranked by the predictor: of all states that were seen, where it weighs
the actions, and where the paper's formulas do, of the list that algorithm 1 keeps.

Source: Gensor (2025), section IV, algorithms 1 and 2; docs/adr/0029.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from math import ceil, exp, inf, log, prod
from random import Random
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import SSAValue

from treadle.dialects.loop.tiles import BANK_BYTES, BANKS
from treadle.dialects.schedule import ArrangeOp, Choice, ProgramOp, SampleOp, SplitOp, UseAttr
from treadle.dialects.schedule.staging import Memory as StageMemory
from treadle.dialects.schedule.tiling import Role
from treadle.schedules.nest.nest import Nest
from treadle.schedules.search.candidate import Candidate, Measured
from treadle.schedules.search.sampler import Sampler
from treadle.schedules.search.strategy import Explored, Predictor
from treadle.target import Target

# Gensor's view of a schedule: tiles of each memory level, virtual threads, and the level that is being scheduled.
#
# Source: Gensor (2025), section IV-A: `D = [T_L, .., T_1, T_0]` of each dimension, with its etiles, evThreads and
# curMemLevel. Here a view of a nest and of the samples of its program; nothing is kept twice.


@dataclass(frozen=True)
class Etir:
    """The tiles of a nest.

    tiles: of each level of memory, the one farthest from the computing units first: positions of each axis that a tile
        has; the last level is a thread's register tile
    virtual: virtual threads along each axis
    footprints: bytes that the reads of one tile of each level reach, and that its result takes; of a tile that several
        threads compute, what they read in one step of the outermost reduction loop: sums are in registers
    traffic: bytes that all tiles of each level load and store together
    """

    tiles: tuple[tuple[int, ...], ...]
    virtual: tuple[int, ...]
    footprints: tuple[int, ...]
    traffic: tuple[int, ...]


@dataclass(frozen=True)
class TileLevel:
    """A level of a program's tiles.

    group: which group of the arrangement its levels are in, and the role of that
    labels: the samples of its factors
    """

    group: int
    role: Role
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Action:
    """A step from one state to the next.

    kind: `tile` and `inverse tile` change one factor of the level by one size, `virtual` a number of virtual threads,
        `set` another sample of the program; `cache` goes on to the next level
    after: the decisions; None for `cache`
    """

    kind: str
    after: Candidate | None = None


def levels_of(program: ProgramOp) -> tuple[TileLevel, ...]:
    """The levels of a program whose factors are sampled, outermost first; none for a template's program."""
    arranged = next((op for op in program.instructions if isinstance(op, ArrangeOp)), None)
    if arranged is None:
        return ()
    labels: dict[SSAValue, str] = {}
    for sample in program.samples:
        labels |= dict.fromkeys(sample.results, sample.label.data)
    of_level: dict[SSAValue, str] = {
        level: labels[factor]
        for split in program.instructions
        if isinstance(split, SplitOp)
        for level, factor in zip(split.levels[1:], split.factors, strict=True)
        if not isinstance(factor, int)
    }
    found: list[TileLevel] = []
    for n, (role, levels) in enumerate(arranged.groups):
        names = tuple(dict.fromkeys(of_level[level] for level in levels if level in of_level))
        if names:
            found.append(TileLevel(n, role, names))
    return tuple(found)


def actions(
    program: ProgramOp, sampler: Sampler, candidate: Candidate, levels: Sequence[TileLevel], number: int
) -> list[Action]:
    """What can be done at a level: each factor one size up or down, each sample that is no tile's one value on, and
    the next level. Whether the results are legal is for replaying to say."""
    level, found = levels[number], list[Action]()
    virtual = level.role == "repeat" and any(each.role == "thread" for each in levels[number:])
    plain = {label for each in levels for label in each.labels}
    for sample in program.samples:
        label = sample.label.data
        if label in level.labels:
            for up, after in _stepped(sampler, candidate, label):
                kind = "virtual" if virtual else "tile" if up else "inverse tile"
                found.append(Action(kind, Candidate(candidate.program, after)))
        elif label not in plain and isinstance(sample, SampleOp):
            values = sampler.support(label, candidate.decisions).values
            place = values.index(candidate.decisions[label])
            for value in (*values[max(place - 1, 0) : place], *values[place + 1 : place + 2]):
                found.append(Action("set", Candidate(candidate.program, {**candidate.decisions, label: value})))
    if number + 1 < len(levels):
        found.append(Action("cache"))
    return found


def _stepped(sampler: Sampler, candidate: Candidate, label: str) -> list[tuple[bool, dict[str, Choice]]]:
    """The decisions in which one factor of a sample is the next larger or smaller one that the sample knows at all, and
    whether it is larger."""
    taken = candidate.decisions[label]
    vectors = [_vector(value) for value in sampler.support(label, candidate.decisions).values]
    vector, found = _vector(taken), list[tuple[bool, dict[str, Choice]]]()
    for n, size in enumerate(vector):
        rest = vector[:n], vector[n + 1 :]
        sizes = sorted({each[n] for each in vectors if (each[:n], each[n + 1 :]) == rest})
        place = sizes.index(size)
        for other in (*sizes[max(place - 1, 0) : place], *sizes[place + 1 : place + 2]):
            value: Choice = (*rest[0], other, *rest[1]) if isinstance(taken, tuple) else other
            found.append((other > size, {**candidate.decisions, label: value}))
    return found


def _vector(value: Choice) -> tuple[int, ...]:
    """The factors that a sample has taken."""
    if isinstance(value, tuple):
        return value
    assert isinstance(value, int)
    return (value,)


def etir(nest: Nest, levels: Sequence[TileLevel]) -> Etir:
    """The tiles of a nest, at the levels of its program."""
    firsts = _first_levels(nest)
    found = [_level(nest, firsts[level.group]) for level in levels]
    repeated = [nest.levels[n] for n in nest.virtual]
    virtual = tuple(prod(level.trips for level in repeated if level.axis == axis) for axis in nest.axes)
    return Etir(
        tuple(tile for tile, _, _ in found), virtual, tuple(bytes for _, bytes, _ in found), tuple(q for *_, q in found)
    )


def _first_levels(nest: Nest) -> list[int]:
    """The number of the first level of each group."""
    counts = [len(group.levels) for group in nest.groups]
    return [sum(counts[:n]) for n in range(len(counts))]


def _level(nest: Nest, place: int) -> tuple[tuple[int, ...], int, int]:
    """The tile below a place, its footprint, and the traffic of all of them, with the virtual threads of what moves it.
    What an index that is computed from data reaches is taken to be one element a position."""
    tile, load = nest.below(place), nest.workload
    outside = [nest.levels[n] for n in nest.virtual if n < place]
    whole = [size * prod(v.trips for v in outside if v.axis == a) for a, size in zip(nest.axes, tile, strict=True)]
    tiles = [ceil(axis.extent / size) for axis, size in zip(nest.axes, whole, strict=True)]
    is_spatial = [not axis.is_reduction for axis in nest.axes]
    written = prod(compress(whole, is_spatial)) * load.bytes
    memory: StageMemory = "shared" if any(n >= place for n in nest.numbers("thread")) else "register"
    reads = _read(nest, place, memory, prod(whole))
    if memory == "register":
        footprint = reads + written
    else:
        step = max(place, _behind_first_loop(nest))
        footprint = max(1, _read(nest, step, memory, prod(nest.below(step))))
    return tile, footprint, reads * prod(tiles) + written * prod(compress(tiles, is_spatial))


def _read(nest: Nest, place: int, memory: StageMemory, positions: int) -> int:
    """The bytes that all reads reach below a place."""
    found = 0
    for number, read in enumerate(nest.workload.reads):
        box = nest.box(number, place, memory)
        found += (positions if box is None else box.size) * read.bytes
    return found


def _behind_first_loop(nest: Nest) -> int:
    """The first level behind the outermost group of loops; behind all levels where there is none."""
    firsts, roles = _first_levels(nest), [group.role for group in nest.groups]
    number = roles.index("loop") + 1 if "loop" in roles else len(roles)
    return firsts[number] if number < len(firsts) else len(nest.levels)


# How likely a walk takes each action: Gensor's formulas as printed, and the ratio of modelled throughputs.
#
# Source: Gensor (2025), sections IV-B and IV-C; docs/adr/0029 says which of them ship.


def tiling_benefit(traffic: float, next_traffic: float, footprint: float, next_footprint: float) -> float:
    """Formula (1) as printed: `Q(T) F(T') / (Q(T') F(T))`. More footprint counts as a gain."""
    return traffic * next_footprint / (next_traffic * footprint)


def tiling_balance(traffic: float, next_traffic: float, footprint: float, next_footprint: float) -> float:
    """Formula (1) as the paper's text describes it: the fall in traffic over the growth of the footprint."""
    return traffic / next_traffic / (next_footprint / footprint)


def caching_benefit(low: Memory, high: Memory, bytes: float) -> float:
    """Formula (2): the time to move data at one level over that at the next one, which is nearer."""
    return low.cycles(bytes) / high.cycles(bytes)


def virtual_thread_benefit(width: int, virtual: int, banks: int = BANKS) -> float:
    """Formula (3): the bank conflicts of a tile of so many columns over those with virtual threads; W is `banks`."""
    return ceil(width / banks) / ceil(width / (virtual * banks))


def cache_weight(step: int) -> float:
    """The factor of the caching action at a step: 0.5 at first, 1.5 at step 10, at most 3."""
    return 3 / (1 + exp(-log(5) / 10 * (step - 10)))


def keep_probability(temperature: float) -> float:
    """The probability that a state is kept in the list of results."""
    return 1 - 1 / (1 + exp(-0.5 * (-log(temperature) - 10)))


@dataclass(frozen=True)
class Memory:
    """A level of memory as one core or multiprocessor sees it: cycles, bytes a cycle, bytes."""

    latency: float
    bandwidth: float
    capacity: float = inf

    def cycles(self, bytes: float) -> float:
        """The time to move data."""
        return self.latency + bytes / self.bandwidth


def memories_of(target: Target) -> tuple[Memory, ...]:
    """The levels of a target's memory, the farthest first, registers last."""
    far = Memory(target.memory_latency, target.peak_bandwidth / target.multiprocessors / target.clock)
    if target.is_cuda:
        shared = Memory(target.shared_latency, BANKS * BANK_BYTES, target.shared_per_block)
        return far, shared, Memory(1.0, BANKS * BANK_BYTES * 4, 4 * target.registers_per_multiprocessor)
    registers = target.vector_bytes * target.vector_registers
    near = Memory(_L2_LATENCY, target.l2_bytes_per_cycle, target.l2_bytes)
    return far, near, Memory(1.0, 2 * target.vector_bytes, registers)


_L2_LATENCY = 14.0
"""Cycles, of a CPU's second cache; Intel's optimization manual says 14 for Skylake and later server cores."""


@dataclass(frozen=True)
class PaperBenefits:
    """Formulas (1) to (3) as printed; 0 for a tile that does not fit in its memory."""

    memories: tuple[Memory, ...]

    def memory(self, number: int, levels: int) -> int:
        """The memory that a level of tiles lies in: the last one in registers, those before it in the one before."""
        return len(self.memories) - 1 if number == levels - 1 else max(1, len(self.memories) - 2)

    def tile(self, before: Etir, after: Etir, number: int) -> float:
        """Of another tile at a level."""
        if after.footprints[number] > self.memories[self.memory(number, len(after.tiles))].capacity:
            return 0.0
        q, f = (before.traffic[number], after.traffic[number]), (before.footprints[number], after.footprints[number])
        return tiling_benefit(*q, *f)

    def cache(self, state: Etir, number: int) -> float:
        """Of going on to the next level."""
        high = self.memory(number + 1, len(state.tiles))
        return caching_benefit(self.memories[high - 1], self.memories[high], state.footprints[number])

    def virtual(self, after: Etir, number: int) -> float:
        """Of another number of virtual threads along the last axis that has some."""
        columns = max(range(len(after.virtual)), key=lambda n: (after.virtual[n] > 1, n))
        return virtual_thread_benefit(after.tiles[number][columns], after.virtual[columns])


def probabilities(
    benefits: NDArray[np.float64], caches: NDArray[np.bool_], firsts: NDArray[np.int64], step: int, sharpness: float
) -> NDArray[np.float64]:
    """The probability of each action at a step of the walk: its weight over the sum of its state's.

    A weight is the action's benefit, to a power that grows by `sharpness` with each step, times `cache_weight` if it
    goes on to the next level. Of actions that are nearly as good as each other, which most are, the benefits themselves
    choose almost at random; with the power, a walk goes on when no tile of the level is a gain.

    benefits, caches: of the actions, and which of them go on, one state's after another's; firsts: where each state's
        begin
    """
    counts = np.diff(np.append(firsts, len(benefits)))
    weights = (benefits / np.repeat(np.maximum.reduceat(benefits, firsts), counts)) ** (1 + sharpness * step)
    weights = np.where(caches, weights * cache_weight(step), weights)
    return weights / np.repeat(np.add.reduceat(weights, firsts), counts)


def roulette(weights: Sequence[float], drawn: float) -> int:
    """The place of the weight into whose share of the sum a random number in [0, 1) falls."""
    left = drawn * sum(weights)
    for place, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return place
    return len(weights) - 1


_BEGINNINGS = ("best", "best", "random")
"""Where walks begin, in turn; as the paper's, at the smallest tiles."""
_KEPT_PROGRAMS = 0.5
"""The part of the programs that the next walks go over, those with the best states (successive halving)."""
_LOOKS = 8
"""Random states of each program that are predicted before walks, which then begin with the best programs. Without them
800 states are met before each of the 12 to 22 programs of a product on a GPU has had a walk. For the three layers of
`benchmarks/strategies.py` the best states on sm_80 then take 66, 27 and 34 us (medians of three seeds), with them 39,
9.8 and 18; on a CPU they take 2.3, 0.41 and 0.97 ms, and 2.4, 0.41 and 0.97."""
_DESCENT = 0.5
"""The part of the states of a round that is left for the descent behind its walks. Of the 26 cases of
`tests/papers/gensor/test_operators.py`, walks are no worse than random draws in 25, in 24 with 0.25 and steps to the
best of all neighbours, in 21 without a descent; in eleven of them they take 0.955 times as long in the geometric mean,
0.970 with 0.35, and 0.975 with 0.25 and the best of all."""
_TRIED = 4
"""Neighbours that are predicted at once: the best of them is taken if it is faster."""
_STARTS = 50
"""Random draws for a legal state to begin with."""


@dataclass(frozen=True)
class WalkSettings:
    """How a walk goes.

    benefits: `model` weighs an action by the predicted throughput after it over that before it; the candidates are all
        states whose times were predicted for that. `paper` weighs by formulas (1) to (3) as printed, and begins at the
        smallest tiles; the candidates are the states that its list keeps, and they alone are predicted
    sharpness: how much better an action has to be to be chosen grows with it at each step, where the model weighs; 0 is
        the paper's choice
    temperature, threshold: the temperature halves with each step, until it is below the threshold: 100 steps
    states: walks are taken until so many states were predicted. For the four products of `benchmarks/strategies.py`
        the best states of 400 take 1.00 to 1.03 of those of 800 on sm_80, of 200 as well; on a CPU 1.00 to 1.02, and
        1.00 to 1.03 (medians of three seeds, 2026-11-23)
    walks: of each program, at most
    """

    benefits: Literal["model", "paper"] = "model"
    sharpness: float = 1.0
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
    """Proposes the best predicted of the states that walks over a task's programs meet, whatever was measured. Programs
    whose kernels have to be lowered for a prediction are left to other strategies."""

    def __init__(self, explored: Explored, predict: Predictor, seed: str, settings: WalkSettings | None = None):
        self._explored, self._predict, self._seed = explored, predict, seed
        self.task = explored.task
        self._settings = WalkSettings() if settings is None else settings
        self._is_paper = self._settings.benefits == "paper"
        self.sharpness = 0.0 if self._is_paper else self._settings.sharpness
        self._seconds: dict[Candidate, float | None] = {}
        self.predicted = 0
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
        before = self.predicted
        with self._explored.counted(self._rounds):
            self._walks(Random(f"{self._seed} {self._rounds}"), before)
        self._rounds += 1
        return self.predicted > before

    def _walks(self, random: Random, before: int) -> None:
        names = [name for name, program in self._explored.task.by_name.items() if levels_of(program)]
        if not self._is_paper:
            self._look(names, random)
        for number in range(self._settings.walks):
            names.sort(key=lambda name: self._best.get(name, inf))
            where = "smallest" if self._is_paper else _BEGINNINGS[number % len(_BEGINNINGS)]
            for name in names[: ceil(len(names) * _KEPT_PROGRAMS**number)]:
                if self.predicted >= before + self._settings.states * (1.0 if self._is_paper else 1 - _DESCENT):
                    break
                steps = self.walk(name, random, self.start(name, random, where))
                self.seconds([step.candidate for step in steps if step.is_kept or not self._is_paper])
        if not self._is_paper:
            self._descend(before + self._settings.states, random)

    def _descend(self, most: int, random: Random) -> None:
        """Goes on from the best state of each program, the best program first, to faster neighbours as long as there
        are some: the walk at temperature 0, until so many states are predicted."""
        for name in sorted(self._best, key=lambda name: self._best[name]):
            state = self._best_state(name)
            while state is not None and self.predicted < most:
                state = self._faster(state, self._best[name], most, random)

    def _faster(self, state: Candidate, seconds: float, most: int, random: Random) -> Candidate | None:
        """A neighbour that takes fewer seconds; None if none does, or none was predicted."""
        sampler = self._explored.task.samplers[state.program]
        near = [Candidate(state.program, each) for each in sampler.neighbours(state.decisions)]
        random.shuffle(near)
        for n in range(0, len(near), _TRIED):
            if self.predicted >= most:
                break
            few = near[n : n + _TRIED]
            times = zip(self.seconds(few), few, strict=True)
            better = [(each, m) for m, (each, _) in enumerate(times) if each is not None and each < seconds]
            if better:
                return few[min(better)[1]]
        return None

    def _look(self, names: Sequence[str], random: Random) -> None:
        """Predicts some random states of each program, so that walks begin where they may lead to something."""
        for name in names:
            drawn = (self._explored.draw(random, [name]) for _ in range(_LOOKS))
            self.seconds([each for each in drawn if each is not None])

    def learn(self, results: Sequence[Measured]) -> None:
        """What was measured is not proposed."""
        self._explored.learn(results)

    def walk(self, name: str, random: Random, start: Candidate | None) -> list[Step]:
        """One walk over a program's states from a legal one; nothing without one."""
        program, state = self._explored.task.by_name[name], start
        levels = levels_of(program)
        if state is None:
            return []
        number, steps = 0, list[Step]()
        temperature = self._settings.temperature
        first = np.zeros(1, np.int64)
        while temperature > self._settings.threshold:
            options = self.options(state, levels, number)
            if not options:
                break
            benefits, caches = np.array([b for _, b in options]), np.array([a.after is None for a, _ in options])
            weights = probabilities(benefits, caches, first, len(steps), self.sharpness)
            action, _ = options[roulette(weights.tolist(), random.random())]
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
            found.append(self._best_state(name))
        drawn = (self._explored.draw(random, [name]) for _ in range(_STARTS))
        for candidate in (*found, *drawn):
            if candidate is not None and self.legal([candidate]):
                return candidate
        return None

    def _best_state(self, name: str) -> Candidate | None:
        """The best predicted state of a program so far, the first of equal ones."""
        known = ((s, n, c) for n, (c, s) in enumerate(self._seconds.items()) if s is not None and c.program == name)
        *_, state = min(known, default=(None,))
        return state

    def legal(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those that replay and, where the model weighs, have a predicted time."""
        if self._is_paper:
            return [each for each in candidates if self._explored.kernel(each) is not None]
        times = self.seconds(candidates)
        return [each for each, seconds in zip(candidates, times, strict=True) if seconds is not None]

    def seconds(self, candidates: Sequence[Candidate]) -> list[float | None]:
        """The predicted times, which are remembered; None for what is not legal."""
        new = [each for each in dict.fromkeys(candidates) if each not in self._seconds]
        legal = [each for each in new if self._explored.kernel(each) is not None]
        self._seconds |= dict.fromkeys(new, None)
        for candidate, seconds in zip(legal, self._predict(legal), strict=True):
            self._seconds[candidate] = seconds
            if seconds is not None:
                self.predicted += 1
                self._best[candidate.program] = min(seconds, self._best.get(candidate.program, inf))
        return [self._seconds[each] for each in candidates]

    def options(self, state: Candidate, levels: Sequence[TileLevel], number: int) -> list[tuple[Action, float]]:
        """What can be done in a state at a level of its program, and the benefit of each action; none of them is 0."""
        program, sampler = self._explored.task.by_name[state.program], self._explored.task.samplers[state.program]
        tried = actions(program, sampler, state, levels, number)
        legal = set(self.legal([each.after for each in tried if each.after is not None]))
        possible = [each for each in tried if each.after is None or each.after in legal]
        if self._is_paper:
            weighed = [(each, self._by_formulas(state, each, levels, number)) for each in possible]
        else:
            weighed = [(each, self._by_model(state, each)) for each in possible]
        return [(action, benefit) for action, benefit in weighed if benefit > 0]

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
