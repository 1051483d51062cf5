"""Gensor's view of a schedule: tiles of each memory level, virtual threads, and the level that is being scheduled.

Source: Gensor (2025), section IV-A: `D = [T_L, .., T_1, T_0]` of each dimension, with its etiles, evThreads and
curMemLevel. Here a view of a nest and of the samples of its program; nothing is kept twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from math import ceil, prod

from xdsl.ir import SSAValue

from treadle.dialects.schedule import ArrangeOp, Choice, ProgramOp, SampleOp, SplitOp
from treadle.dialects.schedule.tiling import Role
from treadle.schedules.nest.nest import Nest
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.sampler import Sampler


@dataclass(frozen=True)
class Etir:
    """The tiles of a nest.

    tiles: of each level of memory, the one farthest from the computing units first: positions of each axis that a tile
        has; the last level is a thread's register tile
    virtual: virtual threads along each axis
    footprints: bytes that the reads of one tile of each level reach, and that its result takes
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
    reads = 0
    for number, read in enumerate(load.reads):
        box = nest.box(number, place)
        reads += (prod(whole) if box is None else box.size) * read.bytes
    return tile, reads + written, reads * prod(tiles) + written * prod(compress(tiles, is_spatial))


__all__ = ["Action", "Etir", "TileLevel", "actions", "etir", "levels_of"]
