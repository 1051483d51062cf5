"""Converters by family; importing this package registers them all."""

from treadle.frontends.onnx.converters import (
    activation,
    constant,
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
from treadle.frontends.onnx.registry import find_converter

FAMILIES = (
    activation, constant, elementwise, indexing, linear, normalize, pad, pool, reduce, reshape, resize,
    softmax,
)  # fmt: skip
"""Every module that registers converters."""

__all__ = ["FAMILIES", "find_converter"]
