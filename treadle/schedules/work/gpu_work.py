"""The features of a GPU kernel that cost models read, and what the accesses of its warps cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import VectorType
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Attribute, Operation

from treadle.dialects.graph.dtypes import is_float
from treadle.dialects.loop.tiles import BANK_BYTES, BANKS, SECTOR_BYTES, WARP
from treadle.dialects.scalar import FUNCTION_OF
from treadle.index.positions import Digit, Position
from treadle.schedules.gpu_time import GpuWork
from treadle.schedules.work.cpu_work import Work
from treadle.schedules.work.rules import combined_accesses, lowered_copies, split_loops, unrolled_loops
from treadle.schedules.work.tree import (
    Access,
    Branch,
    Buffer,
    Kernel,
    Loop,
    Node,
    Step,
    accesses_in,
    all_likely,
    finish,
    nodes_in,
)

# What one operation on floats costs, in simple operations.

_DIVISION = 10.0
_EXP2 = 8.0
"""One instruction, of which a multiprocessor has a unit for eight of those that multiply and add."""
ROUNDING = 2.0
"""Instructions that round a float to tf32."""


def op_cost(op: Operation) -> float:
    """The cost of an operation on floats or on vectors of them; 0 for others.

    A multiplication that is fused with the addition that uses it is free, a division or a function such as exp costs
    as much as the simple operations that take its time.
    """
    if isinstance(op, math.Exp2Op) and FastMathFlag.APPROX_FUNC in op.fastmath.data:
        return _EXP2
    return 0.0 if not op.results or _is_fused(op) else cost_of(type(op), op.results[0].type)


def cost_of(kind: type[Operation], result: Attribute) -> float:
    """The cost of an operation of a kind that gives a type, unless it is fused with another."""
    element = result.get_element_type() if isinstance(result, VectorType) else result
    if not is_float(element) or not kind.name.startswith(("arith.", "math.")) or kind is arith.ConstantOp:
        return 0.0
    function = FUNCTION_OF.get(kind)
    return _DIVISION if kind is arith.DivfOp else 1.0 if function is None else float(function.cost)


def _is_fused(op: Operation) -> bool:
    """Whether it is a multiplication that is fused with the addition that uses it."""
    if not isinstance(op, arith.MulfOp):
        return False
    uses = list(op.result.uses)
    return len(uses) == 1 and isinstance(uses[0].operation, arith.AddfOp | arith.SubfOp)


# What the accesses of a block's warps cost.

_KEPT = 2048
"""Counts that are kept, with the addresses of up to 1024 threads each."""


@lru_cache(_KEPT)
def _sectors(addresses: bytes, width: int) -> int:
    """`sectors` of addresses of all threads: those of one schedule are mostly those of its neighbours."""
    return sectors(in_warps(np.frombuffer(addresses, np.int64)), width)


@lru_cache(_KEPT)
def _shared_cycles(addresses: bytes, width: int) -> int:
    """`shared_cycles` in the same way."""
    return shared_cycles(in_warps(np.frombuffer(addresses, np.int64)), width)


def sectors_of(addresses: Addresses, width: int, lanes: int = WARP) -> int:
    """`sectors` of the addresses of all threads of a block."""
    if lanes < WARP:
        return sectors(in_warps(addresses, lanes), width)
    return _sectors(addresses.tobytes(), width)


def shared_cycles_of(addresses: Addresses, width: int, lanes: int = WARP) -> int:
    """`shared_cycles` of the addresses of all threads of a block."""
    if lanes < WARP:
        return shared_cycles(in_warps(addresses, lanes), width)
    return _shared_cycles(addresses.tobytes(), width)


Addresses: TypeAlias = "NDArray[Any]"
"""Bytes' addresses, of each warp's lanes: two dimensions."""

OTHER_REGISTERS = 36
"""Registers of a thread beside its arrays. NVRTC 13.0 takes 29 to 44 for the products of docs/schedules.md whose tiles
do not overhang."""


AnyWork: TypeAlias = Work | GpuWork
"""The work of a kernel for either kind of target."""


def in_warps(addresses: Addresses, lanes: int = WARP) -> Addresses:
    """Addresses of all threads of a block as rows of warps, of which the first `lanes` take part; a warp that is not
    full repeats its last one."""
    short = -len(addresses) % WARP
    whole = np.concatenate([addresses, np.repeat(addresses[-1:], short)]) if short else addresses
    return whole.reshape(-1, WARP)[:, :lanes]


def sectors(addresses: Addresses, width: int) -> int:
    """The sectors that accesses of `width` bytes touch, summed over the warps. Source: CUDA C++ Best Practices Guide
    13.0, "Coalesced Access to Global Memory"."""
    ends = (addresses, addresses + (width - 1)) if width > 1 else (addresses,)
    touched = np.sort(np.concatenate([end // SECTOR_BYTES for end in ends], axis=1), axis=1)
    return int(len(touched) + np.count_nonzero(np.diff(touched, axis=1)))


def shared_cycles(addresses: Addresses, width: int) -> int:
    """The cycles of accesses of `width` bytes to shared memory, summed over the warps.

    A wave is a warp for accesses of up to 4 bytes, half of one for 8 bytes, a quarter for 16; it takes as many cycles
    as it reads different words of one bank. Source: CUDA C++ Best Practices Guide 13.0, "Shared Memory and Memory
    Banks".
    """
    lanes = WARP * BANK_BYTES // max(width, BANK_BYTES)
    waves = addresses.reshape(-1, min(lanes, addresses.shape[1]))
    words = waves[:, :, None] // BANK_BYTES + np.arange(max(1, width // BANK_BYTES))
    words = np.sort(words.reshape(len(waves), -1), axis=1)
    new = np.ones(words.shape, bool)
    new[:, 1:] = np.diff(words, axis=1) != 0
    cells = words % BANKS + np.arange(len(waves))[:, None] * BANKS
    counts = np.bincount(cells[new], minlength=len(waves) * BANKS)
    return int(counts.reshape(-1, BANKS).max(axis=1).sum())


# Counts the tree of a kernel: operations, what its warps ask of memories, and what it waits for.

_REGISTER_BYTES = 4
UNROLLED_ELEMENTS = 512
"""Of the largest buffer that unrolling keeps in a thread's registers."""


