"""The box of a tensor that some levels of a nest reach while the others stand still."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod

from xdsl.ir import SSAValue

from treadle.dialects.graph.definition import Scalar
from treadle.dialects.loop import Swizzle, swizzle_of_rows
from treadle.index.algebra import split_linear
from treadle.index.expr import Expr, const, floordiv, mod, var
from treadle.schedules.kernel_builder import Index, KernelBuilder
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


# How the box of a read lies in the memory that it is staged in.

_VECTOR_BYTES = 16


@dataclass(frozen=True)
class Layout:
    """A buffer whose dimensions are the levels that stand apart, then those of the tensor in another order.

    order: the tensor's dimensions, outermost first; padding: elements behind each row that are never used
    swizzle: how chunks of rows are permuted
    """

    box: Box
    order: tuple[int, ...]
    padding: int = 0
    swizzle: Swizzle | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the buffer."""
        *outer, row = (self.box.extents[dim] for dim in self.order)
        return (*self.box.apart.values(), *outer, row + self.padding)

    @property
    def elements(self) -> int:
        """Of the buffer."""
        return prod(self.shape)


def layout_of(box: Box, rank_of_level: Sequence[int], nearest: Sequence[int], element_bytes: int | None) -> Layout:
    """The layout in which dimensions that inner levels move lie innermost.

    rank_of_level: levels of a higher rank are further inside; nearest: the tensor's dimensions in its own memory, the
    nearest last; element_bytes: None for memory without banks. Rows that are filled across get 16 bytes of padding
    where that makes their beginnings odd multiples of 16 bytes: the lanes that store one column of 8 rows then meet in
    no bank.
    """
    moved = {n: box.place_steps(n) for n in box.steps}

    def inmost(dim: int) -> int:
        return max((rank_of_level[n] for n, steps in moved.items() if steps[dim]), default=-1)

    order = tuple(sorted(range(len(box.extents)), key=inmost))
    if element_bytes is None:
        return Layout(box, order)
    unit, row = _VECTOR_BYTES // element_bytes, order[-1]
    line = next((dim for dim in reversed(nearest) if box.extents[dim] > 1), row)
    return Layout(box, order, unit if line != row and box.extents[row] % (2 * unit) == 0 else 0)


@dataclass(frozen=True)
class MatrixRows:
    """How the box of an operand of a warp's products lies in rows of whole chunks of 16 bytes, which
    `loop.load_matrix` loads.

    along: the dimension of the tensor that a row runs along; along_k: whether that is the one that terms move along
    """

    along: int
    along_k: bool


def matrix_rows(box: Box, nearest: Sequence[int], own: int, k: int, element_bytes: int) -> MatrixRows | None:
    """The rows of an operand whose rows, or columns, are the iterations of level `own`, and its terms those of `k`.

    Of several the one that lies nearest in the tensor's own memory; None where no dimension's neighbours are neighbours
    along one of both levels alone, beginning at multiples of 16 bytes whatever the other levels do. Elements other than
    of 16 bits are not transposed while they are loaded: their rows run along the terms.
    """
    unit = _VECTOR_BYTES // element_bytes
    for dim in reversed(nearest):
        for level in (k, own) if element_bytes == 2 else (k,):
            steps = box.place_steps(level)
            alone = steps[dim] == 1 and sum(map(abs, steps)) == 1
            others = (box.place_steps(n)[dim] for n in box.steps if n != level)
            if alone and not any(size % unit for size in (box.extents[dim], box.low[dim], *others)):
                return MatrixRows(dim, level == k)
    return None


def matrix_layout(box: Box, rows: MatrixRows, own: int, k: int, element_bytes: int) -> Layout:
    """The layout whose rows are those, and neighbours across them what the other of both levels moves; swizzled, so
    that neither copies nor loads of fragments meet in a bank."""
    across = box.place_steps(own if rows.along_k else k)
    others = [dim for dim in range(len(box.extents)) if dim != rows.along]
    order = (*sorted(others, key=lambda dim: across[dim] != 0), rows.along)
    return Layout(box, order, swizzle=swizzle_of_rows(box.extents[rows.along] * element_bytes, element_bytes))


# A stage's buffer while the kernel is written: where in it an element is that was read at some position.


@dataclass(frozen=True)
class StagedBuffer:
    """The buffer that holds a staged read, and the address of an element in it.

    half: which of several buffers is read; None where there is one."""

    layout: Layout
    buffer: SSAValue
    half: Index | None = None

    def load(self, b: KernelBuilder, at: Mapping[int, Index]) -> Scalar:
        """The element that the read gives where the levels have done so many iterations."""
        return b.load(self.buffer, self.indices(b, at))

    def indices(self, b: KernelBuilder, at: Mapping[int, Index]) -> list[Index]:
        """The buffer's indices of the element that the read gives where the levels have done so many iterations."""
        return self._address(b, at, [b.index(low) for low in self.layout.box.low])

    def load_for(self, b: KernelBuilder, at: Mapping[int, Index], box: Box, place: Sequence[Index]) -> Scalar:
        """The element at a place of an inner stage's box; `at` has those levels, too, that stand apart in it."""
        own = self.layout.box
        inner = {n for n in box.steps if n not in box.apart}
        scales = [there // here for there, here in zip(box.scale, own.scale, strict=True)]
        first = [
            (index - low) * scale + here
            for index, low, scale, here in zip(place, box.low, scales, own.low, strict=True)
        ]
        return b.load(self.buffer, self._address(b, {n: i for n, i in at.items() if n not in inner}, first))

    def address(self, b: KernelBuilder, apart: Mapping[int, Index], place: Sequence[Index]) -> list[Index]:
        """The buffer's indices of a place of the box."""
        halves = [] if self.half is None else [self.half]
        outer = [apart.get(n, b.index(0)) for n in self.layout.box.apart]
        return [*halves, *outer, *(place[dim] for dim in self.layout.order)]

    def _address(self, b: KernelBuilder, at: Mapping[int, Index], first: Sequence[Index]) -> list[Index]:
        box, place = self.layout.box, list(first)
        for n in box.steps:
            for dim, step in enumerate(box.place_steps(n)):
                if step and n in at:
                    place[dim] = place[dim] + at[n] * step
        return self.address(b, at, place)
