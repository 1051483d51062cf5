"""Positions of the elements that data chooses, and a number that says how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.dialects.builtin import i64

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.cumulative import cumulative
from treadle.frontends.common.extent import Extent, Symbolic, bound_of


def found_positions(g: GraphBuilder, chosen: Tensor) -> tuple[Tensor, Extent]:
    """The positions of the true elements of a vector of bools, in order, and their number; those beyond it are some
    position of the vector.

    The j-th is the first at which the number of true ones so far exceeds j, which bisection finds.
    """
    (count,) = chosen.shape
    so_far = cumulative(g, g.cast(chosen, i64), 0, "add")
    number = g.constant(np.arange(count))
    position = g.constant(np.zeros(count, np.int64))
    step = 1 << max(bound_of(count) - 1, 1).bit_length()
    while step:
        probe = g.add(position, step)
        below = g.gather(so_far, g.binary("min", g.sub(probe, 1), count - 1), 0)
        lower = g.binary("and", g.binary("le", probe, count), g.binary("le", below, number))
        position = g.where(lower, probe, position)
        step >>= 1
    extent = g.found.add(g.entry(so_far, 0, count - 1), count)
    return g.binary("min", position, count - 1), extent


def coordinates(g: GraphBuilder, position: Tensor, shape: tuple[int, ...]) -> list[Tensor]:
    """What positions in a flat tensor are along each of its dimensions."""
    found: list[Tensor] = []
    for d, extent in enumerate(shape):
        stride = prod(shape[d + 1 :])
        along = g.div(position, stride) if stride > 1 else position
        found.append(g.binary("mod", along, extent) if d else along)
    return found


def cut(g: GraphBuilder, x: Tensor, extents: Sequence[Symbolic]) -> Tensor:
    """The part of a tensor within extents, which its own are the largest of."""
    return Tensor(x.type, None, g.value(x), None, tuple(extents))


__all__ = ["coordinates", "cut", "found_positions"]
