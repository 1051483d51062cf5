"""Adds up what the warps of a block computed of the same rows from different keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from xdsl.dialects.builtin import VectorType, f32
from xdsl.ir import SSAValue

from treadle.dialects.graph.definition import Scalar
from treadle.dialects.loop import Space
from treadle.dialects.loop.tiles import WARP
from treadle.dialects.task import repeat
from treadle.schedules.index_value import Index
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.templates.attention_mma_tile import AttentionMmaTile

Weight = Callable[[Scalar, Scalar], Scalar]
"""The weight of a score relative to another one."""


@dataclass(frozen=True)
class Sums:
    """A lane's registers: results `[slabs, columns / 16, 2]` of tile products, and of its rows `[slabs, 2]` the largest
    score and its share of the sum of the weights relative to it."""

    acc: SSAValue
    largest: SSAValue
    total: SSAValue


def finite(b: KernelBuilder, largest: Scalar) -> Scalar:
    """What scores are relative to: before the first visible key 0, since -inf - -inf would be NaN, and stay it."""
    return b.select(b.binary("eq", largest, b.constant(-inf, f32)), b.constant(0, f32), largest)


def scale(b: KernelBuilder, acc: SSAValue, type: VectorType, extents: tuple[int, ...], factors: SSAValue) -> None:
    """Multiplies each result by the factor `[slabs, 2]` of its row."""
    with b.tasks(["r", "p", "q"], repeat(*extents), unroll=True) as where:
        scaled = b.alloc("scaled", type.get_shape(), f32)
        with b.tasks(["h", "c"], repeat(*type.get_shape()), unroll=True) as (h, c):
            value = b.extract(b.load(acc, where), [h, c], f32)
            b.store(b.mul(value, b.load(factors, [where[0], h])), scaled, [h, c])
        b.store(b.load_vector(scaled, type), acc, where)


def merge(b: KernelBuilder, tile: AttentionMmaTile, part: Index, sums: Sums, type: VectorType, weight: Weight) -> None:
    """Gives the first of the warps that share rows the sums of all of them.

    Lanes of the same number have the same elements in every warp, so that each writes and reads words of its own.
    """
    lane = b.thread % (WARP * tile.warps)
    rows, lanes = (tile.slabs, type.get_shape()[0]), WARP * tile.warps
    largest, total = (b.alloc(name, [tile.parts, *rows, lanes], f32, Space.SHARED) for name in ("peaks", "totals"))
    with b.tasks(["r", "h"], repeat(*rows), unroll=True) as (r, h):
        b.store(b.load(sums.largest, [r, h]), largest, [part, r, h, lane])
        b.store(b.load(sums.total, [r, h]), total, [part, r, h, lane])
    b.barrier()
    factors = b.alloc("factors", rows, f32)
    with b.tasks(["r", "h"], repeat(*rows), unroll=True) as (r, h):
        peak = b.alloc("peak", [1], f32)
        b.store(b.load(sums.largest, [r, h]), peak, [0])
        with b.loop("s", tile.parts, unroll=True) as s:
            b.store(b.binary("max", b.load(peak, [0]), b.load(largest, [s, r, h, lane])), peak, [0])
        base = finite(b, b.load(peak, [0]))
        b.store(weight(b.load(sums.largest, [r, h]), base), factors, [r, h])
        b.store(b.constant(0, f32), sums.total, [r, h])
        with b.loop("s", tile.parts, unroll=True) as s:
            share = b.mul(b.load(total, [s, r, h, lane]), weight(b.load(largest, [s, r, h, lane]), base))
            b.store(b.add(b.load(sums.total, [r, h]), share), sums.total, [r, h])
    extents = (tile.slabs, tile.padded_width // 16, 2)
    scale(b, sums.acc, type, extents, factors)
    _add_up(b, tile, part, lane, sums.acc, type, extents)


def _add_up(
    b: KernelBuilder,
    tile: AttentionMmaTile,
    part: Index,
    lane: Index,
    acc: SSAValue,
    type: VectorType,
    extents: tuple[int, ...],
) -> None:
    """Adds the results of the other warps to those of the first."""
    height, width = type.get_shape()
    shape = [tile.parts - 1, *extents, height, WARP * tile.warps, width]
    partial = b.alloc("partial", shape, f32, Space.SHARED)
    with (
        b.when(part > 0),
        b.tasks(["r", "p", "q", "h"], repeat(*extents, height), unroll=True) as (r, p, q, h),
        b.loop("c", width, unroll=True, vector=True) as c,
    ):
        value = b.extract(b.load(acc, [r, p, q]), [h, c], f32)
        b.store(value, partial, [part - 1, r, p, q, h, lane, c])
    b.barrier()
    with (
        b.when(part.equals(0)),
        b.tasks(["s", "r", "p", "q"], repeat(tile.parts - 1, *extents), unroll=True) as (s, *where),
    ):
        added = b.alloc("sum", type.get_shape(), f32)
        with b.loop("h", height, unroll=True) as h, b.loop("c", width, unroll=True, vector=True) as c:
            value = b.extract(b.load(acc, where), [h, c], f32)
            b.store(b.add(value, b.load(partial, [s, *where, h, lane, c])), added, [h, c])
        b.store(b.load_vector(added, type), acc, where)


__all__ = ["Sums", "finite", "merge", "scale"]
