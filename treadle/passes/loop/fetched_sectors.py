"""Sectors that a block of a kernel fetches to its multiprocessor, and how many the bytes that it uses would fill.

`memory_transactions` counts what each access by itself requests from the L1 cache. Where windows overlap, that
overstates the traffic: a warp that reads every second element, and then the others, requests every sector twice, but L2
sends it once, and all of it is used. Wasted are the parts of sectors that no load of the block uses: where two blocks
meet within a sector, both fetch it. This is true as long as what the blocks of a multiprocessor fetch stays in its L1
cache, for which `Fetched.sectors` gives the size. Source: CUDA C++ Best Practices Guide 13.0, "Coalesced Access to
Global Memory".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import islice, product
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from treadle.dialects.loop import FuncOp, Space
from treadle.dialects.loop.tiles import BANK_BYTES, BANKS, SECTOR_BYTES, WARP
from treadle.index.positions import Position, Variable
from treadle.schedules.work.lowered import kernel_tree
from treadle.schedules.work.rules import compared
from treadle.schedules.work.tree import (
    Access,
    AnyOf,
    Branch,
    Buffer,
    Comparison,
    Condition,
    Kernel,
    Loop,
    Node,
    Otherwise,
    accesses_in,
    nodes_in,
)

# Sectors and bank conflicts of a kernel's accesses on a GPU, from the addresses that the lanes of a warp compute.
#
# Global memory transfers whole sectors of 32 bytes; an access is ideal if it touches no more of them than its bytes
# fill. Shared memory has 32 banks of 4 bytes: lanes of one wave that access different words of one bank are serialised.
# A wave is a warp for accesses of 4 bytes and less, half of one for 8 bytes, a quarter for 16. Source: CUDA C++ Best
# Practices Guide 13.0, "Coalesced Access to Global Memory" and "Shared Memory and Memory Banks".

_MOST_SAMPLES = 32
"""How many combinations of block and loop variables, at the ends of their ranges, an access is evaluated for."""


@dataclass(frozen=True)
class MemoryTransactions:
    """The worst warp of one access.

    bytes: of a lane; sectors, ideal_sectors: of global memory; conflicts: repeated waves at a bank of shared memory
    """

    buffer: str
    is_store: bool
    space: Space | None
    """None for tensors."""
    bytes: int
    sectors: int = 0
    ideal_sectors: int = 0
    conflicts: int = 0

    @property
    def is_global(self) -> bool:
        """Whether it reaches the memory that all blocks share; registers are not accessed."""
        return self.space is not Space.SHARED

    @property
    def excess(self) -> int:
        """Sectors requested beyond the ideal."""
        return self.sectors - self.ideal_sectors


def memory_transactions(kernel: FuncOp) -> list[MemoryTransactions]:
    """Every access of a kernel to global and shared memory whose address depends on block, thread and loops only.

    Predicates are assumed to be true, as they are in the inner blocks of a kernel for a ragged shape. Swizzles are
    applied, as long as `loop-resolve-swizzles` has not run.
    """
    tree = kernel_tree(kernel)
    every = [access for access in accesses_in(tree.inside) if not access.buffer.is_register]
    return [_cost(access, tree) for access in every if not access.place.is_data]


def _cost(access: Access, kernel: Kernel) -> MemoryTransactions:
    buffer = access.buffer
    width = buffer.bytes * access.elements
    worst = MemoryTransactions(buffer.name, access.is_store, buffer.space, width)
    for addresses in _warps(access, kernel):
        active = addresses[: access.lanes]
        if buffer.is_shared:
            found = replace(worst, conflicts=bank_conflicts(active, width))
        else:
            touched, ideal = sectors(active, width)
            found = replace(worst, sectors=touched, ideal_sectors=ideal)
        worst = max(worst, found, key=lambda each: (each.excess, each.conflicts, each.sectors))
    return worst


def _warps(access: Access, kernel: Kernel) -> Iterator[list[int]]:
    """The addresses of a warp's lanes, for each warp and the ends of the ranges of the other variables."""
    threads = np.arange(kernel.threads)
    others = [each for each in _variables(kernel) if each in access.place.variables]
    for values in islice(product(*((0, each.size - 1) for each in others)), _MOST_SAMPLES):
        at = {**dict(zip(others, values, strict=True)), kernel.thread: threads}
        addresses = np.broadcast_to(access.address(partial(Position.at, values=at)), threads.shape).tolist()
        for first in range(0, len(addresses), WARP):
            yield addresses[first : first + WARP]


def _variables(kernel: Kernel) -> list[Variable]:
    """The blocks and the loops, outer ones first."""
    return [kernel.block, *(node.variable for node in nodes_in(kernel.inside) if isinstance(node, Loop))]


