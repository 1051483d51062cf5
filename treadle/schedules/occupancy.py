"""How many blocks of a kernel fit on a multiprocessor at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from treadle.errors import TreadleError
from treadle.target import KIB, Target

# Granularities of allocation: CUDA occupancy calculator, sheet "GPU Data". A multiprocessor has four parts with
# registers of their own, among which the warps of a block are distributed.
_REGISTERS_PER_ALLOCATION = 256
_PARTS = 4
_SHARED = (1 * KIB, 128)
"""Bytes of shared memory that are reserved for every block, and of which the others are a multiple: from compute
capability 8.0 on."""
_SHARED_OF_TURING = (0, 256)


@dataclass(frozen=True)
class Occupancy:
    """How many blocks and warps of a kernel are resident on a multiprocessor at a time."""

    blocks: int
    warps: int
    fraction: float
    """Resident warps over the most that a multiprocessor holds."""
    limiter: str
    """The resource that limits it: `registers`, `shared memory`, `warps` or `blocks`."""


def occupancy_of(target: Target, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """The theoretical occupancy by blocks of `threads`: `registers` of 32 bits a thread, `shared_bytes` a block.

    Source: the CUDA occupancy calculator. Raises `TreadleError` if not even one block fits, naming the limit and by how
    much it is exceeded.
    """
    if not target.is_cuda:
        raise TreadleError(f"target '{target.name}' has no multiprocessors", where="occupancy", accepted="a GPU")
    _check("threads in a block", threads, target.max_threads_per_block)
    _check("registers in a thread", registers, target.registers_per_thread)
    _check("bytes of shared memory in a block", shared_bytes, target.shared_per_block)

    warps = _ceil_div(threads, target.warp_size)
    registers_per_warp = _round_up(registers * target.warp_size, _REGISTERS_PER_ALLOCATION)
    reserved, granularity = _SHARED if target.capability >= 80 else _SHARED_OF_TURING
    shared_per_block = max(1, _round_up(shared_bytes + reserved, granularity))
    warps_per_part = target.registers_per_multiprocessor // _PARTS // max(1, registers_per_warp)
    limits: Mapping[str, int] = {
        "warps": target.max_warps_per_multiprocessor // warps,
        "blocks": target.max_blocks_per_multiprocessor,
        "registers": _PARTS * warps_per_part // warps,
        "shared memory": target.shared_per_multiprocessor // shared_per_block,
    }
    limiter = min(limits, key=lambda name: limits[name])
    blocks = limits[limiter]
    dealt = _round_up(warps, _PARTS)
    _check("registers in a block", dealt * registers_per_warp, target.registers_per_multiprocessor)
    return Occupancy(blocks, blocks * warps, blocks * warps / target.max_warps_per_multiprocessor, limiter)


def _check(what: str, value: int, limit: int) -> None:
    if value > limit:
        raise TreadleError(
            f"{value} {what}, {value - limit} over the limit", where="occupancy", accepted=f"up to {limit}"
        )


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _round_up(value: int, multiple: int) -> int:
    return _ceil_div(value, multiple) * multiple


__all__ = ["Occupancy", "occupancy_of"]
