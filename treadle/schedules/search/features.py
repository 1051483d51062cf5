"""A CPU kernel's work as numbers that a learned cost model reads: logarithms, and parts of what a processor can do."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2

from treadle.schedules.search.analytic import cpu_seconds
from treadle.schedules.search.work import MASK_OPERATIONS, Body, Work
from treadle.target import KIB, Target

_L1_BYTES = 32 * KIB
_LARGEST_BODIES = 2
"""Bodies that are described one by one: nearly all time is spent in the fold, and in the store of its results."""
_LATENCY = 4.0


def features(work: Work, target: Target) -> list[float]:
    """41 numbers for every kernel.

    They do not depend on the unit of time: the model learns by what factor the analytic one errs, from kernels of all
    groups together.
    """
    workers = min(target.cores, work.blocks)
    rounds = ceil(work.blocks / workers)
    bodies = sorted(work.bodies, key=_cycles, reverse=True)
    cycles = max(sum(map(_cycles, bodies)), 1.0)
    return [
        _log(cpu_seconds(work, target) * 1e9), _log(work.blocks), _log(work.share), rounds * workers / work.blocks,
        _log(cycles), float(len(bodies)), *_limits(bodies, cycles), *_largest(bodies, cycles),
        *_traffic(work, target, rounds * cycles),
    ]  # fmt: skip


def _limits(bodies: Sequence[Body], cycles: float) -> list[float]:
    """How long each resource is busy, as parts of the time: arithmetic, loads and stores, latency, masks."""
    return [
        sum(b.executions * b.arithmetic for b in bodies) / 2 / cycles,
        sum(b.executions * (b.loads + b.stores) for b in bodies) / 2 / cycles,
        sum(b.executions * b.stores for b in bodies) / cycles,
        sum(b.executions * b.chain for b in bodies) * _LATENCY / cycles,
        sum(b.executions * b.masked for b in bodies) * MASK_OPERATIONS / 2 / cycles,
    ]


def _largest(bodies: Sequence[Body], cycles: float) -> list[float]:
    """The bodies that take longest; without one, numbers that no body has."""
    found: list[float] = []
    for n in range(_LARGEST_BODIES):
        if n >= len(bodies):
            found += [0.0] + [-1.0] * 6
            continue
        b = bodies[n]
        found += [
            _cycles(b) / cycles, _log(b.executions), _log(b.arithmetic), _log(b.loads), _log(b.stores), b.chain,
            b.arithmetic / max(b.loads + b.stores, 1.0),
        ]  # fmt: skip
    return found


def _traffic(work: Work, target: Target, cycles: float) -> list[float]:
    """Bytes into caches of several sizes, also per cycle, and the sizes from which on there is little traffic."""
    sizes = [0.0, _L1_BYTES / 2, _L1_BYTES, target.l2_bytes / 2, target.l2_bytes, 4.0 * target.l2_bytes]
    moved = [work.traffic(size) for size in sizes]
    least = work.reuse[-1].traffic
    enough = next(step.capacity for step in work.reuse if step.traffic <= 1.25 * least)
    return [
        *map(_log, moved), *(each / cycles for each in moved), _log(least), _log(work.reuse[-1].capacity / _L1_BYTES),
        _log(enough / _L1_BYTES), _log(enough / target.l2_bytes),
    ]  # fmt: skip


def _cycles(b: Body) -> float:
    """As the analytic model counts them."""
    return b.executions * max(b.operations / 2, (b.loads + b.stores) / 2, b.stores, b.chain * _LATENCY, 1.0)


def _log(value: float) -> float:
    """Base 2, of what may be 0."""
    return log2(value + 2**-10)


__all__ = ["features"]
