"""Reductions across the lanes of a warp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from treadle.backends.reference.kernel_tiles import WarpFunction
from treadle.dialects import loop

_COMBINE: Mapping[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def folder(op: loop.WarpReduceOp) -> WarpFunction:
    """`loop.warp_reduce`: lanes bring (value,), and get the fold of their group.

    It takes `log2(lanes)` rounds, in which lane l folds with lane `l ^ distance`.
    """
    combine, lanes = _COMBINE[op.kind.data], op.lanes

    def fold(brought: Sequence[Any]) -> Sequence[Any]:
        values, distance = np.array([value for (value,) in brought]), lanes // 2
        while distance:
            values = combine(values, values[np.arange(len(values)) ^ distance])
            distance //= 2
        return list(values)

    return fold


__all__ = ["folder"]
