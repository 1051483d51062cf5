"""Extents: integers that remember which expression of the symbols they are."""

import operator
from collections.abc import Callable
from itertools import product
from math import ceil, floor, inf, prod

import numpy as np
import pytest
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph.definition import ints
from treadle.frontends.common.extent import (
    Extent,
    Symbol,
    Symbolic,
    bound_of,
    bounds_of,
    expression_of,
    of_expression,
    reshaped,
)
from treadle.index.algebra import exact_quotient, extremes
from treadle.index.expr import const, floordiv, mod, var

BATCH, SEQ, WIDTH = Symbol("batch", 1, 8), Symbol("seq", 1, 512), Symbol("w", 32, 2048, 32)


def _at(extent: Symbolic, **values: int) -> int:
    return expression_of(extent).evaluate({**values, "(w // 32)": values.get("w", 0) // 32})


def test_arithmetic_keeps_the_largest_extent_and_the_expression() -> None:
    windows = (WIDTH + 2 - 3) // 2 + 1
    assert bound_of(windows) == 1024 and _at(windows, w=96) == 48
    merged = prod((BATCH, SEQ, 768))
    assert bound_of(merged) == 8 * 512 * 768 and _at(merged, batch=3, seq=5) == 3 * 5 * 768
    assert type(SEQ - SEQ) is int and SEQ - SEQ == 0
    assert merged // (SEQ * 768) == BATCH and merged % SEQ == 0
    assert bound_of(-(3 - SEQ)) == 509 and bound_of(600 - SEQ) == 599


def test_multiples_divide_exactly() -> None:
    assert str(expression_of(WIDTH // 32)) == "(w // 32)"
    assert (WIDTH % 32, WIDTH % 16) == (0, 0)


def test_comparisons_hold_for_all_calls_or_are_refused() -> None:
    assert SEQ // 2 < SEQ and SEQ - SEQ // 2 >= 1 and BATCH * (8 - BATCH) <= 16 and SEQ % 5 < 5
    assert SEQ > 0.5 and inf > SEQ and not SEQ > 512.5 and SEQ <= 512.5
    assert SEQ > 0 and SEQ < 513 and not SEQ < 1 and SEQ + 1 > SEQ and SEQ >= 1 and SEQ <= 512
    assert Symbol("seq", 1, 512) == SEQ and SEQ != 512 and SEQ != BATCH and SEQ != 1
    for undecided in (lambda: SEQ < 512, lambda: SEQ < BATCH, lambda: bool(SEQ - 1), lambda: SEQ >= 2):
        with pytest.raises(VerifyException, match="depends on the extents of a call"):
            undecided()
    for uneven in (lambda: SEQ // BATCH, lambda: 7 % SEQ, lambda: 7 // SEQ):
        with pytest.raises(VerifyException):
            uneven()


@pytest.mark.parametrize(
    "convert",
    [
        int, float, operator.index, range, floor, ceil, np.arange, np.zeros, np.eye, lambda e: np.full((3, e), 1.0),
        lambda e: np.broadcast_to(np.array(1), (3, e)), lambda e: np.arange(3) * e, lambda e: np.int64(3) + e,
        lambda e: np.array([e]).astype(np.int64), lambda e: np.arange(3) < e, lambda e: e / 2, lambda e: e - 1.0,
        lambda e: 1.0 - e, lambda e: 1 << e, lambda e: e**2, lambda e: [0] * e, lambda e: divmod(e, 2),
        lambda e: np.zeros(3)[:e], lambda e: ints([e]),
    ],
)  # fmt: skip
def test_no_conversion_takes_the_largest_extent_for_the_extent(convert: Callable[[Extent], object]) -> None:
    with pytest.raises(VerifyException, match="changes from call to call"):
        convert(SEQ)


def test_extremes_are_those_of_all_values() -> None:
    n, m = var("n", -3, 6), var("m", 1, 5)
    expressions = [
        n - floordiv(n, 2), n * (4 - n), n * m - m * 7, mod(n * 3, 5) + m, floordiv(n * -2 + m, 3), n * n * m, -m * m,
        mod(m, 3) * mod(n, 4) - n,
    ]  # fmt: skip
    for e in expressions:
        values = [e.evaluate({"n": i, "m": j}) for i, j in product(range(-3, 7), range(1, 6))]
        assert extremes(e) == (min(values), max(values))
    assert extremes(var("n", 1, None) - 3) == (-2, None)
    wide = var("n", 1, 1 << 20)
    low, high = extremes(wide * (300 - wide))
    assert low is not None and high is not None and high >= 150 * 150


@pytest.mark.parametrize(
    ("source", "to"),
    [
        ((BATCH, SEQ, 768), (BATCH * SEQ, 768)),
        ((BATCH, SEQ, 768), (BATCH, SEQ, 12, 64)),
        ((BATCH, 12, SEQ, 64), (BATCH * 12, SEQ, 64)),
        ((BATCH, SEQ), (BATCH, 1, 1, SEQ)),
        ((BATCH * 12, 64), (BATCH, 12, 64)),
        ((BATCH, SEQ, 6), (BATCH * SEQ * 2, 3)),
    ],
)
def test_a_reshape_moves_no_element_of_the_largest_shape(
    source: tuple[Symbolic, ...], to: tuple[Symbolic, ...]
) -> None:
    """Positions within the extents, in row-major order, are the same positions of the largest buffer."""
    result = reshaped(source, to)
    back = reshaped(result, source)
    assert back == source and bounds_of(back) == bounds_of(source)
    assert prod(bounds_of(result)) == prod(bounds_of(source))
    values = {"batch": 3, "seq": 5}
    assert _positions(source, values) == _positions(result, values)


def _positions(shape: tuple[Symbolic, ...], values: dict[str, int]) -> list[int]:
    parts = [part for extent in shape for part in (extent.parts if isinstance(extent, Extent) else (extent,))]
    found: list[int] = []
    for index in product(*(range(_at(part, **values)) for part in parts)):
        position = 0
        for i, part in zip(index, parts, strict=True):
            position = position * bound_of(part) + i
        found.append(position)
    return found


@pytest.mark.parametrize(
    ("source", "to"),
    [((BATCH, SEQ), (SEQ, BATCH)), ((SEQ, 6), (4, SEQ)), ((SEQ,), (2, 256)), ((BATCH, SEQ), (BATCH,))],
)
def test_a_reshape_that_divides_otherwise_is_refused(source: tuple[Symbolic, ...], to: tuple[Symbolic, ...]) -> None:
    with pytest.raises(VerifyException):
        reshaped(source, to)


def test_exact_quotients() -> None:
    n, m = var("n", 1, 9), var("m", 1, 9)
    assert exact_quotient(n * m * 6, m * 2) == n * 3
    assert exact_quotient((n + 1) * 4, n + 1) == const(4)
    assert exact_quotient((n + 1) * m, n + 1) == m
    assert exact_quotient(n * 3, const(2)) is None and exact_quotient(n + 1, n) is None
    assert exact_quotient(n, const(0)) is None
    assert of_expression(const(3)) == 3
