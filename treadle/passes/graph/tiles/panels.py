"""Constant matrices in panels, as a CPU core's matrix unit reads them."""

from __future__ import annotations

import numpy as np

from treadle.dialects.graph.linear import PANEL_COLUMNS
from treadle.passes.graph.rewriting import Array


def panels_of(matrix: Array) -> Array:
    """A matrix `[K, N]` as `[ceil(N / 32), K' / p, 32, p]`; p elements have 4 bytes, K' is K with zeros up to 16 p."""
    (rows, columns), side = matrix.shape, 4 // matrix.itemsize
    deep, wide = -(-rows // (16 * side)) * 16 * side, -(-columns // PANEL_COLUMNS)
    padded = np.zeros((deep, wide * PANEL_COLUMNS), matrix.dtype)
    padded[:rows, :columns] = matrix
    # Of integers, since NumPy moves elements of other libraries' types one by one.
    bits = padded.view(f"u{matrix.itemsize}").reshape(deep // side, side, wide, PANEL_COLUMNS)
    return np.ascontiguousarray(bits.transpose(2, 0, 3, 1)).view(matrix.dtype)


__all__ = ["panels_of"]
