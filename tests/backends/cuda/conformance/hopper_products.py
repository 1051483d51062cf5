"""Products of a warpgroup: types of operands, ways that they may lie in shared memory, and columns from 8 to 256."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tests.backends.cuda.conformance.hopper_case import HopperCase
from tests.backends.cuda.conformance.hopper_layouts import Image, operand

Array = NDArray[Any]


@dataclass(frozen=True)
class Element:
    """A type of an operand's elements.

    name:  in CUDA
    ptx:   in the instruction
    dtype: its bits
    value: from the bits to what the product reads, float64
    """

    name: str
    ptx: str
    dtype: type[np.generic]
    value: Callable[[Array], Array]


def _float(dtype: Any) -> Callable[[Array], Array]:
    return lambda bits: bits.view(dtype).astype(np.float64)


def _tf32(bits: Array) -> Array:
    """The last 13 bits are ignored."""
    return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


F16 = Element("treadle_half", "f16", np.uint16, _float(np.float16))
BF16 = Element("treadle_bfloat16", "bf16", np.uint16, _float(ml_dtypes.bfloat16))
TF32 = Element("treadle_tf32", "tf32", np.uint32, _tf32)
E4M3 = Element("treadle_f8E4M3FN", "e4m3", np.uint8, _float(ml_dtypes.float8_e4m3fn))
E5M2 = Element("treadle_f8E5M2", "e5m2", np.uint8, _float(ml_dtypes.float8_e5m2))
S8 = Element("signed char", "s8", np.uint8, _float(np.int8))
U8 = Element("unsigned char", "u8", np.uint8, _float(np.uint8))

_STORED: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip


def _bits(element: Element, shape: tuple[int, int], seed: int) -> Array:
    """Normal numbers of either sign, or any bytes."""
    choose = np.random.default_rng(seed)
    if element in (S8, U8):
        return choose.integers(0, 256, shape).astype(np.uint8)
    numbers = choose.standard_normal(shape).astype(np.float32)
    return np.ascontiguousarray(numbers.astype(_STORED[element.ptx])).view(element.dtype)


def specialisation(columns: int, a: Element, b: Element, across: tuple[bool, bool], in_registers: bool) -> str:
    """The function for a device: the instruction with its registers. Source: PTX ISA, "wgmma.mma_async"."""
    count, integers = columns // 2, a in (S8, U8)
    sums = ", ".join(f"%{n}" for n in range(count))
    first = count + (4 if in_registers else 1)
    left = "{" + ", ".join(f"%{count + n}" for n in range(4)) + "}" if in_registers else f"%{count}"
    scales = "" if integers else ", 1, 1"
    if a in (F16, BF16):
        scales += f", {int(across[1])}" if in_registers else f", {int(across[0])}, {int(across[1])}"
    shape = f"m64n{columns}k{32 // a.dtype().itemsize}"
    types = f"{'s32' if integers else 'f32'}.{a.ptx}.{b.ptx}"
    constraint, total = ("r", "int") if integers else ("f", "float")
    outputs = ", ".join(f'"+{constraint}"(sums[{n // 4}].v[{n % 4}])' for n in range(count))
    inputs = ", ".join(f'"r"(a.v[{n}])' for n in range(4)) if in_registers else '"l"(a)'
    name = "treadle_wgmma_registers" if in_registers else "treadle_wgmma"
    transposed = f"{int(across[1])}" if in_registers else f"{int(across[0])}, {int(across[1])}"
    given = "treadle_vec<unsigned, 4> a" if in_registers else "unsigned long long a"
    return f"""#ifndef TREADLE_NO_DEVICE_BODIES
