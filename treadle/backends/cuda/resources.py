"""Registers and shared memory of a compiled kernel, and how many of its blocks fit on a multiprocessor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from treadle.errors import TreadleError
from treadle.target import KIB, Target

# Granularities of allocation since compute capability 8.0: CUDA occupancy calculator, sheet "GPU Data". A
# multiprocessor has four parts with registers of their own, among which the warps of a block are distributed.
_REGISTERS_PER_ALLOCATION = 256
_PARTS = 4
_SHARED_PER_ALLOCATION = 128
_SHARED_RESERVED_PER_BLOCK = 1 * KIB

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Resources:
    """What one kernel uses, as ptxas reports it. Bytes, except for registers of 32 bits per thread."""

    registers: int
    shared_bytes: int = 0
    """Static shared memory of a block."""
    stack_bytes: int = 0
    """Local memory of a thread, spilled registers included."""
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0

    @property
    def spills(self) -> bool:
        """Whether registers were spilled to local memory."""
        return self.spill_store_bytes + self.spill_load_bytes > 0


@dataclass(frozen=True)
class Occupancy:
    """How many blocks and warps of a kernel are resident on a multiprocessor at a time."""

    blocks: int
    warps: int
    fraction: float
    """Resident warps over the most that a multiprocessor holds."""
    limiter: str
    """The resource that limits it: `registers`, `shared memory`, `warps` or `blocks`."""


def parse_resources(log: str) -> dict[str, Resources]:
    """The resources of every kernel in a log that ptxas wrote under `-v`, by kernel name."""
    found: dict[str, Resources] = {}
    sections = _ENTRY.split(log)
    for name, section in zip(sections[1::2], sections[2::2], strict=True):
        used = _USED.search(section)
        if used is None:
            continue
        stack, shared = _STACK.search(section), _SHARED.search(section)
        frame, stores, loads = map(int, stack.groups()) if stack else (0, 0, 0)
        found[name] = Resources(
            registers=int(used.group(1)),
            shared_bytes=int(shared.group(1)) if shared else 0,
            stack_bytes=frame,
            spill_store_bytes=stores,
            spill_load_bytes=loads,
        )
    return found


def occupancy(resources: Resources, target: Target, threads: int, dynamic_shared: int = 0) -> Occupancy:
    """The theoretical occupancy of a kernel launched with `threads` per block on `target`.

    `dynamic_shared` is the launch's dynamic shared memory in bytes. Source: the CUDA occupancy calculator.
    Raises `TreadleError` if not even one block fits, naming the limit and by how much it is exceeded.
    """
    if not target.is_cuda:
        raise TreadleError(f"target '{target.name}' has no multiprocessors", where="occupancy", accepted="a GPU")
    shared = resources.shared_bytes + dynamic_shared
    _check("threads in a block", threads, target.max_threads_per_block)
    _check("registers in a thread", resources.registers, target.registers_per_thread)
    _check("bytes of shared memory in a block", shared, target.shared_per_block)

    warps = _ceil_div(threads, target.warp_size)
    registers_per_warp = _round_up(resources.registers * target.warp_size, _REGISTERS_PER_ALLOCATION)
    shared_per_block = _round_up(shared + _SHARED_RESERVED_PER_BLOCK, _SHARED_PER_ALLOCATION)
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
