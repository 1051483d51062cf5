"""Sectors that a block of a kernel fetches to its multiprocessor, and how many the bytes that it uses would fill.

`memory_transactions` counts what each access by itself requests from the L1 cache. Where windows overlap, that
overstates the traffic: a warp that reads every second element, and then the others, requests every sector twice, but L2
sends it once, and all of it is used. Wasted are the parts of sectors that no load of the block uses: where two blocks
meet within a sector, both fetch it. This is true as long as what the blocks of a multiprocessor fetch stays in its L1
cache, for which `Fetched.sectors` gives the size. Source: CUDA C++ Best Practices Guide 13.0, "Coalesced Access to
Global Memory".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, Operation, SSAValue

from treadle.dialects.loop import FuncOp
from treadle.index.expr import Var
from treadle.index.reader import IndexReader
from treadle.passes.loop.accesses import SECTOR_BYTES, Access, accesses, name_of
from treadle.passes.loop.counted_loops import trip_count
from treadle.passes.loop.kernels import constant_index

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


__all__ = ["Fetched", "fetched_sectors"]
