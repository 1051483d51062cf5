"""The values that a sample of factors may take, as a finite, ordered set."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TypeAlias

Factors: TypeAlias = tuple[int, ...]


@lru_cache(maxsize=4096)
def factor_support(sizes: tuple[Factors, ...], least: int, most: int, step: int, beside: int) -> tuple[Factors, ...]:
    """Every list of factors, the last one changing fastest.

    sizes:  what each factor may be, ascending
    The product, times `beside`, is from `least` to `most` and a multiple of `step`. A search asks for the same supports
    again and again, hence the cache.
    """
    found: list[Factors] = [()]
    for level, choices in enumerate(sizes):
        rest = beside * prod(later[0] for later in sizes[level + 1 :])
        found = [(*head, size) for head in found for size in choices if prod(head) * size * rest <= most]
    return tuple(each for each in found if prod(each) * beside >= least and prod(each) * beside % step == 0)


__all__ = ["Factors", "factor_support"]
