"""Converters by family of operators; importing this package registers all of them."""

from treadle.frontends.onnx.converters import (
    activation,
    constant,
    control,
    elementwise,
    indexing,
    linear,
    normalize,
    pad,
    pool,
    reduce,
    reshape,
    resize,
    softmax,
)
from treadle.frontends.onnx.registry import find_conversion

FAMILIES = (
    activation, constant, control, elementwise, indexing, linear, normalize, pad, pool, reduce, reshape, resize,
    softmax,
)  # fmt: skip
"""Every module that registers converters."""

__all__ = ["FAMILIES", "find_conversion"]