def sectors(addresses: Sequence[int], width: int) -> tuple[int, int]:
    """The sectors that accesses of `width` bytes touch, and how many their distinct bytes would fill."""
    touched = {byte // SECTOR_BYTES for a in addresses for byte in (a, a + width - 1)}
    return len(touched), -(-len(set(addresses)) * width // SECTOR_BYTES)


def bank_conflicts(addresses: Sequence[int], width: int) -> int:
    """How often a wave of a warp is repeated because lanes access different words of one bank."""
    lanes = WARP * BANK_BYTES // max(width, BANK_BYTES)
    conflicts = 0
    for first in range(0, len(addresses), lanes):
        words: dict[int, set[int]] = defaultdict(set)
        for address in addresses[first : first + lanes]:
            for word in range(address // BANK_BYTES, -(-(address + width) // BANK_BYTES)):
                words[word % BANKS].add(word)
        conflicts += max(map(len, words.values())) - 1
    return conflicts


Lanes: TypeAlias = "NDArray[Any]"
"""One value for each thread of a block."""
_MOST_ELEMENTS = 1 << 17
"""The most elements that one load of a block may read, in all iterations of its loops, to be analysed: more would not
stay in a cache."""
_COMPARISONS = {
    "eq": np.equal, "ne": np.not_equal, "slt": np.less, "sle": np.less_equal, "sgt": np.greater,
    "sge": np.greater_equal,
}  # fmt: skip


@dataclass(frozen=True)
class Fetched:
    """What one block fetches of one buffer: sectors of 32 bytes, and how many the distinct bytes would fill."""

    buffer: str
    sectors: int
    ideal_sectors: int

    @property
    def excess(self) -> int:
        """Sectors fetched beyond the ideal."""
        return self.sectors - self.ideal_sectors


def fetched_sectors(kernel: FuncOp, buffers: Collection[str] | None = None) -> list[Fetched]:
    """What the worst of the first eight blocks and the last one fetches of each buffer in global memory.

    Predicates that compare indices are evaluated. Buffers are left out whose elements are not given by index arithmetic
    (those of a gather), or that are read too often for a cache.

    buffers: names of the buffers to look at; None means all
    """
    tree = kernel_tree(kernel)
    chosen = sorted({min(n, tree.grid - 1) for n in range(8)} | {tree.grid - 1})
    loads: dict[Buffer, list[_Load]] = {}
    for load in _loads(tree.inside, ()):
        buffer = load.access.buffer
        if buffer.space is None and (buffers is None or buffer.name in buffers):
            loads.setdefault(buffer, []).append(load)
    reader, found = _Block(tree), list[Fetched]()
    for buffer, listed in loads.items():
        each = [reader.fetched(buffer, listed, block) for block in chosen]
        known = [one for one in each if one is not None]
        if len(known) == len(each):
            found.append(max(known, key=lambda one: (one.excess, one.sectors)))
    return found


@dataclass(frozen=True)
class _Load:
    """A load, and the conditions under which it happens: its predicate, and those of the branches around it."""

    access: Access
    conditions: tuple[Condition, ...]

    @property
    def positions(self) -> list[Position]:
        """Where it loads, and what is compared."""
        return [self.access.place, *compared(self.conditions)]


def _loads(inside: Sequence[Node], under: tuple[Condition, ...]) -> Iterator[_Load]:
    for node in inside:
        if isinstance(node, Access) and not node.is_store:
            yield _Load(node, (*under, *node.conditions))
        elif isinstance(node, Branch):
            yield from _loads(node.inside, (*under, *node.conditions))
        elif isinstance(node, Loop):
            yield from _loads(node.inside, under)


class _Block:
    """Follows the loads of one block through its loops, all threads at once."""

    def __init__(self, kernel: Kernel):
        self._kernel = kernel
        self._threads = np.arange(kernel.threads)
        self._loops = {node.variable: node for node in nodes_in(kernel.inside) if isinstance(node, Loop)}

    def fetched(self, buffer: Buffer, loads: Sequence[_Load], block: int) -> Fetched | None:
        """What a block fetches by all loads of one buffer; None where that is not known."""
        read: list[Lanes] = []
        for load in loads:
            found = self._elements(load, block)
            if found is None:
                return None
            read += found
        elements = np.unique(np.concatenate(read)) if read else np.zeros(0, int)
        size = buffer.bytes
        touched = len(np.unique(elements * size // SECTOR_BYTES))
        return Fetched(buffer.name, touched, -(-len(elements) * size // SECTOR_BYTES))

    def _elements(self, load: _Load, block: int) -> list[Lanes] | None:
        """The linear indices of the elements that one access loads, iteration by iteration."""
        access, kernel = load.access, self._kernel
        variables = {variable for position in load.positions for variable in position.variables}
        moving = [each for each in variables if each not in (kernel.block, kernel.thread)]
        if not all(each in self._loops and self._loops[each].is_constant for each in moving):
            return None
        if prod(each.size for each in moving) * kernel.threads * access.elements > _MOST_ELEMENTS:
            return None
        found: list[Lanes] = []
        for values in product(*(range(each.size) for each in moving)):
            at = {**dict(zip(moving, values, strict=True)), kernel.block: block, kernel.thread: self._threads}
            active = _hold(load.conditions, at)
            first = np.broadcast_to(access.place.at(at), self._threads.shape)
            if active is not None:
                first = first[np.broadcast_to(active, first.shape)]
            found.append((first[:, None] + np.arange(access.elements) * access.stride).ravel())
        return found


def _hold(conditions: Sequence[Condition], at: Mapping[Variable, Any]) -> Any:
    """In which threads conditions are true, those that index arithmetic decides; None where it decides none."""
    known = [found for found in (_holds(each, at) for each in conditions) if found is not None]
    return reduce(np.logical_and, known) if known else None


def _holds(condition: Condition, at: Mapping[Variable, Any]) -> Any:
    if isinstance(condition, Comparison):
        return _COMPARISONS[condition.kind](condition.difference.at(at), 0)
    if isinstance(condition, AnyOf):
        first, second = (_hold(side, at) for side in condition.sides)
        return None if first is None or second is None else np.logical_or(first, second)
    if isinstance(condition, Otherwise):
        found = _hold(condition.parts, at)
        return None if found is None else np.logical_not(found)
    return None
