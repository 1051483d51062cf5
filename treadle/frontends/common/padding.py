"""Padding, of which negative pads cut elements off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph import PadOp
from treadle.frontends.common.builder import GraphBuilder, Tensor

MOST_WRAPPED = 1 << 24
"""Elements that are wrapped around an end of a dimension: their positions are a constant."""


def padded(g: GraphBuilder, x: Tensor, mode: str, pads: Sequence[int], value: Tensor) -> Tensor:
    """Negative pads cut elements off before the others add some."""
    before, after = pads[: x.rank], pads[x.rank :]
    starts = [max(-p, 0) for p in before]
    sizes = [e - s - max(-q, 0) for e, s, q in zip(x.shape, starts, after, strict=True)]
    x = g.slice(x, starts, sizes, [1] * x.rank)
    added = [max(p, 0) for p in pads]
    if mode == "wrap":
        return _wrapped(g, x, added)
    return g.emit(lambda v: PadOp(mode, v[0], v[1], added), x, value) if any(added) else x


def _wrapped(g: GraphBuilder, x: Tensor, pads: Sequence[int]) -> Tensor:
    """Copies of the tensor around it; VerifyException where there is nothing to copy, or too much of it."""
    for axis, extent in enumerate(x.shape):
        before, after = pads[axis], pads[axis + x.rank]
        if not before and not after:
            continue
        if not extent or max(before, after) > MOST_WRAPPED:
            raise VerifyException(f"pads {before}, {after} of an extent of {extent}: up to {MOST_WRAPPED} of some")
        x = g.gather(x, g.constant(np.arange(-before, extent + after) % extent), axis)
    return x


__all__ = ["MOST_WRAPPED", "padded"]
