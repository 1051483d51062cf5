"""Mixtures of experts: products of rows with matrices that data choose, and how many rows chose each."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.dialects.builtin import i64

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import Extent, Symbolic, bound_of
from treadle.frontends.common.indexing import cumulative
from treadle.frontends.torch.call import Call, converts


@converts("histc.default")
def histogram(c: Call, g: GraphBuilder) -> Tensor:
    """How many elements lie in each of the bins of equal width from `min` to `max`, which the last one has, too."""
    x, bins, low, high = c.tensor(), c.int("bins"), float(c.value("min")), float(c.value("max"))
    if not x.is_float or not low < high:
        raise c.error(f"bins from {low} to {high} of {x.element}", "floats, and min below max")
    x = g.widened(g.reshape(x, (prod(x.shape),)))
    inside = g.binary("and", g.binary("ge", x, low), g.binary("le", x, high))
    place = g.unary("floor", g.div(g.mul(g.sub(x, low), bins), high - low))
    place = g.where(inside, g.binary("min", place, bins - 1), g.scalar(-1, place))
    numbers = g.constant(np.arange(bins).astype(place.dtype)[:, None])
    here = g.binary("eq", g.reshape(place, (1, *place.shape)), numbers)
    return g.cast(g.reduce("add", g.cast(here, i64), [1], keep=False), c.element)


# Rows that are sorted by the matrix that they are multiplied with.

_ALONE, _COPIED = 16, 40
"""As many rows of a product take about the time of one row with a matrix of its own, and of a copy of a matrix, which
blocks of rows need: measured on a CPU with matrices of 2 to 16 MB."""


@dataclass(frozen=True)
class Groups:
    """Which rows belong to which of `experts` matrices: those below `ends [experts]` that are not below the matrix
    before's."""

    ends: Tensor
    rows: Symbolic
    experts: int

    @property
    def count(self) -> int:
        """The number of rows, the largest of a range."""
        return bound_of(self.rows)

    def owner(self, g: GraphBuilder, rows: Tensor, ends: Tensor) -> Tensor:
        """The matrix of each row `[n]`: as many as end before it; the last one for rows behind all."""
        past = g.binary("le", g.reshape(ends, (1, self.experts)), g.reshape(rows, (*rows.shape, 1)))
        return g.binary("min", g.reduce("add", g.cast(past, i64), [1], keep=False), self.experts - 1)

    def blocks(self, size: int) -> int:
        """At most as many blocks of a number of rows are needed, each of one matrix."""
        return min(self.count, self.count // size + min(self.experts, self.count))

    def block_size(self) -> int:
        """The number of rows in a block that costs the least, with at most two copies of all matrices; 0 where each
        matrix with all rows does, and for a range of rows."""
        if isinstance(self.rows, Extent):
            return 0
        sizes = [size for size in (8, 32, 128, 512, 2048) if self.blocks(size) <= 2 * self.experts]
        costs = {1: self.count * _ALONE} | {size: self.blocks(size) * (size + _COPIED) for size in sizes}
        best = min(costs, key=costs.__getitem__)
        return best if costs[best] < self.experts * self.count else 0


@converts("transformers.grouped_mm_fallback.default", "_grouped_mm.default")
def grouped_product(c: Call, g: GraphBuilder) -> Tensor:
    """`[rows, outputs]` of `[rows, inputs]` and `[experts, inputs, outputs]`, where the matrix `n` multiplies the rows
    from `offs[n - 1]` to `offs[n]`; rows behind all become 0."""
    own = c.name.startswith("_grouped_mm")
    x, w, ends = (c.optional(name) for name in (("self", "mat2", "offs") if own else ("input", "weight", "offs")))
    assert x is not None and w is not None
    if ends is None or x.rank != 2 or w.rank != 3 or 0 in (*x.shape, *w.shape) or (own and c.value("bias") is not None):
        raise c.error(f"operands of shapes {x.shape} and {w.shape}", "[rows, inputs] and [experts, inputs, outputs]")
    groups = Groups(g.cast(ends, i64), x.shape[0], bound_of(w.shape[0]))
    size = groups.block_size()
    y = _of_blocks(g, x, w, groups, size) if size else _of_all(g, x, w, groups)
    rows = g.reshape(g.iota(groups.rows), (groups.rows, 1))
    given = g.binary("lt", rows, g.narrow(groups.ends, 0, groups.experts - 1, 1))
    return g.cast(g.where(given, y, g.scalar(0, y)), c.element)


def _of_all(g: GraphBuilder, x: Tensor, w: Tensor, groups: Groups) -> Tensor:
    """Every matrix with every row, of which each row keeps one."""
    products = g.matmul(x, w)
    owner = g.reshape(groups.owner(g, g.iota(groups.rows), groups.ends), (1, groups.rows, 1))
    mine = g.binary("eq", owner, g.constant(np.arange(groups.experts).reshape(-1, 1, 1)))
    return g.reduce("add", g.where(mine, products, g.scalar(0, products)), [0], keep=False)


def _of_blocks(g: GraphBuilder, x: Tensor, w: Tensor, groups: Groups, size: int) -> Tensor:
    """Blocks of rows, each with its own copy of the matrix that all of them are multiplied with. Source: Gale et al.,
    "MegaBlocks: efficient sparse training with mixture-of-experts", MLSys 2023, section 4, with padded blocks."""
    count, experts, blocks = groups.count, groups.experts, groups.blocks(size)
    starts = g.concat([g.constant(np.zeros(1, np.int64)), g.narrow(groups.ends, 0, 0, experts - 1)], 0)
    needed = g.div(g.add(g.sub(groups.ends, starts), size - 1), size)
    last = cumulative(g, needed, 0, "add")
    first = g.sub(last, needed)
    mine = groups.owner(g, g.iota(blocks), last)  # the matrix of each block
    begin = g.add(g.gather(starts, mine, 0), g.mul(g.sub(g.iota(blocks), g.gather(first, mine, 0)), size))
    rows = g.add(g.reshape(begin, (blocks, 1)), g.iota(size))
    rows = g.binary("min", g.binary("max", rows, 0), count - 1)  # of a block that has fewer, others
    products = g.matmul(g.gather(x, rows, 0), g.gather(w, mine, 0))
    numbers = g.iota(count)
    own = groups.owner(g, numbers, groups.ends)
    places = g.add(g.mul(g.gather(first, own, 0), size), g.sub(numbers, g.gather(starts, own, 0)))
    return g.gather(g.reshape(products, (blocks * size, w.shape[2])), places, 0)
