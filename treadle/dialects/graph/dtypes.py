"""Element types: the correspondence of xDSL's types with NumPy's; and how large a tensor may be."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import frexp, prod
from typing import Any, cast

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import (
    AnyFloat,
    FixedBitwidthType,
    Float4E2M1FNType,
    Float8E4M3FNType,
    Float8E4M3FNUZType,
    Float8E5M2FNUZType,
    Float8E5M2Type,
    Float8E8M0FNUType,
    IntegerType,
    Signedness,
    TensorType,
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
from xdsl.utils.exceptions import VerifyException

ui2, ui4, ui8, ui16, ui32, ui64 = (IntegerType(bits, Signedness.UNSIGNED) for bits in (2, 4, 8, 16, 32, 64))
"""Unsigned integers. Others are signless, as `arith` has them, and count as signed."""
i2, i4 = IntegerType(2), IntegerType(4)
f4e2m1fn, f8e4m3fn, f8e4m3fnuz = Float4E2M1FNType(), Float8E4M3FNType(), Float8E4M3FNUZType()
f8e5m2, f8e5m2fnuz, f8e8m0fnu = Float8E5M2Type(), Float8E5M2FNUZType(), Float8E8M0FNUType()
"""Floats of so many bits of exponent and of mantissa. Without infinities ("fn"), without a negative zero, too ("uz"),
and without a sign ("u"): `f8E8M0FNU` has the powers of two, and NaN, but no 0."""

_STORED: dict[Attribute, np.dtype[np.generic]] = {
    i2: np.dtype(ml_dtypes.int2),
    i4: np.dtype(ml_dtypes.int4),
    ui2: np.dtype(ml_dtypes.uint2),
    ui4: np.dtype(ml_dtypes.uint4),
    f4e2m1fn: np.dtype(ml_dtypes.float4_e2m1fn),
    f8e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    f8e4m3fnuz: np.dtype(ml_dtypes.float8_e4m3fnuz),
    f8e5m2: np.dtype(ml_dtypes.float8_e5m2),
    f8e5m2fnuz: np.dtype(ml_dtypes.float8_e5m2fnuz),
    f8e8m0fnu: np.dtype(ml_dtypes.float8_e8m0fnu),
}
STORED_TYPES: tuple[Attribute, ...] = tuple(_STORED)
"""Element types that are moved and converted, but not computed with: docs/adr/0040. An element takes a byte, whose low
bits it is."""
STORED_FLOATS: tuple[Attribute, ...] = tuple(type for type in _STORED if isinstance(type, AnyFloat))
SMALL_FLOATS: tuple[Attribute, ...] = (f8e4m3fn, f8e5m2)
"""Floats of 8 bits that tensor cores multiply: `graph.matmul` with sums in f32."""

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
    **_STORED,
}
ELEMENT_TYPES: tuple[Attribute, ...] = tuple(_TO_NUMPY)
"""The element types of tensors."""

_FROM_NUMPY = {dtype: type for type, dtype in _TO_NUMPY.items()}
_ML_FLOATS = [dtype for type, dtype in _TO_NUMPY.items() if isinstance(type, AnyFloat) and dtype.kind != "f"]
_ML_INTEGERS = [dtype for type, dtype in _STORED.items() if isinstance(type, IntegerType)]


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
    return _is_float_class(type.__class__)


@functools.cache
def _is_float_class(kind: type[Attribute]) -> bool:
    return issubclass(kind, AnyFloat)  # a union of a dozen classes, each asked by ABC


def is_stored(type: Attribute) -> bool:
    """Whether elements of this type are only moved and converted (`STORED_TYPES`)."""
    return type in _STORED


def integer_limits(type: Attribute) -> tuple[int, int]:
    """The lowest and the highest number of an integer type."""
    return integer_dtype_limits(numpy_dtype(type))


def integer_dtype_limits(dtype: np.dtype[np.generic]) -> tuple[int, int]:
    """The lowest and the highest number of a NumPy dtype of integers, also of 4 and of 2 bits."""
    limits = ml_dtypes.iinfo(cast("Any", dtype))
    return int(limits.min), int(limits.max)


def is_supported(type: Attribute) -> bool:
    """Whether tensors of this element type exist."""
    return type in _TO_NUMPY


def is_float_dtype(dtype: np.dtype[np.generic]) -> bool:
    """Whether an array holds floating point numbers; NumPy itself does not count bfloat16 among them."""
    return dtype.kind == "f" or dtype in _ML_FLOATS


def is_integer_dtype(dtype: np.dtype[np.generic]) -> bool:
    """Whether an array holds integers; NumPy itself does not count those of 4 and of 2 bits among them."""
    return dtype.kind in "iu" or dtype in _ML_INTEGERS


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
    if wide == narrow or is_stored(wide):
        return wide == narrow
    if narrow == i1:
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
    info = cast("Any", ml_dtypes.finfo(numpy_dtype(type)))
    smallest = frexp(float(info.smallest_subnormal))[1] - 1
    return int(info.nmant) + 1, int(info.maxexp), smallest


def accumulator(type: Attribute) -> Attribute:
    """The type that sums of elements of `type` are carried in: float32 for floats of 16 bits, rounded once."""
    return f32 if is_float(type) and byte_width(type) < byte_width(f32) else type


def bit_width(type: Attribute) -> int:
    """Bits of a byte, or of all bytes, that one element is; 8 of a bool."""
    return type.bitwidth if is_stored(type) and isinstance(type, FixedBitwidthType) else 8 * byte_width(type)


def largest(type: Attribute) -> float:
    """The largest finite number of a float type."""
    return float(cast("float", ml_dtypes.finfo(numpy_dtype(type)).max))


def byte_width(type: Attribute) -> int:
    """Bytes that one element takes in memory (a bool, and a number of 4 or 2 bits, takes one)."""
    return numpy_dtype(type).itemsize


# Limits on the sizes of tensors: a few bytes of text can describe a tensor of any size.

MAX_RANK = 32
"""Dimensions of a tensor; NumPy's arrays have at most twice as many, and a reduction lays its own beside them."""
MAX_WRITTEN_OUT = 20_000
"""Operators that the bodies of loops and functions are written out to, each as often as it runs."""
MAX_TENSOR_BYTES = 1 << 36
MAX_MODULE_BYTES = 1 << 40


class TensorSizes:
    """The bytes of a module's tensors so far."""

    def __init__(self) -> None:
        self._total = 0

    def add(self, type: TensorType) -> None:
        """Counts a tensor; VerifyException if it is too large, or all tensors together are.

        An empty one is too large if it were with extents of 1 instead of 0: NumPy has no such array.
        """
        shape = type.get_shape()
        check_rank(shape)
        # A symbolic extent counts as none.
        size = byte_width(type.get_element_type()) * prod(extent for extent in shape if extent > 0)
        is_empty = min(shape, default=1) <= 0
        if size > MAX_TENSOR_BYTES:
            takes = "is empty, but its other dimensions span" if is_empty else "takes"
            raise VerifyException(f"{type} {takes} {size} bytes: at most {MAX_TENSOR_BYTES} are accepted")
        self._total += 0 if is_empty else size
        if self._total > MAX_MODULE_BYTES:
            limit = f"at most {MAX_MODULE_BYTES} are accepted"
            raise VerifyException(f"with {type} the tensors take {self._total} bytes together: {limit}")


def check_rank(shape: Sequence[int]) -> None:
    """VerifyException if a shape has too many dimensions."""
    if len(shape) > MAX_RANK:
        raise VerifyException(f"{len(shape)} dimensions: at most {MAX_RANK} are accepted")
