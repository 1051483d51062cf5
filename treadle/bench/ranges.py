"""The latency of a model with symbols along its range."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from treadle.bench.interleave import Times, interleave
from treadle.bench.model import repeated
from treadle.dynamic_shapes import ExtentExpression
from treadle.manifest import Tensor
from treadle.model import CompiledModel
from treadle.shapes import Dim

Inputs = Mapping[str, NDArray[Any]]

POINTS = 5
_RANGE_BATCH_SECONDS = 0.02
_FEWEST_ROUNDS = 5


def points_of(symbols: Sequence[Dim], count: int = POINTS) -> list[dict[str, int]]:
    """Values of the symbols from their least to their greatest, each by about the same factor, the greatest last."""
    found: dict[tuple[int, ...], None] = {}
    for n in range(count):
        found[tuple(_between(symbol, n / max(count - 1, 1)) for symbol in symbols)] = None
    return [dict(zip([symbol.name for symbol in symbols], values, strict=True)) for values in found]


def tensors_at(tensors: Sequence[Tensor], values: Mapping[str, int]) -> list[Tensor]:
    """The inputs of a call where the symbols have these values."""
    names = list(values)
    return [
        replace(each, shape=tuple(ExtentExpression(text, names).value(values) for text in each.extents), extents=())
        if each.extents
        else each
        for each in tensors
    ]


def bench_range(
    model: CompiledModel,
    calls: Sequence[Inputs],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Times]:
    """The times of some calls, in turn, for about `seconds` in all."""
    sides = {str(n): repeated(partial(model.run, inputs)) for n, inputs in enumerate(calls)}
    rounds = max(_FEWEST_ROUNDS, int(seconds / (_RANGE_BATCH_SECONDS * len(sides))))
    times = interleave(sides, rounds, _RANGE_BATCH_SECONDS, clock)
    return [times[str(n)] for n in range(len(calls))]


def _between(symbol: Dim, part: float) -> int:
    """The legal extent next to a point between the least and the greatest, on a logarithmic scale."""
    wanted = symbol.least * (symbol.greatest / symbol.least) ** part
    nearest = round(wanted / symbol.multiple) * symbol.multiple
    return min(max(nearest, symbol.least), symbol.greatest)


__all__ = ["POINTS", "bench_range", "points_of", "tensors_at"]