def lower_for_gpu(kernel: Kernel) -> None:
    """Does to a recorded tree what stage `loops` does to a kernel for a GPU."""
    kernel.inside = combined_accesses(lowered_copies(split_loops(kernel.inside)))
    finish(kernel.inside)
    unrolled_loops(kernel.inside, UNROLLED_ELEMENTS)


def count_on_gpu(kernel: Kernel) -> GpuWork:
    """The work of a tree as stage `loops` leaves it. Blocks are taken as the first one is: predicates of accesses hold,
    and variables of loops begin."""
    return _GpuCounter(kernel).work()


class _GpuCounter:
    """Walks a tree once; `times` are executions by one thread."""

    def __init__(self, kernel: Kernel):
        self._kernel = kernel
        self._threads = np.arange(kernel.threads, dtype=np.int64)
        self._warps = -(-kernel.threads // WARP)
        self._loops: list[Loop] = []
        self._written: dict[Loop, set[Buffer]] = {}
        self._digits: dict[Digit, Any] = {}
        self._operations = self._tensor = self._sectors = self._loads = self._stores = self._accesses = 0.0
        self._steps = self._round_trips = self._barriers = self._hidden = 0.0
        self._tensor_bytes = self._ahead = 0

    def work(self) -> GpuWork:
        """The counts."""
        kernel = self._kernel
        self._region(kernel.inside, 1.0)
        shared = sum(each.elements * each.bytes for each in kernel.allocs if each.is_shared)
        return GpuWork(
            blocks=kernel.grid,
            threads=kernel.threads,
            registers=_live_registers(kernel.inside) + OTHER_REGISTERS,
            min_blocks=kernel.min_blocks,
            shared_bytes=shared,
            operations=self._operations * kernel.threads,
            tensor_flops=self._tensor * self._warps,
            tensor_bytes=self._tensor_bytes,
            sectors=self._sectors,
            shared_loads=self._loads,
            shared_stores=self._stores,
            accesses=self._accesses * self._warps,
            steps=self._steps,
            ahead=self._ahead,
            round_trips=self._round_trips,
            barriers=self._barriers,
            waiting=self._barriers - self._hidden,
            bytes=sum(each.elements * each.bytes for each in kernel.arguments),
        )

    def _region(self, inside: Sequence[Node], times: float) -> None:
        """Straight code: a loop's body that is not unrolled, or what is outside of such loops."""
        code = list(self._straight(inside))
        waits = [node.pending for node in code if isinstance(node, Step) and node.pending is not None]
        loads = [n for n in code if isinstance(n, Access) and n.buffer.is_global and not n.is_store]
        plain = [node for node in loads if not node.is_async]
        is_brought = any(isinstance(node, Step) and node.brought for node in code)
        if (len(plain) < len(loads) or is_brought) and waits:
            self._loads_ahead(times, min(waits) + 1)
        if plain and _waits_at_once(code):
            self._round_trips += times
        elif plain:
            self._loads_ahead(times, 1)
        self._hidden += times * _hidden_barriers(code)
        self._inside(inside, times)

    def _straight(self, inside: Sequence[Node]) -> Iterator[Node]:
        """The nodes of some code with those of unrolled loops and of branches that are taken, in order; other loops as
        one."""
        for node in inside:
            if isinstance(node, Branch):
                if all_likely(node.conditions, self._kernel.block):
                    yield from self._straight(node.inside)
            elif isinstance(node, Loop) and node.is_unrolled:
                yield from self._straight(node.inside)
            else:
                yield node

    def _loads_ahead(self, times: float, ahead: int) -> None:
        if times >= self._steps:
            self._steps, self._ahead = times, ahead

    def _inside(self, inside: Sequence[Node], times: float) -> None:
        for node in inside:
            if isinstance(node, Access):
                self._access(node, times)
            elif isinstance(node, Step):
                self._operations += times * node.cost
                self._barriers += times if node.is_barrier else 0.0
                self._sectors += times * node.brought * self._kernel.threads
                if node.tensor:
                    self._tensor += times * node.tensor
                    self._tensor_bytes = node.tensor_bytes
            elif isinstance(node, Branch):
                part = all_likely(node.conditions, self._kernel.block)
                if part:
                    self._inside(node.inside, times * part)
            else:
                self._loops.append(node)
                count = self._inside if node.is_unrolled else self._region
                count(node.inside, times * node.trips)
                self._loops.pop()

    def _access(self, access: Access, times: float) -> None:
        buffer = access.buffer
        if buffer.is_register:
            return
        times *= self._invariance(access)
        if access.in_branch:
            times *= all_likely(access.conditions, self._kernel.block)
        self._accesses += times
        width = access.buffer.bytes * access.elements
        found = None if access.place.is_data else np.broadcast_to(access.address(self._at), self._threads.shape)
        if not buffer.is_shared:
            whole = self._warps * min(access.lanes, WARP) * max(1, width // SECTOR_BYTES)
            self._sectors += times * (whole if found is None else sectors_of(found, width, access.lanes))
            return
        cycles = self._warps if found is None else shared_cycles_of(found, width, access.lanes)
        if access.is_store:
            self._stores += times * cycles
        else:
            self._loads += times * cycles

    def _at(self, position: Position) -> Any:
        """A position for each thread."""
        total: Any = position.constant
        thread = self._kernel.thread
        for factor, k in position.terms.items():
            if isinstance(factor, Digit):
                if factor.variable is thread:
                    if factor not in self._digits:
                        self._digits[factor] = factor.at({thread: self._threads})
                    total = total + self._digits[factor] * k
            else:
                total = total + factor.at({thread: self._threads}) * k
        return total

    def _invariance(self, access: Access) -> float:
        """What hoisting leaves of a load: it is out of the innermost unrolled loops along which it does not move, if
        these do not write what it reads."""
        times = 1.0
        for loop in reversed(self._loops):
            if access.is_store or access.is_async or not loop.is_unrolled or access.buffer in self._writes(loop):
                break
            if not loop.moves(access.place):
                times /= loop.trips
        return times

    def _writes(self, loop: Loop) -> set[Buffer]:
        """The buffers that a loop writes."""
        if loop not in self._written:
            self._written[loop] = {each.buffer for each in accesses_in(loop.inside) if each.is_store}
        return self._written[loop]


def _waits_at_once(code: Sequence[Node]) -> bool:
    """Whether what is loaded is used before anything else is computed; in registers it only waits."""
    pending: set[object] = set()
    worked = False
    for node in code:
        if isinstance(node, Access):
            if not node.is_store and node.value is not None:
                if (node.buffer.is_global and not node.is_async) or node.buffer in pending:
                    pending.add(node.value)
            elif node.value in pending:
                if not node.buffer.is_register:
                    return not worked
                pending.add(node.buffer)
            elif node.is_store and node.value is None and node.buffer in pending:
                return not worked
        elif isinstance(node, Step):
            if any(operand in pending for operand in node.operands):
                return not worked
            worked = worked or (bool(pending) and (node.tensor > 0 or node.cost > 0))
        elif isinstance(node, Loop):
            worked = worked or bool(pending)
    return False


def _hidden_barriers(code: Sequence[Node]) -> int:
    """Barriers behind which the next product on tensor cores is one of fragments that were loaded before."""
    hidden, is_behind = 0, False
    fresh: list[tuple[Buffer, tuple[int, int]]] = []
    loaded: set[object] = set()
    for node in code:
        if isinstance(node, Access):
            if node.is_store and node.buffer.is_register and node.value in loaded:
                fresh.append((node.buffer, node.place.bounds))
            elif not node.is_store and (node.buffer.is_shared or _overlaps(node, fresh)):
                loaded.add(node.value)
        elif isinstance(node, Step) and node.is_barrier:
            is_behind, fresh, loaded = True, [], set[object]()
        elif isinstance(node, Step) and loaded.intersection(node.operands) and not node.tensor:
            loaded.add(node.result)
        elif isinstance(node, Step) and node.tensor and is_behind:
            hidden += not loaded.intersection(node.operands)
            is_behind = False
    return hidden


def _overlaps(access: Access, places: Sequence[tuple[Buffer, tuple[int, int]]]) -> bool:
    """Whether an access may touch one of some places in registers."""
    low, high = access.place.bounds
    return any(buffer is access.buffer and first <= high and low <= last for buffer, (first, last) in places)


def _live_registers(inside: Sequence[Node]) -> int:
    """Registers of a thread's arrays where most of them are live at once."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for n, node in enumerate(nodes_in(inside)):
        if isinstance(node, Access) and node.buffer.is_register:
            first.setdefault(node.buffer, n)
            last[node.buffer] = n
        elif isinstance(node, Step) and node.allocated is not None:
            first[node.allocated] = last[node.allocated] = n
    ends: list[tuple[int, int]] = []
    for buffer, begin in first.items():
        if not buffer.is_register:
            continue
        registers = -(-buffer.elements * buffer.bytes // _REGISTER_BYTES)
        ends += [(begin, registers), (last[buffer] + 1, -registers)]
    live = most = 0
    for _, change in sorted(ends):
        live += change
        most = max(most, live)
    return most
