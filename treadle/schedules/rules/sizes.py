"""Which factors are worth trying along an axis."""

from __future__ import annotations

from treadle.target import Target

_FEW, _MOST_SIZES = 3, 12
"""Divisors that are enough for a choice; sizes of one list: three lists of 12 have 1728 products, enumerated in about a
millisecond. Assumed, not measured."""


def sizes_of(extent: int, most: int) -> list[int]:
    """Factors from 1 to `most` for an axis: its divisors; 1, 2, 3, 4, 6, 8, 12, ... too, if there are few of them.

    Odd ones are among them: tiles need not be powers of two, nor need they divide the extent. Where both can be had,
    tiles that do not overhang are cheaper. The smallest ones are dropped where there are too many, except for 1, 2, 4.
    """
    most = max(1, min(most, extent))
    divisors = {d for d in range(1, most + 1) if extent % d == 0}
    doubling = {base << n for base in (1, 3) for n in range(most.bit_length()) if base << n <= most}
    found = sorted(divisors if len(divisors) >= min(_FEW, most) else doubling | divisors)
    kept = [size for size in found if size in (1, 2, 4)]
    rest = [size for size in found if size not in kept]
    return sorted([*kept, *rest[-(_MOST_SIZES - len(kept)) :]])


def vector_sizes(extent: int, target: Target) -> list[int]:
    """Lengths of the innermost level on a CPU: up to four vectors, or a half or a quarter of one on a short axis.

    They are whole vectors, whose last lanes may be masked: of one convolution, 28 elements in vectors of 16 and 12 took
    7.4 ms, in two of 16 1.8 ms (two cores beside other jobs).
    """
    lanes = target.lanes
    parts = [lanes // 4, lanes // 2] if extent < lanes else []
    vectors = [count * lanes for count in (1, 2, 3, 4) if (count - 1) * lanes < extent]
    found = {size for size in parts if 0 < size < 2 * extent} | {size for size in vectors if size < 4 * extent}
    return sorted(found) or [extent]


def thread_sizes(extent: int, target: Target) -> list[int]:
    """Threads along the innermost axis: powers of two up to what covers the extent, but at least to a warp."""
    most = max(target.warp_size, 1 << max(extent - 1, 0).bit_length())
    return [1 << n for n in range(most.bit_length()) if 1 << n <= min(most, 256)]


__all__ = ["sizes_of", "thread_sizes", "vector_sizes"]
