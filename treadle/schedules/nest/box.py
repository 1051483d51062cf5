"""The box of a tensor that some levels of a nest reach while the others stand still."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod

from treadle.index.algebra import split_linear
from treadle.index.expr import Expr, const, floordiv, mod, var
from treadle.schedules.nest.workload import Read


@dataclass(frozen=True)
class Moving:
    """A level as far as boxes go: its axis's first dimension and the extents that this fuses, trips and stride."""

    first: int
    shape: tuple[int, ...]
    trips: int
    stride: int


@dataclass(frozen=True)
class Box:
    """Which elements of a tensor the moving levels reach, at one position of the others.

    The index along dimension d is that of the moving levels' first positions, plus `steps[n][d]` for each iteration of
    level n. Indices are kept at places `scale[d]` apart, `low[d]` of them before the first position's.

    apart: levels whose positions do not lie beside those of the inner levels, with their trips; each is a dimension of
        its own, before those of the tensor
    extents: places along each dimension of the tensor
    """

    apart: Mapping[int, int]
    extents: tuple[int, ...]
    scale: tuple[int, ...]
    low: tuple[int, ...]
    steps: Mapping[int, tuple[int, ...]]

    @cached_property
    def size(self) -> int:
        """Elements."""
        return prod(self.extents) * prod(self.apart.values())

    def place_steps(self, level: int) -> tuple[int, ...]:
        """Places that an iteration of a level moves along each dimension of the tensor."""
        if level in self.apart or level not in self.steps:
            return (0,) * len(self.extents)
        return tuple(step // scale for step, scale in zip(self.steps[level], self.scale, strict=True))


def level_variable(number: int, trips: int) -> Expr:
    """The variable that counts the iterations of a level."""
    return var(("level", number), 0, trips - 1)


def in_levels(read: Read, levels: Mapping[int, Moving]) -> tuple[Expr, ...]:
    """The indices of a read as expressions of the levels' iterations."""
    positions: dict[tuple[int, tuple[int, ...]], Expr] = {}
    for number, level in levels.items():
        step = level_variable(number, level.trips) * level.stride if level.trips > 1 else const(0)
        axis = level.first, level.shape
        positions[axis] = positions.get(axis, const(0)) + step
    found: dict[int, Expr] = {}
    for (first, shape), position in positions.items():
        for n in range(len(shape)):
            digit = floordiv(position, prod(shape[n + 1 :]))
            found[first + n] = digit if n == 0 else mod(digit, shape[n])
    return tuple(index.substitute(found) for index in read.indices)


def box_of(read: Read, levels: Mapping[int, Moving], moving: Iterable[int]) -> Box | None:
    """The box of a read; None where an index is not something of the other levels plus a linear form of these."""
    inside = [n for n in moving if levels[n].trips > 1]
    steps = _steps(read, levels, inside)
    if steps is None:
        return None
    inside = [n for n in inside if any(steps[n])]
    apart = _apart(levels, inside)
    dense = [n for n in inside if n not in apart]
    rank = len(read.shape)
    scale = tuple(gcd(*(steps[n][dim] for n in dense)) or 1 for dim in range(rank))
    reach = {n: [steps[n][dim] // scale[dim] * (levels[n].trips - 1) for dim in range(rank)] for n in dense}
    return Box(
        {n: levels[n].trips for n in inside if n in apart},
        tuple(1 + sum(abs(reach[n][dim]) for n in dense) for dim in range(rank)),
        scale,
        tuple(sum(max(-reach[n][dim], 0) for n in dense) for dim in range(rank)),
        {n: steps[n] for n in inside},
    )


def _steps(read: Read, levels: Mapping[int, Moving], inside: list[int]) -> dict[int, tuple[int, ...]] | None:
    """How far an iteration of each level moves each index; None where that is not constant."""
    if read.coefficients is not None and all(len(level.shape) == 1 for level in levels.values()):
        coefficients = read.coefficients
        return {n: tuple(c.get(levels[n].first, 0) * levels[n].stride for c in coefficients) for n in inside}
    found: dict[int, list[int]] = {n: [] for n in inside}
    for index in in_levels(read, levels):
        for n in inside:
            split = split_linear(index, ("level", n))
            step = None if split is None else split[0].as_int()
            if step is None:
                return None
            found[n].append(step)
    return {n: tuple(each) for n, each in found.items()}


def _apart(levels: Mapping[int, Moving], inside: list[int]) -> set[int]:
    """Those of the levels whose positions do not lie beside those of the inner levels of their axis."""
    together: dict[int, int] = {}
    apart: set[int] = set()
    for n in reversed(inside):
        level = levels[n]
        reached = together.get(level.first, 1)
        if level.stride != reached:
            apart.add(n)
            continue
        together[level.first] = reached * level.trips
    return apart


__all__ = ["Box", "Moving", "box_of", "in_levels", "level_variable"]
