"""The values that a sample of factors may take, as a finite, ordered set."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import TypeAlias

from treadle.errors import TreadleError

Factors: TypeAlias = tuple[int, ...]


MOST_LISTS = 2**16
"""Lists of factors that are enumerated of one sample. The most that a sample of Treadle's own rules has is 131
(`tests/schedules/rules`); four divisors of 720 with a product up to 720 are 13,881."""


@lru_cache(maxsize=4096)
def factor_support(sizes: tuple[Factors, ...], least: int, most: int, step: int, beside: int) -> tuple[Factors, ...]:
    """Every list of factors, the last one changing fastest.

    sizes:  what each factor may be, ascending
    The product, times `beside`, is from `least` to `most` and a multiple of `step`. A search asks for the same supports
    again and again, hence the cache. TreadleError where more than `MOST_LISTS` lists are within `most`.
    """
    # What the factors behind each level, and what stands beside, multiply at least.
    behind = list(accumulate((choices[0] for choices in reversed(sizes)), mul, initial=beside))[-2::-1]
    found: list[tuple[Factors, int]] = [((), 1)]
    for choices, rest in zip(sizes, behind, strict=True):
        counts = [bisect_right(choices, most, key=(product * rest).__mul__) for _, product in found]
        _check_number(sum(counts))
        found = [
            ((*head, size), product * size)
            for (head, product), count in zip(found, counts, strict=True)
            for size in choices[:count]
        ]
    products = ((factors, product * beside) for factors, product in found)
    return tuple(factors for factors, product in products if product >= least and product % step == 0)


def _check_number(lists: int) -> None:
    if lists > MOST_LISTS:
        raise TreadleError(
            f"{lists} lists of factors or more are within the bound, {lists - MOST_LISTS} too many",
            accepted=f"at most {MOST_LISTS}: fewer factors, fewer sizes or a lower bound",
        )


__all__ = ["MOST_LISTS", "Factors", "factor_support"]
