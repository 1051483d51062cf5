"""treadle_tiles.h: the matrix unit and plain C give the same bits, and what the products are."""

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
SHAPES = [(rows, columns, steps) for rows, columns in product((16, 32), repeat=2) for steps in (1, 5)]
_UNIT = """
{plain}
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
def library(plain: bool) -> ctypes.CDLL:
    functions = "".join(_FUNCTION.format(name=name) for name in NAMES)
    text = _UNIT.format(plain="#define TREADLE_PLAIN_TILES" if plain else "", functions=functions)
    return ctypes.CDLL(str(build_library([Unit("plain" if plain else "unit", text)])))


@dataclass(frozen=True)
class Rows:
    """How many rows there are, and where they lie, in bytes."""

    count: int
    stride: int
    taps: tuple[int, ...] = (0,)
    apart: int = 64


def multiply(plain: bool, name: str, a: Array, b: Array, rows: Rows | None = None) -> Array:
    """Rows of `a`, its own unless others are given, times a panel with 4 bytes of each column side by side."""
    rows = rows or Rows(len(a), a.strides[0])
    depth, columns = b.shape
    panel = np.ascontiguousarray(b.reshape(-1, 4 // b.itemsize, columns).swapaxes(1, 2))
    acc = np.empty((rows.count, columns), np.float32 if name == "bf16" else np.int32)
    taps = (ctypes.c_int * len(rows.taps))(*rows.taps)
    sizes = [ctypes.c_long(each) for each in (rows.count, columns, depth, rows.stride, len(rows.taps), rows.apart)]
    address = [ctypes.c_void_p(each.ctypes.data) for each in (a, panel, acc)]
    getattr(library(plain), name)(*sizes[:3], address[0], sizes[3], taps, *sizes[4:], *address[1:])
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
@pytest.mark.parametrize("plain", [False, True])
def test_products(name: str, shape: tuple[int, int, int], plain: bool) -> None:
    a, b = operands(name, *shape)
    got = multiply(plain, name, a, b)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    if name != "bf16":
        np.testing.assert_array_equal(got, wanted)
        return
    # A rounding for each of the terms, of the sums of the magnitudes.
    limit = a.shape[1] * 2.0**-24 * (abs(a.astype(np.float64)) @ abs(b.astype(np.float64)))
    assert (abs(got - wanted) <= limit).all()


@pytest.mark.skipif(not library(False).unit(), reason="this processor has no matrix unit")
@pytest.mark.parametrize(("name", "shape"), list(product(NAMES, SHAPES)))
def test_the_unit_and_plain_c_agree_bit_by_bit(name: str, shape: tuple[int, int, int]) -> None:
    a, b = operands(name, *shape)
    unit, plain = (multiply(plain, name, a, b) for plain in (False, True))
    np.testing.assert_array_equal(unit.view(np.int32), plain.view(np.int32))


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("name", ["bf16", "i8ui8"])
def test_rows_of_taps_that_overlap(name: str, plain: bool) -> None:
    """Of two blocks of 64 bytes a pixel, each second pixel with those at three distances behind it."""
    image, b = operands(name, 2 * 50, 16, 6)
    width = 64 // image.itemsize
    image = np.ascontiguousarray(image[:, :width]).reshape(2, 50, width)
    taps = (0, 1, 11)
    got = multiply(plain, name, image, b, Rows(16, 128, tuple(64 * tap for tap in taps), 50 * 64))
    windows = [np.concatenate([image[block, 2 * r + tap] for block in (0, 1) for tap in taps]) for r in range(16)]
    np.testing.assert_array_equal(got, multiply(plain, name, np.stack(windows), b))


@pytest.mark.parametrize("plain", [False, True])
def test_what_is_not_finite(plain: bool) -> None:
    a, b = (np.ones(shape, ml_dtypes.bfloat16) for shape in ((16, 32), (32, 16)))
    a[1, 3], a[2, 5], a[3, 0], b[7, 4] = np.inf, np.nan, 3e38, -np.inf
    a[3, 2] = 3e38
    with np.errstate(all="ignore"):
        wanted = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(multiply(plain, "bf16", a, b), wanted)
