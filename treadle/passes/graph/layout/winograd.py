"""Dense convolutions of 3x3 filters as Winograd's, whose filters are transformed here, in float64, and rounded once.

Source: Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016.
"""

from __future__ import annotations

from math import prod

import numpy as np
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import ConvOp, WinogradConvOp
from treadle.dialects.graph.definition import int_list
from treadle.dialects.graph.winograd import KERNEL, Matrix, filtering
from treadle.passes.graph.rewriting import Array, constant_of, constant_op, shape_of


def has_tiles(op: ConvOp) -> bool:
    """Whether a convolution is one of 3x3 filters that are constant and finite, of one group, stride and dilation 1."""
    strides, dilations = (int_list(op.properties, name) for name in ("strides", "dilations"))
    plain = strides == dilations == (1, 1) and op.groups.value.data == 1
    if not plain or shape_of(op.w)[2:] != (KERNEL, KERNEL):
        return False
    weights = constant_of(op.w)
    return weights is not None and bool(np.isfinite(weights).all())


def in_tiles(op: ConvOp, x: SSAValue, outputs: int) -> list[Operation]:
    """The operations of which the last gives the form of a convolution in tiles of `outputs` by `outputs` of an image
    whose form is `x`, `[N, blocks, H, W, lanes]`."""
    weights = constant_of(op.w)
    assert weights is not None, "has_tiles asks for constant filters"
    filters = constant_op(_transformed(weights, outputs, -op.shape[1] % shape_of(x)[-1]))
    return [filters, WinogradConvOp(x, filters.result, outputs, int_list(op.properties, "pads"))]


def _transformed(weights: Array, outputs: int, missing: int) -> Array:
    """Filters `[OC, C, 3, 3]` as `[products, C, OC + missing]`; those that are missing are zeros."""
    transform = _array(filtering(outputs).filter)
    oc, ic, *_ = weights.shape
    tiles = np.einsum("pi,qj,ocij->pqco", transform, transform, weights.astype(np.float64))
    matrices = tiles.reshape(prod(tiles.shape[:2]), ic, oc).astype(weights.dtype)
    return np.ascontiguousarray(np.pad(matrices, [(0, 0), (0, 0), (0, missing)]))


def _array(matrix: Matrix) -> Array:
    return np.array([[float(value) for value in row] for row in matrix])


__all__ = ["has_tiles", "in_tiles"]
