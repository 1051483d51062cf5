"""Elements by their rank."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import i64

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import bound_of
from treadle.frontends.common.indexing import gather_along
from treadle.frontends.common.reserve import Reserves


def ordered(node: Reserves, g: GraphBuilder, x: Tensor, axis: int, count: int, largest: bool) -> tuple[Tensor, Tensor]:
    """The first elements along an axis, in order, and their positions; of equal ones the first.

    An element's rank is the number of those before it, which takes `n^2` comparisons; NaN comes before all numbers.
    """
    perm = [*(d for d in range(x.rank) if d != axis), axis]
    back = [perm.index(d) for d in range(x.rank)]
    rows = g.transpose(x, perm)
    positions = _first_positions(g, rows, count, largest)
    values = gather_along(node, g, rows, positions, rows.rank - 1, laid_out=True)
    return g.transpose(values, back), g.transpose(positions, back)


def _first_positions(g: GraphBuilder, rows: Tensor, count: int, largest: bool) -> Tensor:
    """Of the first elements of each row, in order."""
    *lead, extent = rows.shape
    mine, other = g.reshape(rows, (*lead, extent, 1)), g.reshape(rows, (*lead, 1, extent))
    places = np.arange(bound_of(extent))
    earlier = g.constant(places < places[:, None], (extent, extent))
    precedes = g.binary("gt" if largest else "lt", other, mine)
    same = g.binary("eq", other, mine)
    if rows.is_float:
        nan, other_nan = g.unary("isnan", mine), g.unary("isnan", other)
        precedes = g.binary("or", precedes, g.binary("and", other_nan, g.unary("not", nan)))
        same = g.binary("or", same, g.binary("and", other_nan, nan))
    before = g.binary("or", precedes, g.binary("and", same, earlier))
    rank = g.reduce("add", g.cast(before, i64), [len(lead) + 1], keep=False)
    chosen = g.binary("eq", g.reshape(rank, (*lead, 1, extent)), g.constant(np.arange(count)[:, None]))
    here = g.where(chosen, g.iota(extent), g.constant(np.array(0)))
    return g.reduce("add", here, [len(lead) + 1], keep=False)


__all__ = ["ordered"]
