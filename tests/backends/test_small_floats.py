"""Floats of 8 and 4 bits as compiled C and on the emulator: every value and tie, against `ml_dtypes` and fractions."""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction
from functools import cache
from math import inf, isfinite
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Block
from xdsl.utils.exceptions import VerifyException

from tests.helpers.compiled import TARGETS, run_graph
from tests.helpers.graphs import Graph
from treadle.dialects.graph import BitcastOp, CastOp, ReductionOp
from treadle.dialects.graph.dtypes import element_type, f8e8m0fnu, integer_dtype_limits

Array = NDArray[Any]

SMALL = tuple(
    np.dtype(t)
    for t in (
        ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e5m2fnuz,
    )
)  # fmt: skip
POWERS = np.dtype(ml_dtypes.float8_e8m0fnu)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
WIDE = tuple(np.dtype(t) for t in (BFLOAT16, np.float16, np.float32, np.float64))


def every_byte(dtype: np.dtype[Any]) -> Array:
    """Every element: of those of 4 bits, bytes whose high bits are 0."""
    return np.arange(16 if dtype == SMALL[0] else 256, dtype=np.uint8).view(dtype)


def finite_values(dtype: np.dtype[Any]) -> Array:
    """The finite numbers of a type in order, each once, as float64."""
    values = every_byte(dtype).astype(np.float64)
    return np.unique(values[np.isfinite(values)])


def hard_floats(dtype: np.dtype[Any], wide: np.dtype[Any]) -> Array:
    """The numbers of a type, the ties between them, what lies next to these in a wider type, and special values."""
    values = finite_values(dtype)
    step = values[-1] - values[-2]
    ties = np.concatenate([(values[1:] + values[:-1]) / 2, [values[-1] + step / 2, -values[-1] - step / 2]])
    with np.errstate(all="ignore"):
        at = np.unique(np.concatenate([values, ties]).astype(wide))
        beside = [np.nextafter(at, wide.type(way)) for way in (inf, -inf)]
        info = ml_dtypes.finfo(wide)
        special = [0.0, -0.0, inf, -inf, np.nan, -np.nan, info.smallest_subnormal, info.max, -info.max, 3e4, -7e5]
        return np.concatenate([at, *beside, np.array(special, np.float64).astype(wide)])