template <> inline void {name}<{columns}, {a.name}, {b.name}, {transposed}>(
    treadle_vec<{total}, 4> *sums, {given}, unsigned long long b, bool keep) {{
  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{first + 1}, 0;\\n"
               "wgmma.mma_async.sync.aligned.{shape}.{types} {{{sums}}}, {left}, %{first}, p{scales};\\n}}"
               : {outputs} : {inputs}, "l"(b), "r"((int)keep));
}}
#endif
"""


def product(
    columns: int,
    a: Element,
    b: Element,
    *,
    swizzles: tuple[int, int] = (1, 1),
    across: tuple[bool, bool] = (False, False),
    in_registers: bool = False,
    products: int = 1,
) -> HopperCase:
    """64 x `columns` sums of `products` times 32 bytes of terms; the first product does not keep what was there.

    Tolerance: sums of all products in float32, in an order that nobody promises; of floats of 8 bits the tensor cores
    keep 14 bits of the largest product. Integers wrap.
    """
    terms = products * 32 // a.dtype().itemsize
    left, right = _bits(a, (64, terms), columns), _bits(b, (columns, terms), columns + 1)
    right_image = operand(right, swizzles[1], across[1])
    left_image = operand(left, swizzles[0], across[0])
    integers = a in (S8, U8)
    exact = a.value(left) @ b.value(right).T
    if integers:
        expected, absolute = exact.astype(np.int64).astype(np.int32), None
    else:
        unit = 2.0**-13 if a in (E4M3, E5M2) else 2.0**-23
        expected = exact.astype(np.float32)
        absolute = (terms + 1) * unit * (np.abs(a.value(left)) @ np.abs(b.value(right)).T)
    total = "int" if integers else "float"
    head = _registers_body(left, products) if in_registers else _shared_body(left_image.data.size)
    matrix_a, matrix_b = _matrix("sa", left_image), _matrix("sb", right_image)
    kinds = f"{columns}, {a.name}, {b.name}"
    step_b = f"treadle_matrix_at(b, n * {right_image.advance // 16})"
    call = (
        f"treadle_wgmma_registers<{kinds}, {int(across[1])}>(sums, left[n], {step_b}, n > 0)"
        if in_registers
        else f"treadle_wgmma<{kinds}, {int(across[0])}, {int(across[1])}>"
        f"(sums, treadle_matrix_at(a, n * {left_image.advance // 16}), {step_b}, n > 0)"
    )
    body = f"""__shared__ alignas(1024) unsigned char sb[{right_image.data.size}];
  for (int n = t; n < {right_image.data.size}; n += 128) sb[n] = y[n];
  {head}
  treadle_fence_async();
  treadle_barrier();
  {"" if in_registers else f"const unsigned long long a = {matrix_a};"}
  const unsigned long long b = {matrix_b};
  treadle_vec<{total}, 4> sums[{columns // 8}];
  for (int n = 0; n < {columns // 8}; ++n) sums[n] = treadle_vec<{total}, 4>{{{{1, 2, 3, 4}}}};
  treadle_wgmma_fence();
#pragma unroll
  for (int n = 0; n < {products}; ++n) {call};
  treadle_wgmma_commit();
  treadle_before_wait((float)t);
  treadle_wgmma_wait<0>();
  treadle_wgmma_sums<{columns // 8}>(sums);
#pragma unroll
  for (int n = 0; n < {columns // 2}; ++n) {{
    const int row = t / 32 * 16 + n / 2 % 2 * 8 + t % 32 / 4, column = n / 4 * 8 + t % 4 * 2 + n % 2;
    out[row * {columns} + column] = sums[n / 4].v[n % 4];
  }}"""
    words = np.ascontiguousarray(left).view(np.uint32)
    inputs = {"x": words if in_registers else left_image.data, "y": right_image.data}
    prelude = specialisation(columns, a, b, across, in_registers)
    sass = (
        f"{'IGMMA' if integers else 'QGMMA' if a in (E4M3, E5M2) else 'HGMMA'}.64x{columns}x{32 // a.dtype().itemsize}"
    )
    return HopperCase(body, inputs, expected, prelude=prelude, absolute=absolute, sass=sass)


def _matrix(array: str, image: Image) -> str:
    at = f"treadle_uniform(treadle_shared_address({array}))"
    return f"treadle_matrix({at}, {image.leading}, {image.stride}, {image.swizzle})"


def _shared_body(size: int) -> str:
    return f"""__shared__ alignas(1024) unsigned char sa[{size}];
  for (int n = t; n < {size}; n += 128) sa[n] = x[n];"""


def _registers_body(left: Array, products: int) -> str:
    """Of the 16 rows of a warp as treadle_mma_m16n8k16 holds them. Source: PTX ISA, "Register Fragments"."""
    words = left.shape[1] * left.itemsize // 4
    return f"""treadle_vec<unsigned, 4> left[{products}];
  for (int n = 0; n < {products}; ++n)
    for (int r = 0; r < 4; ++r)
      left[n].v[r] = x[(t / 32 * 16 + t % 32 / 4 + r % 2 * 8) * {words} + n * 8 + t % 4 + r / 2 * 4];"""


_WAYS = [(swizzle, across) for swizzle in range(4) for across in (False, True)]

PRODUCT_CASES: dict[str, HopperCase] = {
    **{f"treadle_wgmma {n} columns": product(n, F16, F16) for n in range(8, 257, 8)},
    **{
        f"treadle_wgmma A swizzle {swizzle}{' across' if across else ''}": product(
            72, F16, F16, swizzles=(swizzle, 1), across=(across, False), products=1 if swizzle in (0, 3) else 2
        )
        for swizzle, across in _WAYS
    },
    **{
        f"treadle_wgmma B swizzle {swizzle}{' across' if across else ''}": product(
            136, BF16, BF16, swizzles=(1, swizzle), across=(False, across), products=1 if swizzle in (0, 3) else 2
        )
        for swizzle, across in _WAYS
    },
    "treadle_wgmma both across": product(128, BF16, BF16, across=(True, True), products=4),
    "treadle_wgmma four products": product(64, F16, F16, products=4),
    "treadle_wgmma tf32": product(96, TF32, TF32, products=4),
    "treadle_wgmma e4m3": product(64, E4M3, E4M3, products=4),
    "treadle_wgmma e5m2": product(64, E5M2, E5M2, products=2),
    "treadle_wgmma e4m3 e5m2": product(32, E4M3, E5M2),
    "treadle_wgmma e5m2 e4m3": product(32, E5M2, E4M3),
    **{f"treadle_wgmma {a.ptx} {b.ptx}": product(32, a, b, products=2) for a in (S8, U8) for b in (S8, U8)},
    "treadle_wgmma_registers f16": product(64, F16, F16, in_registers=True, products=4),
    "treadle_wgmma_registers bf16 across": product(
        128, BF16, BF16, across=(False, True), in_registers=True, products=2
    ),
    "treadle_wgmma_registers tf32": product(24, TF32, TF32, in_registers=True, products=2),
    "treadle_wgmma_registers e4m3": product(16, E4M3, E4M3, in_registers=True, products=2),
    "treadle_wgmma_registers s8 u8": product(16, S8, U8, in_registers=True),
}
"""By function, and what is special about the case."""
