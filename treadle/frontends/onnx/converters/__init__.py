"""Converters by family of operators; importing this package registers all of them."""

from treadle.frontends.onnx.converters import (
    activation,
    before_broadcasting,
    constant,
    control,
    cumulative,
    data_extents,
    deform_conv,
    determinant,
    einsum,
    elementwise,
    fourier,
    grid_sample,
    indexing,
    linear,
    non_max_suppression,
    normalize,
    order,
    pad,
    pool,
    quantize,
    recurrent,
    reduce,
    reshape,
    resize,
    roi_align,
    scatter,
    softmax,
    tf_idf,
)
from treadle.frontends.onnx.converters.microsoft import activation as microsoft_activation
from treadle.frontends.onnx.converters.microsoft import attention as microsoft_attention
from treadle.frontends.onnx.converters.microsoft import blocks as microsoft_blocks
from treadle.frontends.onnx.converters.microsoft import gather as microsoft_gather
from treadle.frontends.onnx.converters.microsoft import normalize as microsoft_normalize
from treadle.frontends.onnx.converters.microsoft import product as microsoft_product
from treadle.frontends.onnx.converters.microsoft import quantized as microsoft_quantized
from treadle.frontends.onnx.converters.microsoft import recurrent as microsoft_recurrent
from treadle.frontends.onnx.registry import find_conversion

FAMILIES = (
    activation, before_broadcasting, constant, control, cumulative, data_extents, deform_conv, determinant, einsum,
    elementwise, fourier, grid_sample, indexing, linear, normalize, non_max_suppression, order, pad, pool, quantize,
    recurrent, reduce, reshape, resize, roi_align, scatter, softmax, tf_idf, microsoft_activation,
    microsoft_attention, microsoft_blocks, microsoft_gather, microsoft_normalize, microsoft_product,
    microsoft_quantized, microsoft_recurrent,
)  # fmt: skip
"""Every module that registers converters."""

__all__ = ["FAMILIES", "find_conversion"]
