"""The choice of a few kernels that serve many shapes.

Source: DietCode (MLSys 2022), section 4.3, where every shape votes for its favourite kernel. A kernel for each vote may
be as many as shapes; here a kernel is added only while it gains something for all shapes together.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import inf
from typing import TypeVar

from treadle.errors import TreadleError

Kernel = TypeVar("Kernel", bound=Hashable)

LEAST_GAIN = 0.01
"""The part of the total by which another kernel has to raise it; assumed, of the order of two timings' difference."""


def chosen_kernels(
    seconds: Mapping[Kernel, Sequence[float]],
    weights: Sequence[float],
    least_gain: float = LEAST_GAIN,
    most: int | None = None,
    first: Kernel | None = None,
) -> list[Kernel]:
    """Kernels in the order of their gains: each next one raises the total throughput most, the first of equal ones.

    seconds: of every kernel on every shape; infinite where it cannot be used
    weights: how often each shape occurs. A shape's throughput counts relative to its best kernel's, so that long
        shapes do not outvote short ones. TreadleError if there is a shape that no kernel can be used for.
    most: how many are chosen at most, if one of them serves all shapes; first: is among them, whatever others gain
    """
    best = [min((times[n] for times in seconds.values()), default=inf) for n in range(len(weights))]
    if inf in best:
        raise TreadleError(f"no kernel computes shape number {best.index(inf)}", "joint search", "one for each shape")
    chosen: list[Kernel] = [] if first is None else [first]
    served = [inf] * len(best) if first is None else list(seconds[first])
    while len(chosen) < len(seconds):
        before = _total(served, best, weights)
        left = [kernel for kernel in seconds if kernel not in chosen]
        after = {kernel: _total(list(map(min, served, seconds[kernel])), best, weights) for kernel in left}
        kernel = max(left, key=lambda each: after[each])
        if inf not in served and (after[kernel] <= before * (1 + least_gain) or len(chosen) == most):
            break
        if after[kernel] <= before:
            kernel = _for_unserved(seconds, left, served)
        chosen.append(kernel)
        served = list(map(min, served, seconds[kernel]))
    return chosen


def votes(seconds: Mapping[Kernel, Sequence[float]], chosen: Sequence[Kernel], count: int) -> list[Kernel]:
    """The fastest of the chosen kernels for each of `count` shapes, the first of equal ones."""
    return [min(chosen, key=lambda kernel: seconds[kernel][n]) for n in range(count)]


def throughput(seconds: Mapping[Kernel, Sequence[float]], weights: Sequence[float], chosen: Sequence[Kernel]) -> float:
    """The throughput of some kernels, each shape's relative to that of the fastest of all and times its weight."""
    points = range(len(weights))
    best, served = ([min(seconds[kernel][n] for kernel in of) for n in points] for of in (seconds, chosen))
    return _total(served, best, weights)


def _total(served: Sequence[float], best: Sequence[float], weights: Sequence[float]) -> float:
    return sum(weight * fastest / time for time, fastest, weight in zip(served, best, weights, strict=True))


def _for_unserved(seconds: Mapping[Kernel, Sequence[float]], left: Sequence[Kernel], served: Sequence[float]) -> Kernel:
    """The fastest kernel of the first shape without one, whose weight is 0."""
    number = served.index(inf)
    return min(left, key=lambda kernel: seconds[kernel][number])


__all__ = ["LEAST_GAIN", "chosen_kernels", "throughput", "votes"]
