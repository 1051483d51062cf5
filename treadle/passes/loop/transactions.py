"""What the accesses of a kernel cost a GPU's memories, from the addresses that the lanes of a warp compute.

Global memory moves whole sectors of 32 bytes; an access is ideal where it touches no more of them than its bytes need.
Shared memory has 32 banks of 4 bytes: lanes of one wave that want different words of one bank wait for one another.
A wave is a warp for accesses of 4 bytes and less, half of one for 8 bytes, a quarter for 16. Source: CUDA C++ Best
Practices Guide 13.0, "Coalesced Access to Global Memory" and "Shared Memory and Memory Banks".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from typing import Any, TypeAlias

from xdsl.dialects import vector
from xdsl.dialects.builtin import FixedBitwidthType, MemRefType, VectorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.loop import AsyncCopyOp, FuncOp, LoadMatrixOp, LoadOp, Space, SpaceAttr, StoreOp, swizzle_of
from treadle.dialects.loop.index_atom import Var
from treadle.passes.loop.emit_index import IndexReader
from treadle.passes.loop.kernels import id_ranges

SECTOR_BYTES = 32
BANKS = 32
BANK_BYTES = 4
_WARP = 32
Address: TypeAlias = Callable[[Mapping[Any, int]], int]
"""A byte's address, for values of the thread, the block and the loops' variables."""
_MOST_SAMPLES = 32
"""Values of blocks and loop variables at which an access is looked at: the ends of their ranges."""


@dataclass(frozen=True)
class Transactions:
    """The worst warp of one access.

    bytes: of a lane; sectors, ideal_sectors: of global memory; conflicts: waits for a bank of shared memory
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
    def is_ideal(self) -> bool:
        """Whether no sector is moved in vain and no lane waits."""
        return self.sectors == self.ideal_sectors and not self.conflicts


def transactions(kernel: FuncOp) -> list[Transactions]:
    """Every access of a kernel to global and shared memory whose address the block, the thread and loops decide.

    Predicates are taken to hold: of a kernel for a ragged shape, the inner blocks are described. Swizzled buffers are
    understood before `loop-resolve-swizzles`.
    """
    reader, found = IndexReader(id_ranges(kernel).get), list[Transactions]()
    for op in kernel.body.walk():
        costs = (_cost(access, kernel, reader) for access in _accesses(op))
        found += [cost for cost in costs if cost is not None]
    return found


@dataclass(frozen=True)
class _Access:
    """Where each lane reads or writes: `elements` from the place at `indices` on. Only the first `lanes` count."""

    buffer: SSAValue
    indices: Sequence[SSAValue]
    elements: int
    is_store: bool
    lanes: int = _WARP


def _accesses(op: Operation) -> list[_Access]:
    if isinstance(op, LoadOp | StoreOp):
        return [_Access(op.buffer, op.indices, 1, isinstance(op, StoreOp))]
    if isinstance(op, vector.LoadOp):
        return [_Access(op.base, op.indices, _count(op.result), False)]
    if isinstance(op, vector.StoreOp):
        return [_Access(op.base, op.indices, _count(op.vector), True)]
    if isinstance(op, AsyncCopyOp):
        read = _Access(op.source, op.source_indices, op.count, False)
        return [read, _Access(op.buffer, op.indices, op.count, True)]
    if isinstance(op, LoadMatrixOp):
        # Eight lanes name the rows of each matrix, 16 bytes each.
        row = 4 * op.fragment.type.get_shape()[-1]
        return [_Access(op.buffer, op.indices, row, False, lanes=8 * op.matrices)]
    return []


def _cost(access: _Access, kernel: FuncOp, reader: IndexReader) -> Transactions | None:
    type = access.buffer.type
    assert isinstance(type, MemRefType)
    space = type.memory_space.data if isinstance(type.memory_space, SpaceAttr) else None
    element = type.get_element_type()
    if space is Space.REGISTER or not isinstance(element, FixedBitwidthType):
        return None
    size = max(1, element.bitwidth // 8)
    indices = [reader.read(index) for index in access.indices]
    if any(None in v.range for index in indices for v in index.vars()):
        return None
    swizzle, strides = swizzle_of(type), _strides(type.get_shape())

    def address(at: Mapping[Any, int]) -> int:
        places = [index.evaluate(at) for index in indices]
        if swizzle is not None:
            places[-1] = swizzle.column(places[-2], places[-1])
        return size * sum(place * stride for place, stride in zip(places, strides, strict=True))

    width, name = size * access.elements, access.buffer.name_hint or "buffer"
    worst = Transactions(name, access.is_store, space, width)
    for addresses in _warps(address, [v for index in indices for v in index.vars()], kernel):
        active = addresses[: access.lanes]
        if space is Space.SHARED:
            each = Transactions(name, access.is_store, space, width, conflicts=bank_conflicts(active, width))
        else:
            each = Transactions(name, access.is_store, space, width, *sectors(active, width))
        worst = max(worst, each, key=lambda t: (t.sectors - t.ideal_sectors, t.conflicts, t.sectors))
    return worst


def _count(value: SSAValue) -> int:
    type = value.type
    assert isinstance(type, VectorType)
    return type.element_count()


def _strides(shape: Sequence[int]) -> list[int]:
    return [prod(shape[n + 1 :]) for n in range(len(shape))]


def _warps(
    address: Callable[[Mapping[Any, int]], int], variables: Sequence[Var], kernel: FuncOp
) -> Iterator[list[int]]:
    """The addresses of a warp's lanes, for each warp and at the ends of what else decides them."""
    others: dict[Any, tuple[Any, Any]] = {v.key: v.range for v in variables if v.key is not kernel.thread_id}
    for values in islice(product(*others.values()), _MOST_SAMPLES):
        at: dict[Any, int] = dict(zip(others, values, strict=True))
        for first in range(0, kernel.threads.value.data, _WARP):
            last = min(first + _WARP, kernel.threads.value.data)
            yield [address({**at, kernel.thread_id: t}) for t in range(first, last)]


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
