"""Converters by family of operators; importing this package registers all of them."""

from treadle.frontends.onnx.converters import (
    activation,
    constant,
    control,
    cumulative,
    einsum,
    elementwise,
    fourier,
    grid_sample,
    indexing,
    linear,
    normalize,
    order,
    pad,
    pool,
    quantize,
    recurrent,
    reduce,
    reshape,
    resize,
    scatter,
    softmax,
)
from treadle.frontends.onnx.registry import find_conversion

FAMILIES = (
    activation, constant, control, cumulative, einsum, elementwise, fourier, grid_sample, indexing, linear, normalize,
    order, pad, pool, quantize, recurrent, reduce, reshape, resize, scatter, softmax,
)  # fmt: skip
"""Every module that registers converters."""

__all__ = ["FAMILIES", "find_conversion"]
