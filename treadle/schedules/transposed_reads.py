"""Which reads of a definition are consecutive along other dimensions of the result than its last ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.ir import SSAValue

from treadle.dialects.graph import AtOp, ComputeOp
from treadle.index.algebra import stride_along
from treadle.index.contiguity import moves_as_vectors, widest
from treadle.schedules.access_analysis import (
    INNER,
    DefinitionAccesses,
    collapsed,
    collapsed_in_lanes,
)


@dataclass(frozen=True)
class TransposedReads:
    """Reads that advance by one element along the result's dimensions `first` to `last` taken as one, while the result
    advances along the dimensions from `last` on.

    first, last: dimensions of the result, `last` not included
    """

    compute: ComputeOp
    reads: tuple[AtOp, ...]
    first: int
    last: int

    @property
    def group_shape(self) -> tuple[int, ...]:
        return self.compute.shape[self.first : self.last]

    @property
    def suffix_shape(self) -> tuple[int, ...]:
        return self.compute.shape[self.last :]

    @property
    def other_shape(self) -> tuple[int, ...]:
        """The dimensions before the group; every dimension after it is in the suffix."""
        return self.compute.shape[: self.first]

    @property
    def balance(self) -> tuple[int, int]:
        """What a tile is better for: long stretches both ways."""
        return min(self.extent, self.suffix_extent, 32), self.extent

    @property
    def extent(self) -> int:
        return prod(self.group_shape)

    @property
    def suffix_extent(self) -> int:
        return prod(self.suffix_shape)

    def read_width(self, most: int) -> int:
        """How many elements along the operands the transposed reads can take at once, a power of two up to `most`."""
        return widest(most, lambda n: self.extent % n == 0 and self._walks_in_vectors(self.reads, self._group, n))

    def write_width(self, most: int) -> int:
        """How many elements along the result can be written at once, as far as the other reads allow it."""
        others = [at for at in self.compute.reads() if at not in self.reads]
        return widest(most, lambda n: self.suffix_extent % n == 0 and self._walks_in_vectors(others, self._suffix, n))

    def _walks_in_vectors(self, reads: Sequence[AtOp], dims: slice, lanes: int) -> bool:
        accesses = DefinitionAccesses(self.compute, collapsed_in_lanes(self.compute, dims, lanes))
        return moves_as_vectors(map(accesses.position, reads), accesses.conditions(), lanes)

    @property
    def _group(self) -> slice:
        return slice(self.first, self.last)

    @property
    def _suffix(self) -> slice:
        return slice(self.last, None)


def transposed_reads(compute: ComputeOp) -> TransposedReads | None:
    """The reads that a kernel along the result would find scattered, with the longest stretch of dimensions along which
    they are consecutive; None where there are none."""
    rank = len(compute.shape)
    if not rank:
        return None
    accesses = DefinitionAccesses(compute)
    reads = [at for at in compute.reads() if at.parent_block() is compute.body.block]
    scattered = [at for at in reads if stride_along(accesses.position(at), _innermost(compute)) not in (0, 1)]
    if not scattered:
        return None
    best: TransposedReads | None = None
    for end in range(1, rank):
        for first in range(end):
            of_group = DefinitionAccesses(compute, collapsed(compute, slice(first, end)))
            found = tuple(at for at in scattered if stride_along(of_group.position(at), INNER) == 1)
            candidate = TransposedReads(compute, found, first, end)
            if found and (best is None or candidate.balance > best.balance):
                best = candidate
    return best


def _innermost(compute: ComputeOp) -> SSAValue:
    """The last dimension of the result that has more than one element."""
    args = compute.body.block.args
    return next((arg for arg, extent in zip(args[::-1], compute.shape[::-1], strict=True) if extent > 1), args[-1])
