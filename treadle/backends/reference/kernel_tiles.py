"""Functions that a kernel's text calls for asynchronous copies and for tile products of a warp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from treadle.dialects import loop
from treadle.dialects.loop import WARP

Array = NDArray[Any]
Flight: TypeAlias = list[list[tuple[list[Any], int, Any]]]
"""Copies that a thread started, oldest group first: buffer, offset and value of each element."""
WarpFunction: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
"""From what each lane brings to what each lane gets."""


_TF32_MASK = np.uint32(0xFFFFE000)


def start(flight: Flight, buffer: list[Any], offset: int, value: Any) -> None:
    """Starts the copy of one element, whose destination is unset until the copy completes."""
    buffer[offset] = None
    flight[-1].append((buffer, offset, value))


def land(flight: Flight, pending: int) -> None:
    """Completes groups until only the newest `pending` of those committed are incomplete."""
    while len(flight) - 1 > pending:
        for buffer, offset, value in flight.pop(0):
            buffer[offset] = value


def matrix_loader(op: loop.LoadMatrixOp, unset: Callable[[], None]) -> WarpFunction:
    """`loop.load_matrix`: lanes pass (buffer, offset) of rows, and get fragments; `unset` is called for an element that
    was never stored."""
    shape, count = op.fragment.type.get_shape(), op.matrices
    columns, transpose = 4 * shape[-1], op.transpose is not None

    def load(lanes: Sequence[Any]) -> Sequence[Any]:
        rows = [buffer[offset : offset + columns] for buffer, offset in lanes[: 8 * count]]
        if any(value is None for row in rows for value in row):
            unset()
        matrices = np.array(rows).reshape(count, 8, columns)
        if transpose:
            matrices = matrices.transpose(0, 2, 1)
        # Lane l has the l % 4-th register of row l / 4.
        registers = matrices.reshape(count, WARP, shape[-1])
        return [registers[:, lane].reshape(shape) for lane in range(WARP)]

    return load


def round_tf32(values: Array) -> Array:
    """`loop.round_tf32`: to 10 bits of mantissa, ties away from 0; what is not finite stays."""
    rounded = ((values.view(np.uint32) + np.uint32(0x1000)) & _TF32_MASK).view(np.float32)
    return np.where(np.isfinite(values), rounded, values)


def multiply(lanes: Sequence[Any]) -> Sequence[Any]:
    """`loop.mma`: lanes bring fragments of A, B and C, and get those of the product."""
    a, b, c = (np.stack(each) for each in zip(*lanes, strict=True))
    packed = a.shape[2]
    if packed == 1:
        a, b = ((x.astype(np.float32).view(np.uint32) & _TF32_MASK).view(np.float32) for x in (a, b))
    groups = (8, 4)
    # [g, t, half of K, half of M, c] to [half of M, g, half of K, t, c], and the like.
    left = a.reshape(*groups, 2, 2, packed).transpose(3, 0, 2, 1, 4).reshape(16, 8 * packed)
    right = b.reshape(*groups, 2, packed).transpose(2, 1, 3, 0).reshape(8 * packed, 8)
    before = c.reshape(*groups, 2, 2).transpose(2, 0, 1, 3).reshape(16, 8)
    # In f64, which holds sums of bytes, too; as i32 they wrap.
    after = before + left.astype(np.float64) @ right.astype(np.float64)
    after = after.astype(np.int64).astype(np.int32) if c.dtype == np.int32 else after.astype(np.float32)
    return list(after.reshape(2, 8, 4, 2).transpose(1, 2, 0, 3).reshape(WARP, 2, 2))


NAMESPACE: dict[str, object] = {"start": start, "land": land, "round_tf32": round_tf32}
"""What the generated text calls."""

__all__ = ["NAMESPACE", "WarpFunction", "matrix_loader", "multiply"]
