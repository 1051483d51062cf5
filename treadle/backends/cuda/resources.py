"""Registers and shared memory of a compiled kernel, and how many of its blocks fit on a multiprocessor."""

from __future__ import annotations

import re
from dataclasses import dataclass

from treadle.schedules.occupancy import Occupancy, occupancy_of
from treadle.target import Target

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

    `dynamic_shared` is the launch's dynamic shared memory in bytes. Raises what `occupancy_of` raises.
    """
    return occupancy_of(target, threads, resources.registers, resources.shared_bytes + dynamic_shared)
