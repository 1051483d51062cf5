"""The work of a CUDA-core product from its tile alone: what `count_gpu_work` finds in its kernel."""

from __future__ import annotations

from math import gcd

from xdsl.dialects.builtin import f32

from treadle.dialects.graph import MatmulOp
from treadle.dialects.loop.tiles import WARP
from treadle.schedules.gpu_traffic import Traffic
from treadle.schedules.gpu_work import OTHER_REGISTERS, Addresses, GpuWork
from treadle.schedules.split_k import shared_out, tiles_of
from treadle.schedules.templates.product_work import bytes_of, comes_from_outside
from treadle.schedules.templates.simt_tile import Filling, SimtTile

_SIZE = 4
"""Bytes of an element."""


def simt_work(anchor: MatmulOp, tile: SimtTile, split_k: int) -> GpuWork | None:
    """The work of a product of f32 by itself, with a loop of at least two steps, at least one whole tile
    and no step beyond the end; None for others."""
    slices, (m, n), k = shared_out(anchor, split_k, tile.block_k), anchor.shape[-2:], anchor.reduction_extent
    a, b = tile.a_filling, tile.b_filling
    plain = anchor.type.get_element_type() == f32 and comes_from_outside(anchor)
    if not plain or a is None or b is None or not tile.a_transposed or tile.b_transposed:
        return None
    if m < tile.m or n < tile.n or slices.each < 3 or slices.covered != k or k % a.vector or n % b.vector:
        return None
    steps, part = slices.each, 1 / slices.number
    traffic = Traffic(tile.threads)
    line, element = _places(a, traffic)
    traffic.reach((line * k + element) * _SIZE, a.vector * _SIZE, steps * a.per_thread / a.vector)
    traffic.store((element * tile.row_of_a + line) * _SIZE, _SIZE, steps * a.per_thread)
    line, element = _places(b, traffic)
    traffic.reach((line * n + element) * _SIZE, b.vector * _SIZE, steps * b.per_thread / b.vector)
    traffic.store((line * tile.row_of_b + element) * _SIZE, b.vector * _SIZE, steps * b.per_thread / b.vector)
    row, column = (_line(tile, axis, traffic) for axis in (0, 1))
    for axis, place in enumerate((row, column)):
        traffic.load(place * _SIZE, tile.thread[axis] * _SIZE, steps * tile.block_k * tile.repeats[axis])
    rows, columns = (tile.repeats[axis] * tile.thread[axis] for axis in (0, 1))
    vector = gcd(tile.thread[1], n)
    traffic.reach((row * n + column) * _SIZE, vector * _SIZE, part * rows * columns / vector)
    operations = steps * tile.block_k * tile.outputs
    if slices.number > 1:
        traffic.add_up(tile.outputs)
        operations += tile.outputs
    tiles = tiles_of(anchor, tile.m, tile.n)
    return GpuWork(
        blocks=tiles * slices.number,
        threads=tile.threads,
        registers=tile.outputs + a.per_thread + b.per_thread + rows + columns + OTHER_REGISTERS,
        min_blocks=tile.min_blocks or 1,
        shared_bytes=tile.shared_elements * _SIZE,
        operations=operations * tile.threads,
        tensor_flops=0.0,
        tensor_bytes=0,
        sectors=traffic.sectors,
        shared_loads=traffic.shared_loads,
        shared_stores=traffic.shared_stores,
        accesses=traffic.accesses,
        steps=steps - 1,
        ahead=1,
        round_trips=1 if slices.number == 1 else 2,
        barriers=steps,
        bytes=bytes_of(anchor, tiles, slices.number, tile.m * tile.n),
    )


def _places(filling: Filling, traffic: Traffic) -> tuple[Addresses, Addresses]:
    """The first line and element that each thread copies."""
    lane, warp = traffic.thread % WARP, traffic.thread // WARP
    _, across = filling.warps
    line = warp // across * filling.high + lane // filling.wide
    return line, (warp % across * filling.wide + lane % filling.wide) * filling.vector


def _line(tile: SimtTile, axis: int, traffic: Traffic) -> Addresses:
    """The first row or column of each thread."""
    lane, warp = traffic.thread % WARP, traffic.thread // WARP
    mine = lane // tile.lanes[1] if axis == 0 else lane % tile.lanes[1]
    of_warp = warp // tile.warps[1] if axis == 0 else warp % tile.warps[1]
    return (of_warp * tile.repeats[axis] * tile.lanes[axis] + mine) * tile.thread[axis]


__all__ = ["simt_work"]
