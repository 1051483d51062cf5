"""Element types: the correspondence of xDSL's types with NumPy's."""

from __future__ import annotations

from typing import Any, cast

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IntegerType,
    Signedness,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
)
from xdsl.ir import Attribute, TypeAttribute

ui8, ui16, ui32, ui64 = (IntegerType(bits, Signedness.UNSIGNED) for bits in (8, 16, 32, 64))
"""Unsigned integers. Others are signless, as `arith` has them, and count as signed."""

_TO_NUMPY: dict[Attribute, np.dtype[np.generic]] = {
    bf16: np.dtype(ml_dtypes.bfloat16),
    f16: np.dtype(np.float16),
    f32: np.dtype(np.float32),
    f64: np.dtype(np.float64),
    i1: np.dtype(np.bool_),
    i8: np.dtype(np.int8),
    i16: np.dtype(np.int16),
    i32: np.dtype(np.int32),
    i64: np.dtype(np.int64),
    ui8: np.dtype(np.uint8),
    ui16: np.dtype(np.uint16),
    ui32: np.dtype(np.uint32),
    ui64: np.dtype(np.uint64),
}
ELEMENT_TYPES: tuple[Attribute, ...] = tuple(_TO_NUMPY)
"""The element types of tensors."""

_FROM_NUMPY = {dtype: type for type, dtype in _TO_NUMPY.items()}


def numpy_dtype(type: Attribute) -> np.dtype[np.generic]:
    """The NumPy dtype of an element type; KeyError for a type that tensors do not hold."""
    return _TO_NUMPY[type]


def element_type(dtype: np.dtype[np.generic]) -> TypeAttribute:
    """The element type of a NumPy dtype; KeyError for an unsupported one."""
    type = _FROM_NUMPY[np.dtype(dtype)]
    assert isinstance(type, TypeAttribute)
    return type


def is_float(type: Attribute) -> bool:
    """Whether elements of this type are floating point numbers."""
    return isinstance(type, BFloat16Type | Float16Type | Float32Type | Float64Type)


def integer_limits(type: Attribute) -> tuple[int, int]:
    """The lowest and the highest number of an integer type."""
    limits = np.iinfo(cast("Any", numpy_dtype(type)))
    return int(limits.min), int(limits.max)


def is_supported(type: Attribute) -> bool:
    """Whether tensors of this element type exist."""
    return type in _TO_NUMPY


def is_float_dtype(dtype: np.dtype[np.generic]) -> bool:
    """Whether an array holds floating point numbers; NumPy itself does not count bfloat16 among them."""
    return dtype.kind == "f" or dtype == _TO_NUMPY[bf16]


def lowest(dtype: np.dtype[np.generic]) -> float:
    """The lowest finite number of a float type."""
    return float(cast("float", ml_dtypes.finfo(dtype).min))


def epsilon(dtype: np.dtype[np.generic]) -> float:
    """The distance from 1 to the next number of a float type."""
    return float(cast("float", ml_dtypes.finfo(dtype).eps))


def smallest_normal(dtype: np.dtype[np.generic]) -> float:
    """The smallest positive number of a float type that has all its digits."""
    return float(cast("float", ml_dtypes.finfo(dtype).smallest_normal))


def represents(wide: Attribute, narrow: Attribute) -> bool:
    """Whether every value of the element type `narrow` is a value of `wide`, so that a cast loses nothing."""
    if wide == narrow or narrow == i1:
        return True
    if wide == i1 or (is_float(narrow) and not is_float(wide)):
        return False
    if not is_float(wide):
        (low, high), (lowest, highest) = integer_limits(narrow), integer_limits(wide)
        return lowest <= low and high <= highest
    digits, largest, smallest = _float_format(wide)
    if not is_float(narrow):
        # The lowest number, a power of two, needs one bit only.
        bits = integer_limits(narrow)[1].bit_length()
        return digits >= bits and largest > bits
    needed, high, low = _float_format(narrow)
    return digits >= needed and largest >= high and smallest <= low


def _float_format(type: Attribute) -> tuple[int, int, int]:
    """Binary digits of a float type, the hidden one too; exponents: above its largest number, of its smallest."""
    dtype = numpy_dtype(type)
    digits = cast("int", ml_dtypes.finfo(dtype).nmant) + 1
    return digits, cast("int", ml_dtypes.finfo(dtype).maxexp), cast("int", ml_dtypes.finfo(dtype).minexp)


def accumulator(type: Attribute) -> Attribute:
    """The type that sums of elements of `type` are carried in: float32 for floats of 16 bits, rounded once."""
    return f32 if is_float(type) and byte_width(type) < byte_width(f32) else type


def byte_width(type: Attribute) -> int:
    """Bytes that one element takes in memory (a bool takes one)."""
    return numpy_dtype(type).itemsize
