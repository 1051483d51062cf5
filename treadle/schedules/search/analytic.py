"""An analytic cost model: a kernel's time from its work and the target's peak rates, without measurements."""

from __future__ import annotations

from math import ceil

from treadle.schedules.search.work import Work
from treadle.target import Target

_LATENCY = 4.0
"""Latency of a vector addition in cycles, on Skylake and later, and on Zen and later."""
_L1_BYTES = 32 * 1024
_BYTES_PER_CYCLE_L2 = 32.0
_BYTES_PER_CYCLE_L3 = 8.0
_BLOCK_CYCLES = 100.0
_LAUNCH_SECONDS = 3e-6
"""As the four above assumed, not measured: they order candidates, whose times are measured afterwards."""


def cpu_seconds(work: Work, target: Target) -> float:
    """The predicted time of a kernel on all of a CPU's cores.

    A body takes as long as its slowest resource: two arithmetic and two load ports, one store port, and the latency of
    dependent additions. Cache misses are added to this, since prefetching hides them only in part.
    """
    cycle = 4 * target.lanes / target.peak_f32
    straight = sum(b.executions * _cycles(b.arithmetic, b.loads, b.stores, b.chain) for b in work.bodies)
    workers = min(target.cores, work.blocks)
    rounds = ceil(work.blocks / workers)
    from_l2, from_l3 = work.traffic(_L1_BYTES), work.traffic(0.75 * target.l2_bytes)
    waits = from_l2 / _BYTES_PER_CYCLE_L2 + from_l3 / _BYTES_PER_CYCLE_L3
    cycles = rounds * (straight + _BLOCK_CYCLES) + waits
    return _LAUNCH_SECONDS + cycles * cycle


def _cycles(arithmetic: float, loads: float, stores: float, chain: float) -> float:
    return max(arithmetic / 2, (loads + stores) / 2, stores, chain * _LATENCY, 1.0)


__all__ = ["cpu_seconds"]
