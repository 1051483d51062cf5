"""Matrices in registers: ldmatrix, and the tensor cores' products of fragments that are laid out by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.cuda.conformance.case import Case

Array = NDArray[Any]

_TILE = np.random.default_rng(0).permutation(32 * 8).astype(np.uint16).reshape(32, 8)
_LANES = np.arange(32)


def _ldmatrix(count: int, transposed: bool) -> Case:
    """`count` matrices whose rows lie in no order; every lane gets two elements of each.

    Source: PTX ISA, "ldmatrix": lane 8n + r passes the address of row r of matrix n.
    """
    suffix = "_trans" if transposed else ""
    body = f"""__shared__ alignas(16) unsigned short s[32][8];
  for (int n = t; n < 256; n += 32) (&s[0][0])[n] = x[n];
  treadle_barrier();
  const auto r = treadle_ldmatrix_x{count}{suffix}(s[(t * 5 + 3) % 32]);
  for (int n = 0; n < {count}; ++n) out[n * 32 + t] = r.v[n];"""
    rows = (np.arange(8 * count) * 5 + 3) % 32
    matrices = _TILE[rows].reshape(count, 8, 8).astype(np.uint32)
    if transposed:
        matrices = matrices.transpose(0, 2, 1)
    major, minor = _LANES // 4, _LANES % 4 * 2
    expected = matrices[:, major, minor] | matrices[:, major, minor + 1] << np.uint32(16)
    kind = "MT88" if transposed else "M88"
    sass = f"LDSM.16.{kind}" + (f".{count}" if count > 1 else "")
    return Case(body, {"x": _TILE}, expected, sass=sass)


@dataclass(frozen=True)
class Operands:
    """A type of the operands of a product m16n8.

    pack:  elements in a register of 32 bits
    bits:  from float32 to the element's bits
    value: from the element's bits to what the product reads, float64
    """

    pack: int
    bits: Callable[[Array], Array]
    value: Callable[[Array], Array]
    smallest: float
    """The smallest magnitude that the wide samples have."""


def _bfloat16_value(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


F16 = Operands(
    2, lambda x: x.astype(np.float16).view(np.uint16), lambda b: b.view(np.float16).astype(np.float64), 2.0**-24
)
BF16 = Operands(2, lambda x: (x.view(np.uint32) >> 16).astype(np.uint16), _bfloat16_value, 2.0**-30)
# The product ignores the last 13 bits, which the samples set.
TF32 = Operands(
    1, lambda x: x.view(np.uint32), lambda b: (b & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64), 2.0**-30
)


def _samples(k: int, smallest: float) -> list[tuple[Array, Array, Array]]:
    """A, B and C of four products: small whole numbers, normal ones, every magnitude, and what is not finite."""
    choose = np.random.default_rng(k)
    shapes = ((16, k), (k, 8), (16, 8))
    whole = tuple(choose.integers(-8, 9, shape).astype(np.float32) for shape in shapes)
    normal = tuple(choose.standard_normal(shape).astype(np.float32) for shape in shapes)
    low = float(np.log2(smallest))
    wide = tuple(
        (np.exp2(choose.uniform(low, 10, shape)) * choose.choice([-1, 1], shape)).astype(np.float32) for shape in shapes
    )
    special = tuple(array.copy() for array in whole)
    special[0][1, 2], special[0][3, 0], special[1][0, 4], special[2][5, 6] = np.inf, np.nan, 0, -np.inf
    special[0][2, 0] = np.inf  # times 0
    return [(a, b, c) for a, b, c in (whole, normal, wide, special)]


def product(function: str, k: int, operands: Operands, sass: str) -> Case:
    """A case of `function(a, b, c)` for m16n8 and `k`, fragments laid out as all products m16n8 have them.

    Source: PTX ISA, "Matrix fragments for mma.m16n8k8" and "m16n8k16". Tolerance: sums of `k` products and C in
    float32, whose last bits the tensor cores cut off, in an order that nobody promises; whole numbers are exact.
    """
    samples = _samples(k, operands.smallest)
    words, pack = k // operands.pack, operands.pack
    column = words // 2
    body = f"""const int g = t / 4, q = t % 4;
  const unsigned *a = x + (blockIdx.x * 16 + g) * {words} + q;
  const unsigned *b = y + (blockIdx.x * 8 + g) * {words} + q;
  const float *c = z + blockIdx.x * 128 + g * 8 + 2 * q;
  const treadle_vec<unsigned, 4> fa{{{{a[0], a[{8 * words}], a[{column}], a[{8 * words + column}]}}}};
  const treadle_vec<unsigned, 2> fb{{{{b[0], b[{column}]}}}};
  const auto d = {function}({"fa, fb" if pack > 1 else "floats(fa), floats(fb)"}, {{{{c[0], c[1], c[64], c[65]}}}});
  for (int n = 0; n < 4; ++n) out[blockIdx.x * 128 + (g + n / 2 * 8) * 8 + 2 * q + n % 2] = d.v[n];"""
    expected, absolute = [
        np.stack(each) for each in zip(*(_exact(*sample, operands) for sample in samples), strict=True)
    ]
    absolute[0] = 0
    a, b, c = (np.stack(each) for each in zip(*samples, strict=True))
    inputs = {"x": _words(operands.bits(a)), "y": _words(operands.bits(np.ascontiguousarray(b.transpose(0, 2, 1))))}
    return Case(body, {**inputs, "z": c}, expected, absolute=absolute, sass=sass, grid=len(samples))


def _exact(a: Array, b: Array, c: Array, operands: Operands) -> tuple[Array, Array]:
    """The product as float32, and how far from it a sum of float32 may end."""
    left, right = operands.value(operands.bits(a)), operands.value(operands.bits(b))
    with np.errstate(invalid="ignore"):
        magnitude = np.abs(left) @ np.abs(right) + np.abs(c)
        terms = left.shape[1] + 1
        return (left @ right + c).astype(np.float32), terms * 2.0**-23 * magnitude


def _byte_samples(a: np.dtype[Any], b: np.dtype[Any]) -> list[tuple[Array, Array, Array]]:
    """A, B and C of nine products: any bytes, and the extreme ones of both, with C near the ends of i32, so that sums
    wrap."""
    choose = np.random.default_rng(a.num * 100 + b.num)
    left, right, sums = (np.iinfo(each) for each in (a, b, np.dtype(np.int32)))
    any_bytes = (
        choose.integers(left.min, left.max, (16, 32), a, endpoint=True),
        choose.integers(right.min, right.max, (32, 8), b, endpoint=True),
        choose.integers(sums.min, sums.max, (16, 8), np.int32, endpoint=True),
    )
    limits = itertools.product(*((end.min, end.max) for end in (left, right, sums)))
    return [
        any_bytes,
        *((np.full((16, 32), x, a), np.full((32, 8), y, b), np.full((16, 8), z, np.int32)) for x, y, z in limits),
    ]


def byte_product(a: str, b: str) -> Case:
    """The product of bytes, signed (s8) or not (u8), m16n8k32; it is exact, and wraps.

    Source: PTX ISA, "Matrix fragments for mma.m16n8k32": as those of 16-bit elements, four in a register.
    """
    samples = _byte_samples(_BYTES[a], _BYTES[b])
    body = f"""const int g = t / 4, q = t % 4;
  const unsigned *a = x + (blockIdx.x * 16 + g) * 8 + q;
  const unsigned *b = y + (blockIdx.x * 8 + g) * 8 + q;
  const int *c = z + blockIdx.x * 128 + g * 8 + 2 * q;
  const auto d = treadle_mma_m16n8k32_{a}_{b}({{{{a[0], a[64], a[4], a[68]}}}}, {{{{b[0], b[4]}}}},
                                              {{{{c[0], c[1], c[64], c[65]}}}});
  for (int n = 0; n < 4; ++n) out[blockIdx.x * 128 + (g + n / 2 * 8) * 8 + 2 * q + n % 2] = d.v[n];"""
    left, right, start = (np.stack(each) for each in zip(*samples, strict=True))
    expected = (left.astype(np.int64) @ right.astype(np.int64) + start).astype(np.int32)
    columns = np.ascontiguousarray(right.transpose(0, 2, 1))
    inputs = {"x": _words(left), "y": _words(columns), "z": start}
    return Case(body, inputs, expected, sass=f"IMMA.16832.{a.upper()}.{b.upper()}", grid=len(samples))


_BYTES = {"s8": np.dtype(np.int8), "u8": np.dtype(np.uint8)}


def _words(elements: Array) -> Array:
    return elements.view(np.uint32)


MATRIX_CASES: dict[str, Case] = {
    **{
        f"treadle_ldmatrix_x{count}{'_trans' if transposed else ''}": _ldmatrix(count, transposed)
        for count in (1, 2, 4)
        for transposed in (False, True)
    },
    "treadle_mma_m16n8k16_f16": product("treadle_mma_m16n8k16_f16", 16, F16, "HMMA.16816.F32"),
    "treadle_mma_m16n8k16_bf16": product("treadle_mma_m16n8k16_bf16", 16, BF16, "HMMA.16816.F32.BF16"),
    "treadle_mma_m16n8k8_tf32": product("treadle_mma_m16n8k8_tf32", 8, TF32, "HMMA.1688.F32.TF32"),
    **{f"treadle_mma_m16n8k32_{a}_{b}": byte_product(a, b) for a in _BYTES for b in _BYTES},
}
"""By function."""
