"""treadle_tiles.h: the matrix unit and plain C give the same bits, and what the products are."""

from __future__ import annotations

import ctypes
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
void {name}(long rows, long cols, long depth, const void *a, long stride, const void *b, void *acc) {{
    treadle_tiles_begin();
    treadle_tiles_{name}(rows, cols, depth, a, stride, b, acc, b, 1);
    treadle_tiles_end();
}}
"""


@cache
def library(plain: bool) -> ctypes.CDLL:
    functions = "".join(_FUNCTION.format(name=name) for name in NAMES)
    text = _UNIT.format(plain="#define TREADLE_PLAIN_TILES" if plain else "", functions=functions)
    return ctypes.CDLL(str(build_library([Unit("plain" if plain else "unit", text)])))


def multiply(plain: bool, name: str, a: Array, b: Array, columns: int) -> Array:
    """`a[rows, depth]` times a panel, whose rows have 4 bytes of each column side by side."""
    depth = a.shape[1]
    panel = np.ascontiguousarray(b.reshape(-1, 4 // b.itemsize, columns).swapaxes(1, 2))
    acc = np.empty((len(a), columns), np.float32 if name == "bf16" else np.int32)
    sizes = map(ctypes.c_long, (len(a), columns, depth))
    address = [ctypes.c_void_p(each.ctypes.data) for each in (a, panel, acc)]
    getattr(library(plain), name)(*sizes, address[0], ctypes.c_long(a.strides[0]), *address[1:])
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
    got = multiply(plain, name, a, b, shape[1])
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
    unit, plain = (multiply(plain, name, a, b, shape[1]) for plain in (False, True))
    np.testing.assert_array_equal(unit.view(np.int32), plain.view(np.int32))


@pytest.mark.parametrize("plain", [False, True])
def test_what_is_not_finite(plain: bool) -> None:
    a, b = (np.ones(shape, ml_dtypes.bfloat16) for shape in ((16, 32), (32, 16)))
    a[1, 3], a[2, 5], a[3, 0], b[7, 4] = np.inf, np.nan, 3e38, -np.inf
    a[3, 2] = 3e38
    with np.errstate(all="ignore"):
        wanted = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(multiply(plain, "bf16", a, b, 16), wanted)
