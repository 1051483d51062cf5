"""Converters by family of operators; importing this package registers all of them."""

from treadle.frontends.onnx.converters import (
    activation,
    attention,
    control,
    data_extents,
    elementwise,
    fourier,
    indexing,
    legacy_opsets,
    linear,
    non_max_suppression,
    pool,
    quantize,
    recurrent,
    reduce,
    reshape,
    resize,
)
from treadle.frontends.onnx.converters.microsoft import attention as microsoft_attention
from treadle.frontends.onnx.converters.microsoft import experts as microsoft_experts
from treadle.frontends.onnx.converters.microsoft import fused as microsoft_fused
from treadle.frontends.onnx.converters.microsoft import quantized as microsoft_quantized
from treadle.frontends.onnx.functions import find_conversion

FAMILIES = (
    activation, attention, legacy_opsets, control, data_extents, elementwise, fourier, indexing, linear,
    non_max_suppression, pool, quantize, recurrent, reduce, reshape, resize, microsoft_attention, microsoft_experts,
    microsoft_fused, microsoft_quantized,
)  # fmt: skip
"""Every module that registers converters."""

__all__ = ["FAMILIES", "find_conversion"]
