"""Products of tiles on a CPU's matrix unit, as kernels' text calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from treadle.dialects import loop
from treadle.dialects.graph.numpy_scalars import scalar_dtype

Buffer = list[Any]
_STEP = 32
"""Terms of bf16 that the unit takes at once: even and odd ones have sums of their own."""


def unit_product(
    op: loop.MultiplyTilesOp, unset: Callable[[], None]
) -> Callable[[Buffer, int, Buffer, int, Buffer, int], None]:
    """`loop.multiply_tiles` of buffers and the offsets of the operands in them; `unset` is called where an element was
    never stored."""
    rows, columns, depth = op.extents
    left_rows, whole = op.left, loop.whole_row(op.elements[0])
    places = [step * left_rows.apart + tap for step in range(op.steps // len(left_rows.taps)) for tap in left_rows.taps]
    side = loop.SIDE_BY_SIDE[op.elements[1]]
    sums = scalar_dtype(loop.SUMS[op.elements[0]])

    def product(acc: Buffer, row: int, a: Buffer, first: int, b: Buffer, start: int) -> None:
        begins = range(first, first + rows * left_rows.stride, left_rows.stride)
        lines = [[x for at in places for x in a[begin + at : begin + at + whole]] for begin in begins]
        panel = b[start : start + depth * columns]
        if any(value is None for line in (*lines, panel) for value in line):
            unset()
        left = np.array(lines).astype(sums)
        right = np.array(panel).reshape(depth // side, columns, side).swapaxes(1, 2).reshape(depth, columns)
        acc[row : row + rows * columns] = list(_total(left, right.astype(sums)).reshape(-1))

    return product


def _total(left: Any, right: Any) -> Any:
    if left.dtype != np.float32:
        return left @ right
    total = np.zeros((len(left), right.shape[1]), np.float32)
    for k in range(0, left.shape[1], _STEP):
        even, odd = (left[:, at : k + _STEP : 2] @ right[at : k + _STEP : 2] for at in (k, k + 1))
        total = total + (even + odd)
    return total


__all__ = ["unit_product"]
