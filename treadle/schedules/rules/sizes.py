"""Which factors are worth trying along an axis."""

from __future__ import annotations

from treadle.target import Target

_MOST_SIZES = 12
"""Of one list: three lists of 12 have 1728 products, enumerated in about a millisecond. Assumed, not measured."""


def sizes_of(extent: int, most: int, *, whole: bool = False) -> list[int]:
    """Factors from 1 to `most` for an axis: its divisors, and 1, 2, 3, 4, 6, 8, 12, ... up to the extent.

    Odd ones are among them: tiles need not be powers of two, nor need they divide the extent. The smallest ones are
    dropped where there are too many, except for 1, 2 and 4.

    whole: divisors only, if there are three of them: where tiles that overhang are dear
    """
    most = max(1, min(most, extent))
    divisors = {d for d in range(1, most + 1) if extent % d == 0}
    doubling = {base << n for base in (1, 3) for n in range(most.bit_length()) if base << n <= most}
    found = sorted(divisors if whole and len(divisors) > 2 else doubling | divisors)
    kept = [size for size in found if size in (1, 2, 4)]
    rest = [size for size in found if size not in kept]
    return sorted([*kept, *rest[-(_MOST_SIZES - len(kept)) :]])


def vector_sizes(extent: int, target: Target) -> list[int]:
    """Lengths of the innermost level on a CPU: up to four vectors, or the whole of a short axis, or a part of it."""
    lanes = target.lanes
    if extent < lanes:
        return sorted({extent, *(size for size in (lanes // 4, lanes // 2) if 0 < size < extent)})
    whole = [extent] if extent <= 2 * lanes else []
    return sorted({*whole, *(vectors * lanes for vectors in (1, 2, 3, 4) if (vectors - 1) * lanes < extent)})


def thread_sizes(extent: int, target: Target) -> list[int]:
    """Threads along the innermost axis: powers of two up to what covers the extent, but at least to a warp."""
    most = max(target.warp_size, 1 << max(extent - 1, 0).bit_length())
    return [1 << n for n in range(most.bit_length()) if 1 << n <= min(most, 256)]


__all__ = ["sizes_of", "thread_sizes", "vector_sizes"]
