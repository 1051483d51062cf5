"""How the box of a read lies in the memory that it is staged in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from treadle.schedules.nest.box import Box

_VECTOR_BYTES = 16


@dataclass(frozen=True)
class Layout:
    """A buffer whose dimensions are the levels that stand apart, then those of the tensor in another order.

    order: the tensor's dimensions, outermost first; padding: elements behind each row that are never used
    """

    box: Box
    order: tuple[int, ...]
    padding: int

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
        return Layout(box, order, 0)
    unit, row = _VECTOR_BYTES // element_bytes, order[-1]
    line = next((dim for dim in reversed(nearest) if box.extents[dim] > 1), row)
    return Layout(box, order, unit if line != row and box.extents[row] % (2 * unit) == 0 else 0)


__all__ = ["Layout", "layout_of"]
