"""What the accesses of a kernel cost a GPU's memories, from the addresses that the lanes of a warp compute.

Global memory moves whole sectors of 32 bytes; an access is ideal where it touches no more of them than its bytes need.
Shared memory has 32 banks of 4 bytes: lanes of one wave that want different words of one bank wait for one another.
A wave is a warp for accesses of 4 bytes and less, half of one for 8 bytes, a quarter for 16. Source: CUDA C++ Best
Practices Guide 13.0, "Coalesced Access to Global Memory" and "Shared Memory and Memory Banks".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from typing import TypeAlias

from xdsl.dialects import vector
from xdsl.dialects.builtin import FixedBitwidthType, MemRefType, VectorType
from xdsl.ir import SSAValue

from treadle.dialects.loop import FuncOp, LoadOp, Space, SpaceAttr, StoreOp
from treadle.dialects.loop.index_expr import Expr, const
from treadle.passes.loop.emit_index import IndexReader
from treadle.passes.loop.kernels import id_ranges

SECTOR_BYTES = 32
BANKS = 32
BANK_BYTES = 4
_WARP = 32
_MOST_SAMPLES = 32
"""Values of blocks and loop variables at which an access is looked at: the ends of their ranges."""

Access: TypeAlias = LoadOp | StoreOp | vector.LoadOp | vector.StoreOp


@dataclass(frozen=True)
class Transactions:
    """The worst warp of one access.

    bytes: of a lane; sectors, ideal_sectors: of global memory; conflicts: waits for a bank of shared memory
    """

    buffer: str
    is_store: bool
    space: Space | None
    bytes: int
    sectors: int = 0
    ideal_sectors: int = 0
    conflicts: int = 0

    @property
    def is_ideal(self) -> bool:
        """Whether no sector is moved in vain and no lane waits."""
        return self.sectors == self.ideal_sectors and not self.conflicts


def transactions(kernel: FuncOp) -> list[Transactions]:
    """Every access of a kernel to global and shared memory whose address the block, the thread and loops decide.

    Predicates are taken to hold: of a kernel for a ragged shape, the inner blocks are described.
    """
    reader, found = IndexReader(id_ranges(kernel).get), list[Transactions]()
    for op in kernel.body.walk():
        if isinstance(op, LoadOp | StoreOp | vector.LoadOp | vector.StoreOp):
            cost = _cost(op, kernel, reader)
            found += [] if cost is None else [cost]
    return found


def _cost(op: Access, kernel: FuncOp, reader: IndexReader) -> Transactions | None:
    buffer = op.base if isinstance(op, vector.LoadOp | vector.StoreOp) else op.buffer
    type = buffer.type
    assert isinstance(type, MemRefType)
    space = type.memory_space.data if isinstance(type.memory_space, SpaceAttr) else None
    element = type.get_element_type()
    if space is Space.REGISTER or not isinstance(element, FixedBitwidthType):
        return None
    size = max(1, element.bitwidth // 8)
    position = const(0)
    for extent, index in zip(_strides(type.get_shape()), op.indices, strict=True):
        position = position + reader.read(index) * extent
    width = size * _lanes(op)
    name, is_store = buffer.name_hint or "buffer", isinstance(op, StoreOp | vector.StoreOp)
    worst = Transactions(name, is_store, space, width)
    for addresses in _warps(position * size, kernel):
        if space is Space.SHARED:
            each = Transactions(name, is_store, space, width, conflicts=bank_conflicts(addresses, width))
        else:
            each = Transactions(name, is_store, space, width, *sectors(addresses, width))
        worst = max(worst, each, key=lambda t: (t.sectors - t.ideal_sectors, t.conflicts, t.sectors))
    return worst if _is_decided(position, kernel) else None


def _lanes(op: Access) -> int:
    if isinstance(op, LoadOp | StoreOp):
        return 1
    type = op.result.type if isinstance(op, vector.LoadOp) else op.vector.type
    assert isinstance(type, VectorType)
    return type.element_count()


def _strides(shape: Sequence[int]) -> list[int]:
    return [prod(shape[n + 1 :]) for n in range(len(shape))]


def _is_decided(position: Expr, kernel: FuncOp) -> bool:
    return all(None not in v.range for v in position.vars())


def _warps(address: Expr, kernel: FuncOp) -> Iterator[list[int]]:
    """The addresses of a warp's lanes, for each warp and at the ends of what else decides them."""
    if not _is_decided(address, kernel):
        return
    others = [v for v in address.vars() if v.key is not kernel.thread_id]
    ends = product(*((v.lo, v.hi) for v in others))
    for values in islice(ends, _MOST_SAMPLES):
        at: Mapping[SSAValue, int] = {v.key: value for v, value in zip(others, values, strict=True)}  # pyright: ignore
        for first in range(0, kernel.threads.value.data, _WARP):
            last = min(first + _WARP, kernel.threads.value.data)
            yield [address.evaluate({**at, kernel.thread_id: t}) for t in range(first, last)]


def sectors(addresses: Sequence[int], width: int) -> tuple[int, int]:
    """The sectors that accesses of `width` bytes touch, and how many their distinct bytes would fill."""
    touched = {byte // SECTOR_BYTES for a in addresses for byte in (a, a + width - 1)}
    return len(touched), -(-len(set(addresses)) * width // SECTOR_BYTES)


def bank_conflicts(addresses: Sequence[int], width: int) -> int:
    """How often a wave of a warp is repeated because lanes want different words of one bank."""
    lanes = _WARP * BANK_BYTES // max(width, BANK_BYTES)
    conflicts = 0
    for first in range(0, len(addresses), lanes):
        words: dict[int, set[int]] = defaultdict(set)
        for address in addresses[first : first + lanes]:
            for word in range(address // BANK_BYTES, -(-(address + width) // BANK_BYTES)):
                words[word % BANKS].add(word)
        conflicts += max(map(len, words.values())) - 1
    return conflicts


__all__ = ["Transactions", "bank_conflicts", "sectors", "transactions"]