@cache
def grid(dtype: np.dtype[Any]) -> tuple[list[Fraction], list[int]]:
    """The sizes of the finite numbers of a type in order, and their bytes; behind them the first size beyond, -1."""
    values = every_byte(dtype).astype(np.float64).tolist()
    numbers = sorted((Fraction(v), c) for c, v in enumerate(values[: len(values) // 2]) if isfinite(v))
    sizes = [size for size, _ in numbers]
    return [*sizes, 2 * sizes[-1] - sizes[-2]], [*(code for _, code in numbers), -1]


@cache
def nearest(x: float, dtype: np.dtype[Any]) -> int:
    """The byte of the size of the number that is nearest to a finite one, ties to even; -1 for what is too large."""
    sizes, codes = grid(dtype)
    size = abs(Fraction(x))
    above = bisect_left(sizes, size)
    if above == len(sizes):
        return -1
    beside = range(max(above - 1, 0), above + 1)
    # The first size beyond counts as even.
    return codes[min(beside, key=lambda n: (abs(sizes[n] - size), max(codes[n], 0) & 1))]


@pytest.mark.parametrize("target", TARGETS)
def test_every_byte_becomes_its_number(target: str) -> None:
    types = (*SMALL, POWERS)
    graph = Graph(*map(every_byte, types))
    to = (*WIDE, np.dtype(np.int32), np.dtype(np.uint8), np.dtype(np.bool_))
    results = [graph.add(CastOp(graph[n], element_type(wide))) for n in range(len(types)) for wide in to]
    cases = [(x, wide) for x in types for wide in to]
    for (dtype, wide), actual in zip(cases, run_graph(target, graph, results), strict=True):
        with np.errstate(all="ignore"):
            value = every_byte(dtype).astype(np.float32)
            if wide.kind in "iu":
                whole = np.trunc(np.nan_to_num(value, nan=0)).astype(np.float64)
                value = np.clip(whole, *integer_dtype_limits(wide))
            expected = value.astype(wide)
        assert actual.dtype == wide
        np.testing.assert_array_equal(actual.astype(np.float64), expected.astype(np.float64), f"{dtype} to {wide}")
        if wide == np.float32:
            number = ~np.isnan(value)
            np.testing.assert_array_equal(np.signbit(actual[number]), np.signbit(value[number]), f"sign of {dtype}")


@pytest.mark.parametrize("target", TARGETS)
def test_numbers_round_once_to_the_nearest(target: str) -> None:
    data = [hard_floats(dtype, wide) for dtype in SMALL for wide in WIDE]
    data += [every_byte(dtype) for dtype in SMALL]
    data += [np.arange(-700, 700, dtype=np.int32), np.arange(0, 256, dtype=np.uint8), np.array([False, True])]
    graph, results, cases = Graph(*data), list[Any](), list[tuple[Array, np.dtype[Any]]]()
    for n, x in enumerate(data):
        for dtype in SMALL:
            if n >= len(SMALL) * len(WIDE) or dtype == SMALL[n // len(WIDE)]:
                cases.append((x, dtype))
                results.append(graph.add(CastOp(graph[n], element_type(dtype))))
    for (x, dtype), actual in zip(cases, run_graph(target, graph, results), strict=True):
        what = f"{x.dtype} to {dtype}"
        assert actual.dtype == dtype
        if x.dtype == np.float64:
            codes = {float(v): nearest(float(v), dtype) for v in x if isfinite(v)}
            keep = np.array([isfinite(v) and codes[float(v)] >= 0 for v in x])
            size = actual[keep].view(np.uint8) & (7 if dtype == SMALL[0] else 127)
            np.testing.assert_array_equal(size, [codes[float(v)] for v in x[keep]], what)
            # What is too large becomes what an infinity becomes; `ml_dtypes` would round it to float32 first.
            x, actual = np.where(np.isfinite(x), np.copysign(inf, x), x)[~keep], actual[~keep]
        with np.errstate(all="ignore"):
            expected = x.astype(np.float32).astype(dtype)
            numbers = np.ones(x.shape, bool) if dtype != SMALL[0] else ~np.isnan(x.astype(np.float32))
        same = x.dtype == dtype
        wanted = (x if same else expected)[numbers].view(np.uint8)
        np.testing.assert_array_equal(actual[numbers].view(np.uint8), wanted, what)
        assert not actual[~numbers].astype(np.float32).any(), what


@pytest.mark.parametrize("target", TARGETS)
def test_doubles_round_once_to_bfloat16(target: str) -> None:
    ties = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, -(1 + 2.0**-8), 2.0**-134 * 3])
    x = np.concatenate([ties, np.nextafter(ties, inf), np.nextafter(ties, -inf), [1e300, -inf, np.nan, 0.0]])
    graph = Graph(x)
    (actual,) = run_graph(target, graph, [graph.add(CastOp(graph[0], element_type(BFLOAT16)))])
    step = 2.0**-7
    expected = [1, 1 + 2 * step, -1, 2.0**-132]
    expected += [1 + step, 1 + 2 * step, -1, 2.0**-132]
    expected += [1, 1 + step, -(1 + step), 2.0**-133, inf, -inf, np.nan, 0]
    np.testing.assert_array_equal(actual.astype(np.float64), expected)


@pytest.mark.parametrize("target", TARGETS)
def test_their_bits_are_bytes(target: str) -> None:
    x = np.arange(256, dtype=np.uint8)
    types = (*SMALL[1:], POWERS)
    graph = Graph(x, *(x.view(dtype) for dtype in types))
    results = [graph.add(BitcastOp(graph[0], element_type(dtype))) for dtype in types]
    for n in range(1, len(types) + 1):
        results += [graph.add(BitcastOp(graph[n], element_type(np.dtype(np.uint8))))]
    for actual in run_graph(target, graph, results):
        np.testing.assert_array_equal(actual.view(np.uint8), x)


def test_nothing_is_computed_with_them_and_no_number_becomes_a_power() -> None:
    block = Block(arg_types=[TensorType(element_type(SMALL[1]), [4]), TensorType(element_type(np.dtype("f4")), [4])])
    x, wide = block.args
    with pytest.raises(VerifyException, match=r"graph\.reduction is not defined on f8E4M3FN, which is only moved"):
        ReductionOp("add", x, [0], keep=False)
    with pytest.raises(VerifyException, match="no number is rounded to f8E8M0FNU"):
        CastOp(wide, f8e8m0fnu)
    with pytest.raises(VerifyException, match="the bits of f32 as f8E4M3FN: expected a type as wide"):
        BitcastOp(wide, element_type(SMALL[1]))
