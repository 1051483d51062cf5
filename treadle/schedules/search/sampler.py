"""The decisions of one schedule program: enumerated, drawn and changed, sample by sample.

What a sample may take can depend on what the ones before it took (`beside`), so that decisions are a path and not a
point of a product. None of this asks whether the decisions are legal: replaying them does.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from math import prod
from random import Random
from typing import TypeAlias

from xdsl.ir import OpResult, SSAValue

from treadle.dialects.schedule import AxesOp, Choice, FuseOp, ProgramOp, SampleOp, SampleTileOp

# The values that a sample may take: enumerated, drawn, and walked from neighbour to neighbour.

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

    def probability(self, value: Choice) -> float:
        """How likely `draw` gives a value of the support."""
        if not self._weights:
            return 1 / len(self.values)
        return self._weights[self._places[value]] / sum(self._weights)

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
                _next_to(line, line.index(value)) if key else (each for each in line if each != value)
            )
        if self._chained and isinstance(value, tuple):
            found |= dict.fromkeys(_next_to(self.values, self._places[value]))
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


def _next_to(line: Sequence[Choice], place: int) -> list[Choice]:
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


REDRAWN = 0.3
"""How often a mutation draws a value anew instead of taking a neighbour: a walk alone does not leave an optimum that is
local. Assumed, not measured."""


class Sampler:
    """The samples of a program in their order.

    extents: of the anchor's iteration space, whose divisors some samples take
    """

    def __init__(self, program: ProgramOp, extents: Sequence[int] = ()):
        self._samples = {sample.label.data: sample for sample in program.samples}
        self._extents = _extents_of(program, extents)
        self._known: dict[tuple[str, int], Support] = {}
        self._depends = {label: _beside(sample) for label, sample in self._samples.items()}
        self.labels = tuple(self._samples)

    def support(self, label: str, decisions: Mapping[str, Choice]) -> Support:
        """What a sample may take, given what the ones before it took."""
        sample = self._samples[label]
        beside = 1 if isinstance(sample, SampleOp) else prod(_taken(value, decisions) for value in sample.beside)
        found = self._known.get((label, beside))
        if found is None:
            found = self._known[label, beside] = self._support(sample, beside)
        return found

    def enumerate(self) -> Iterator[dict[str, Choice]]:
        """All decisions, the last sample changing fastest."""
        return self._completions({}, self.labels)

    def size(self) -> int:
        """How many decisions there are."""
        return self._size({}, self.labels)

    def draw(self, random: Random) -> dict[str, Choice] | None:
        """Random decisions, each uniform in its support, or by its weights; None where a sample has nothing to take."""
        return self._completed({}, {}, random)

    def prior(self, decisions: Mapping[str, Choice]) -> float:
        """How likely `draw` gives these decisions: P(tau) of MetaSchedule's equation 1."""
        return prod(self.support(label, decisions).probability(decisions[label]) for label in self.labels)

    def neighbours(self, decisions: Mapping[str, Choice]) -> list[dict[str, Choice]]:
        """The decisions in which one sample takes a neighbour of what it takes here, and all others stay as they are.
        Symmetric."""
        found: list[dict[str, Choice]] = []
        for label in self.labels:
            for value in self.support(label, decisions).neighbours(decisions[label]):
                changed = {**decisions, label: value}
                if all(changed[each] in self.support(each, changed) for each in self.labels):
                    found.append(changed)
        return found

    def mutated(self, decisions: Mapping[str, Choice], random: Random) -> dict[str, Choice] | None:
        """Decisions in which one sample takes another value: a neighbour, or any. Later samples that can then not stay
        as they are are drawn anew. None where there is nothing to change."""
        open_ = [label for label in self.labels if len(self.support(label, decisions)) > 1]
        if not open_:
            return None
        label = open_[random.randrange(len(open_))]
        support, old = self.support(label, decisions), decisions[label]
        near = support.neighbours(old)
        if near and random.random() >= REDRAWN:
            value = near[random.randrange(len(near))]
        else:
            others = [value for value in support if value != old]
            value = others[random.randrange(len(others))]
        before = {each: decisions[each] for each in self.labels[: self.labels.index(label)]}
        return self._completed({**before, label: value}, decisions, random)

    def mutation(self, decisions: Mapping[str, Choice], changed: Mapping[str, Choice]) -> float:
        """How likely `mutated` makes some decisions of others, which differ."""
        place = next(n for n, label in enumerate(self.labels) if decisions[label] != changed[label])
        label, later = self.labels[place], self.labels[place + 1 :]
        support, old, new = self.support(label, decisions), decisions[label], changed[label]
        near = support.neighbours(old)
        found = (REDRAWN if near else 1.0) / (len(support) - 1)
        found += (1 - REDRAWN) / len(near) if new in near else 0.0
        for each in later:
            left = self.support(each, changed)
            stays = decisions[each] in left
            found *= float(decisions[each] == changed[each]) if stays else left.probability(changed[each])
        return found / sum(len(self.support(each, decisions)) > 1 for each in self.labels)

    def _completed(
        self, begun: Mapping[str, Choice], wanted: Mapping[str, Choice], random: Random
    ) -> dict[str, Choice] | None:
        """Decisions for the samples after the first ones: the wanted ones where possible, else drawn."""
        found = dict(begun)
        for label in self.labels[len(begun) :]:
            support = self.support(label, found)
            if not len(support):
                return None
            found[label] = wanted[label] if label in wanted and wanted[label] in support else support.draw(random)
        return found

    def _size(self, begun: dict[str, Choice], labels: Sequence[str]) -> int:
        """The number of completions; what no later sample depends on is multiplied."""
        if not labels:
            return 1
        label, rest = labels[0], labels[1:]
        support = self.support(label, begun)
        if not any(label in self._depends[each] for each in rest):
            return len(support) * self._size({**begun, label: next(iter(support), 0)}, rest) if len(support) else 0
        return sum(self._size({**begun, label: value}, rest) for value in support)

    def _completions(self, begun: dict[str, Choice], labels: Sequence[str]) -> Iterator[dict[str, Choice]]:
        if not labels:
            yield begun
            return
        for value in self.support(labels[0], begun):
            yield from self._completions({**begun, labels[0]: value}, labels[1:])

    def _support(self, sample: SampleOp | SampleTileOp, beside: int) -> Support:
        if isinstance(sample, SampleOp):
            return Support(sample.support, sample.likely, chained=True)
        extent = 1 if sample.axis is None else self._extents.get(sample.axis, 1)
        return Support(sample.support(extent, beside))


def _beside(sample: SampleOp | SampleTileOp) -> set[str]:
    """The samples that a sample's support depends on."""
    values = () if isinstance(sample, SampleOp) else sample.beside
    owners = [value.owner for value in values]
    return {owner.label.data for owner in owners if isinstance(owner, SampleOp | SampleTileOp)}


def _taken(value: SSAValue, decisions: Mapping[str, Choice]) -> int:
    """What a parameter was decided to be."""
    assert isinstance(value, OpResult)
    sample = value.op
    assert isinstance(sample, SampleOp | SampleTileOp)
    taken = decisions[sample.label.data]
    number = taken[value.index] if isinstance(taken, tuple) and isinstance(sample, SampleTileOp) else taken
    return number if isinstance(number, int) else 1


def _extents_of(program: ProgramOp, extents: Sequence[int]) -> dict[SSAValue, int]:
    """The extents of a program's axes."""
    found: dict[SSAValue, int] = {}
    for op in program.instructions:
        if isinstance(op, AxesOp):
            found |= dict(zip(op.axes, extents, strict=False))  # of another anchor: rejected when it is replayed
        elif isinstance(op, FuseOp):
            found[op.axis] = prod(found.get(axis, 1) for axis in op.axes)
    return found
