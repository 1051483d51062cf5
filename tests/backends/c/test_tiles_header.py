"""treadle_tiles.h: what the products are, on a matrix unit, on vectors and in plain C, and which give the same bits."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from treadle.backends.c.compiler import Unit, build_library

Array = NDArray[Any]
NAMES = {"bf16": ("bf16", "bf16"), **{a + b: (a, b) for a, b in product(("i8", "ui8"), repeat=2)}}
DTYPES: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "i8": np.int8, "ui8": np.uint8}
SHAPES = [*product((1, 2, 4, 8, 16, 24, 32), (16, 32), (1, 5))]
BODIES = {"tiles": "", "vectors": "#define TREADLE_NO_AMX", "plain": "#define TREADLE_PLAIN_TILES"}
"""What is defined before the header, by the body that runs where the processor has what it needs."""
AMX, VNNI, BF16 = 1, 2, 4
_UNIT = """
{body}
#include "treadle_tiles.h"
{functions}
int unit(void) {{ treadle_tiles_begin(); treadle_tiles_end(); return treadle_tiles_unit(); }}
"""
_FUNCTION = """
void {name}(long rows, long cols, long depth, const void *a, long stride, const int *taps, long count, long apart,
            const void *b, void *acc) {{
    treadle_tiles_begin();
    treadle_tiles_{name}(rows, cols, depth, a, stride, taps, count, apart, b, acc, b, 1);
    treadle_tiles_end();
}}
"""


@cache
def library(body: str) -> ctypes.CDLL:
    functions = "".join(_FUNCTION.format(name=name) for name in NAMES)
    text = _UNIT.format(body=BODIES[body], functions=functions)
    return ctypes.CDLL(str(build_library([Unit(body, text)])))


def require(body: str, name: str) -> None:
    """Skips the test if this processor computes a product by another body."""
    needed = AMX if body == "tiles" else BF16 if name == "bf16" else VNNI
    if not library(body).unit() & needed:
        pytest.skip(f"this processor has no {body} for {name}")


@dataclass(frozen=True)
class Rows:
    """How many rows there are, and where they lie, in bytes."""

    count: int
    stride: int
    taps: tuple[int, ...] = (0,)
    apart: int = 64


def multiply(body: str, name: str, a: Array, b: Array, rows: Rows | None = None) -> Array:
    """Rows of `a`, its own unless others are given, times a panel with 4 bytes of each column side by side."""
    rows = rows or Rows(len(a), a.strides[0])
    depth, columns = b.shape
    panel = np.ascontiguousarray(b.reshape(-1, 4 // b.itemsize, columns).swapaxes(1, 2))
    acc = np.empty((rows.count, columns), np.float32 if name == "bf16" else np.int32)
    taps = (ctypes.c_int * len(rows.taps))(*rows.taps)
    sizes = [ctypes.c_long(each) for each in (rows.count, columns, depth, rows.stride, len(rows.taps), rows.apart)]
    address = [ctypes.c_void_p(each.ctypes.data) for each in (a, panel, acc)]
    getattr(library(body), name)(*sizes[:3], address[0], sizes[3], taps, *sizes[4:], *address[1:])
    return acc


def operands(name: str, rows: int, columns: int, steps: int) -> tuple[Array, Array]:
    rng, depth = np.random.default_rng(rows + columns + steps), steps * (32 if name == "bf16" else 64)
    shapes = [(rows, depth), (depth, columns)]
    if name == "bf16":
        a, b = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in shapes)
        return a, b
    kinds = [np.iinfo(DTYPES[kind]) for kind in NAMES[name]]
    a, b = (rng.integers(k.min, k.max, s, k.dtype, endpoint=True) for k, s in zip(kinds, shapes, strict=True))
    return a, b


@pytest.mark.parametrize(("name", "shape"), list(product(NAMES, SHAPES)))
@pytest.mark.parametrize("body", BODIES)
def test_products(name: str, shape: tuple[int, int, int], body: str) -> None:
    a, b = operands(name, *shape)
    got = multiply(body, name, a, b)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    if name != "bf16":
        np.testing.assert_array_equal(got, wanted)
        return
    # A rounding for each of the terms, of the sums of the magnitudes.
    limit = a.shape[1] * 2.0**-24 * (abs(a.astype(np.float64)) @ abs(b.astype(np.float64)))
    assert (abs(got - wanted) <= limit).all()


@pytest.mark.parametrize(("name", "shape"), [(name, each) for name in NAMES for each in SHAPES if each[0] % 16 == 0])
def test_the_unit_and_plain_c_agree_bit_by_bit(name: str, shape: tuple[int, int, int]) -> None:
    require("tiles", name)
    a, b = operands(name, *shape)
    unit, plain = (multiply(body, name, a, b) for body in ("tiles", "plain"))
    np.testing.assert_array_equal(unit.view(np.int32), plain.view(np.int32))


@pytest.mark.parametrize("shape", SHAPES)
def test_vectors_add_the_second_product_of_two_first(shape: tuple[int, int, int]) -> None:
    """And round each sum: float64 holds a product of two bfloat16 and its sum with a float32 of about its size."""
    require("vectors", "bf16")
    a, b = operands("bf16", *shape)
    left, right = (each.astype(np.float64) for each in (a, b))
    sums = np.zeros(shape[:2], np.float32)
    for k in range(0, a.shape[1], 2):
        for each in (k + 1, k):
            sums = (sums + np.outer(left[:, each], right[each])).astype(np.float32)
    np.testing.assert_array_equal(multiply("vectors", "bf16", a, b), sums)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "bf16"])
def test_the_least_and_the_largest_bytes(name: str, body: str) -> None:
    """Each of them times each, in sums that i32 does not hold."""
    depth = 64 * 520
    kinds = [np.iinfo(DTYPES[kind]) for kind in NAMES[name]]
    numbers = [np.array([k.min, k.min + 1, k.max - 1, k.max, 0, 1, 127, k.min // 2], k.dtype) for k in kinds]
    a = np.repeat(np.tile(numbers[0], 2)[:, None], depth, axis=1)
    b = np.repeat(np.tile(numbers[1], 4)[None], depth, axis=0)
    a[:, 1::7], b[::11] = kinds[0].max, kinds[1].min
    wanted = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64).astype(np.int32)
    np.testing.assert_array_equal(multiply(body, name, a, b), wanted)


@pytest.mark.parametrize("body", ["tiles", "vectors"])
def test_subnormal_numbers_count_as_zeros(body: str) -> None:
    require(body, "bf16")
    a, b = (np.zeros(shape, ml_dtypes.bfloat16) for shape in ((16, 32), (32, 16)))
    a[:, 0] = np.ldexp(1.0, -130)
    b[0], b[0, 0] = 1, np.ldexp(1.0, 20)
    assert not multiply(body, "bf16", a, b).any(), "as an element"
    a[:, 0], b[0] = np.ldexp(1.0, -100), np.ldexp(1.0, -28)
    assert not multiply(body, "bf16", a, b).any(), "as a sum"
    assert multiply("plain", "bf16", a, b).all()


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("name", ["bf16", "i8ui8"])
def test_rows_of_taps_that_overlap(name: str, body: str) -> None:
    """Of two blocks of 64 bytes a pixel, each second pixel with those at three distances behind it."""
    image, b = operands(name, 2 * 50, 16, 6)
    width = 64 // image.itemsize
    image = np.ascontiguousarray(image[:, :width]).reshape(2, 50, width)
    taps = (0, 1, 11)
    got = multiply(body, name, image, b, Rows(16, 128, tuple(64 * tap for tap in taps), 50 * 64))
    windows = [np.concatenate([image[block, 2 * r + tap] for block in (0, 1) for tap in taps]) for r in range(16)]
    np.testing.assert_array_equal(got, multiply(body, name, np.stack(windows), b))


@pytest.mark.parametrize("body", BODIES)
def test_what_is_not_finite(body: str) -> None:
    a, b = (np.ones(shape, ml_dtypes.bfloat16) for shape in ((16, 32), (32, 16)))
    a[1, 3], a[2, 5], a[3, 0], b[7, 4] = np.inf, np.nan, 3e38, -np.inf
    a[3, 2] = 3e38
    with np.errstate(all="ignore"):
        wanted = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(multiply(body, "bf16", a, b), wanted)
