"""Elements by their rank."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import i64

from treadle.frontends.common.builder import GraphBuilder, Tensor


def first_positions(g: GraphBuilder, rows: Tensor, count: int, largest: bool) -> Tensor:
    """Of the first elements of each row, in order."""
    *lead, extent = rows.shape
    mine, other = g.reshape(rows, (*lead, extent, 1)), g.reshape(rows, (*lead, 1, extent))
    places = np.arange(extent)
    earlier = g.constant(places < places[:, None])
    precedes = g.binary("gt" if largest else "lt", other, mine)
    same = g.binary("eq", other, mine)
    if rows.is_float:
        nan, other_nan = g.unary("isnan", mine), g.unary("isnan", other)
        precedes = g.binary("or", precedes, g.binary("and", other_nan, g.unary("not", nan)))
        same = g.binary("or", same, g.binary("and", other_nan, nan))
    before = g.binary("or", precedes, g.binary("and", same, earlier))
    rank = g.reduce("add", g.cast(before, i64), [len(lead) + 1], keep=False)
    chosen = g.binary("eq", g.reshape(rank, (*lead, 1, extent)), g.constant(np.arange(count)[:, None]))
    here = g.where(chosen, g.constant(places), g.constant(np.array(0)))
    return g.reduce("add", here, [len(lead) + 1], keep=False)


__all__ = ["first_positions"]
