"""Ranges of integers: inclusive bounds, open where unknown."""

from __future__ import annotations

from typing import TypeAlias

Range: TypeAlias = tuple[int | None, int | None]
"""Inclusive bounds (lo, hi); None is unbounded on that side."""


UNBOUNDED: Range = (None, None)
EMPTY: Range = (0, -1)


def is_inside(a: Range, b: Range) -> bool:
    """Whether all of a is in b."""
    above = b[0] is None or (a[0] is not None and a[0] >= b[0])
    return above and (b[1] is None or (a[1] is not None and a[1] <= b[1]))


def is_empty(a: Range) -> bool:
    """Whether a is empty."""
    return a[0] is not None and a[1] is not None and a[0] > a[1]


def range_product(a: Range, b: Range) -> Range:
    """Bounds of x * y for x in a, y in b."""
    if a == (0, 0) or b == (0, 0):
        return (0, 0)
    if None not in a and None not in b:
        products = [x * y for x in a for y in b if x is not None and y is not None]
        return min(products), max(products)
    (alo, ahi), (blo, bhi) = a, b
    if ahi is not None and ahi <= 0:
        return _negated(range_product(_negated(a), b))
    if bhi is not None and bhi <= 0:
        return _negated(range_product(a, _negated(b)))
    if alo is not None and blo is not None and alo >= 0 and blo >= 0:
        return alo * blo, None if ahi is None or bhi is None else ahi * bhi
    if alo is not None and alo >= 0 and ahi is not None:
        return None if blo is None else ahi * blo, None if bhi is None else ahi * bhi
    if blo is not None and blo >= 0 and bhi is not None:
        return None if alo is None else bhi * alo, None if ahi is None else bhi * ahi
    return None, None


def range_sum(a: Range, b: Range) -> Range:
    """Bounds of x + y for x in a, y in b."""
    return (
        None if a[0] is None or b[0] is None else a[0] + b[0],
        None if a[1] is None or b[1] is None else a[1] + b[1],
    )


def intersection(a: Range, b: Range) -> Range:
    """Bounds of the numbers that are in a and in b."""
    lo = max((x for x in (a[0], b[0]) if x is not None), default=None)
    return lo, min((x for x in (a[1], b[1]) if x is not None), default=None)


def range_min(a: Range, b: Range) -> Range:
    """Bounds of min(x, y) for x in a, y in b."""
    return _lowest(a[0], b[0]), min((x for x in (a[1], b[1]) if x is not None), default=None)


def range_max(a: Range, b: Range) -> Range:
    """Bounds of max(x, y) for x in a, y in b."""
    return max((x for x in (a[0], b[0]) if x is not None), default=None), _highest(a[1], b[1])


def range_union(a: Range, b: Range) -> Range:
    """Bounds of the numbers that are in a or in b."""
    return _lowest(a[0], b[0]), _highest(a[1], b[1])


def range_of_bits(a: Range, b: Range) -> Range:
    """Bounds of x and y, x or y, x exclusive or y, bit by bit, for x in a, y in b."""
    (alo, ahi), (blo, bhi) = a, b
    if alo is None or blo is None or alo < 0 or blo < 0:
        return None, None
    return 0, None if ahi is None or bhi is None else (1 << max(ahi, bhi).bit_length()) - 1


def _lowest(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else min(a, b)


def _highest(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else max(a, b)


def _negated(a: Range) -> Range:
    return None if a[1] is None else -a[1], None if a[0] is None else -a[0]
