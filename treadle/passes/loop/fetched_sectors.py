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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, Operation, SSAValue

from treadle.dialects.loop import FuncOp, Space, swizzle_of
from treadle.dialects.loop.accesses import Access, accesses, name_of
from treadle.dialects.loop.tiles import BANK_BYTES, BANKS, SECTOR_BYTES, WARP
from treadle.index.expr import Var
from treadle.index.reader import IndexReader
from treadle.passes.loop.kernels import constant_index, trip_count

# Sectors and bank conflicts of a kernel's accesses on a GPU, from the addresses that the lanes of a warp compute.
#
# Global memory transfers whole sectors of 32 bytes; an access is ideal if it touches no more of them than its bytes
# fill. Shared memory has 32 banks of 4 bytes: lanes of one wave that access different words of one bank are serialised.
# A wave is a warp for accesses of 4 bytes and less, half of one for 8 bytes, a quarter for 16. Source: CUDA C++ Best
# Practices Guide 13.0, "Coalesced Access to Global Memory" and "Shared Memory and Memory Banks".

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


Lanes: TypeAlias = "NDArray[Any]"
"""One value for each thread of a block."""
_MOST_ELEMENTS = 1 << 17
"""The most elements that one load of a block may read, in all iterations of its loops, to be analysed: more would not
stay in a cache."""
_COMPARISONS = {
    "eq": np.equal, "ne": np.not_equal, "slt": np.less, "sle": np.less_equal, "sgt": np.greater,
    "sge": np.greater_equal, "ult": np.less, "ule": np.less_equal, "ugt": np.greater, "uge": np.greater_equal,
}  # fmt: skip

_CONNECTIVES = {arith.AndIOp: np.logical_and, arith.OrIOp: np.logical_or, arith.XOrIOp: np.logical_xor}


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
    last = kernel.grid.value.data - 1
    chosen = sorted({min(n, last) for n in range(8)} | {last})
    loads: dict[SSAValue, list[tuple[Operation, Access]]] = {}
    for op in kernel.body.walk():
        for access in accesses(op):
            wanted = buffers is None or name_of(access.buffer) in buffers
            if wanted and not access.is_store and access.space is None:
                loads.setdefault(access.buffer, []).append((op, access))
    reader, found = _Block(kernel), list[Fetched]()
    for buffer, listed in loads.items():
        each = [reader.fetched(buffer, listed, block) for block in chosen]
        known = [one for one in each if one is not None]
        if len(known) == len(each):
            found.append(max(known, key=lambda one: (one.excess, one.sectors)))
    return found


class _Block:
    """Follows the loads of one block through its loops, all threads at once."""

    def __init__(self, kernel: FuncOp):
        self._kernel, self._reader = kernel, IndexReader()
        self._threads = np.arange(kernel.threads.value.data)

    def fetched(self, buffer: SSAValue, loads: Sequence[tuple[Operation, Access]], block: int) -> Fetched | None:
        """What the block loads of one buffer; None where that is unknown."""
        used: list[Lanes] = []
        for op, access in loads:
            positions = self._elements(op, access, block)
            if positions is None:
                return None
            used += positions
        (size,) = {access.element_bytes or 0 for _, access in loads}
        elements = np.unique(np.concatenate(used)) if used else np.zeros(0, np.int64)
        touched = len(np.unique(elements * size // SECTOR_BYTES))
        return Fetched(name_of(buffer), touched, -(-len(elements) * size // SECTOR_BYTES))

    def _elements(self, op: Operation, access: Access, block: int) -> list[Lanes] | None:
        """The linear indices of the elements that one access loads, iteration by iteration."""
        indices = [self._reader.read(index) for index in access.indices]
        conditions = _conditions(op, access, self._kernel)
        variables = [v for index in indices for v in index.vars()]
        variables += [v for condition, _ in conditions for v in self._compared(condition)]
        ids = self._kernel.block_id, self._kernel.thread_id
        loops = {v.key: _values_of(v) for v in variables if v.key not in ids}
        passes = [values for values in loops.values() if values is not None]
        if len(passes) < len(loops) or prod(map(len, passes)) * len(self._threads) * access.elements > _MOST_ELEMENTS:
            return None
        found: list[Lanes] = []
        for values in product(*passes):
            at: dict[Any, Any] = {**dict(zip(loops, values, strict=True)), ids[0]: block, ids[1]: self._threads}
            active = np.ones(self._threads.shape, bool)
            for condition, wanted in conditions:
                holds = self._holds(condition, at)
                active &= True if holds is None else holds == wanted
            first: Any = sum(index.evaluate(at) * stride for index, stride in zip(indices, access.strides, strict=True))
            positions = np.broadcast_to(first, self._threads.shape)[active]
            found.append((positions[:, None] + np.arange(access.elements)).ravel())
        return found

    def _compared(self, condition: SSAValue) -> list[Var]:
        """The variables of a condition's comparisons."""
        op = condition.owner
        if isinstance(op, arith.AndIOp | arith.OrIOp | arith.XOrIOp):
            return [*self._compared(op.lhs), *self._compared(op.rhs)]
        if isinstance(op, arith.CmpiOp) and isinstance(op.lhs.type, IndexType):
            return [*self._reader.read(op.lhs).vars(), *self._reader.read(op.rhs).vars()]
        return []

    def _holds(self, condition: SSAValue, at: Mapping[Any, Any]) -> Lanes | None:
        """In which threads a condition is true; None where index arithmetic does not decide it."""
        op = condition.owner
        if isinstance(op, arith.AndIOp | arith.OrIOp | arith.XOrIOp):
            lhs, rhs = self._holds(op.lhs, at), self._holds(op.rhs, at)
            if lhs is None or rhs is None:
                return (rhs if lhs is None else lhs) if isinstance(op, arith.AndIOp) else None
            return _CONNECTIVES[type(op)](lhs, rhs)
        if isinstance(op, arith.CmpiOp) and isinstance(op.lhs.type, IndexType):
            compare = _COMPARISONS[arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]]
            return compare(self._reader.read(op.lhs).evaluate(at), self._reader.read(op.rhs).evaluate(at))
        return None


def _conditions(op: Operation, access: Access, kernel: FuncOp) -> list[tuple[SSAValue, bool]]:
    """The conditions under which an access happens: its predicate, and the branches around it."""
    found = [] if access.predicate is None else [(access.predicate, True)]
    inner, outer = op, op.parent_op()
    while outer is not None and outer is not kernel:
        if isinstance(outer, scf.IfOp):
            found.append((outer.cond, inner.parent_region() is outer.true_region))
        inner, outer = outer, outer.parent_op()
    return found


def _values_of(variable: Var) -> range | None:
    """The values of a loop variable; None for other variables, and for loops without constant bounds."""
    owner = variable.key.owner if isinstance(variable.key, SSAValue) else None
    loop = owner.parent_op() if isinstance(owner, Block) else None
    if not isinstance(loop, scf.ForOp) or owner is None or variable.key is not loop.body.block.args[0]:
        return None
    trips, start, step = trip_count(loop), constant_index(loop.lb), constant_index(loop.step)
    if trips is None or start is None or step is None:
        return None
    return range(start, start + trips * step, step)
