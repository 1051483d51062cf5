"""Sectors and bank conflicts of a kernel's accesses on a GPU, from the addresses that the lanes of a warp compute.

Global memory transfers whole sectors of 32 bytes; an access is ideal if it touches no more of them than its bytes fill.
Shared memory has 32 banks of 4 bytes: lanes of one wave that access different words of one bank are serialised.
A wave is a warp for accesses of 4 bytes and less, half of one for 8 bytes, a quarter for 16. Source: CUDA C++ Best
Practices Guide 13.0, "Coalesced Access to Global Memory" and "Shared Memory and Memory Banks".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, TypeAlias

import numpy as np

from treadle.dialects.loop import FuncOp, Space, swizzle_of
from treadle.dialects.loop.tiles import WARP
from treadle.index.expr import Var
from treadle.index.reader import IndexReader
from treadle.passes.loop.accesses import SECTOR_BYTES, Access, accesses, name_of

BANKS = 32
BANK_BYTES = 4
Address: TypeAlias = Callable[[Mapping[Any, Any]], Any]
"""A byte's address, for values of the thread, the block and the loops' variables: of all threads at once, given an
array of theirs."""
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
    reader, found = IndexReader(), list[MemoryTransactions]()
    for op in kernel.body.walk():
        costs = (_cost(access, kernel, reader) for access in accesses(op))
        found += [cost for cost in costs if cost is not None]
    return found


def _cost(access: Access, kernel: FuncOp, reader: IndexReader) -> MemoryTransactions | None:
    space, size = access.space, access.element_bytes
    if space is Space.REGISTER or size is None:
        return None
    indices = [reader.read(index) for index in access.indices]
    if any(None in v.range for index in indices for v in index.vars()):
        return None
    swizzle, strides = swizzle_of(access.type), access.strides

    def address(at: Mapping[Any, Any]) -> Any:
        position: list[Any] = [index.evaluate(at) for index in indices]
        if swizzle is not None:
            position[-1] = swizzle.column(position[-2], position[-1])
        return size * sum(index * stride for index, stride in zip(position, strides, strict=True))

    width, name = size * access.elements, name_of(access.buffer)
    worst = MemoryTransactions(name, access.is_store, space, width)
    for addresses in _warps(address, [v for index in indices for v in index.vars()], kernel):
        active = addresses[: access.lanes]
        if space is Space.SHARED:
            each = MemoryTransactions(name, access.is_store, space, width, conflicts=bank_conflicts(active, width))
        else:
            each = MemoryTransactions(name, access.is_store, space, width, *sectors(active, width))
        worst = max(worst, each, key=lambda t: (t.excess, t.conflicts, t.sectors))
    return worst


def _warps(address: Address, variables: Sequence[Var], kernel: FuncOp) -> Iterator[list[int]]:
    """The addresses of a warp's lanes, for each warp and the ends of the ranges of the other variables."""
    others: dict[Any, tuple[Any, Any]] = {v.key: v.range for v in variables if v.key is not kernel.thread_id}
    threads = np.arange(kernel.threads.value.data)
    for values in islice(product(*others.values()), _MOST_SAMPLES):
        at: dict[Any, Any] = dict(zip(others, values, strict=True))
        addresses = np.broadcast_to(address({**at, kernel.thread_id: threads}), threads.shape).tolist()
        for first in range(0, len(addresses), WARP):
            yield addresses[first : first + WARP]


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


__all__ = ["MemoryTransactions", "bank_conflicts", "memory_transactions", "sectors"]
