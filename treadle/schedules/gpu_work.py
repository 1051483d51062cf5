"""The features of a GPU kernel that cost models read, and what the accesses of its warps cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import arith
from xdsl.dialects.builtin import TensorType, VectorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph.dtypes import byte_width, is_float
from treadle.dialects.loop.tiles import WARP
from treadle.dialects.scalar import FUNCTION_OF

# What one operation on floats costs, in simple operations.

_DIVISION = 10.0


def op_cost(op: Operation) -> float:
    """The cost of an operation on floats or on vectors of them; 0 for others.

    A multiplication that is fused with the addition that uses it is free, a division or a function such as exp costs
    as much as the simple operations that take its time.
    """
    if not op.results or not _gives_floats(op.results[0]) or not op.name.startswith(("arith.", "math.")):
        return 0.0
    if isinstance(op, arith.ConstantOp) or _is_fused(op):
        return 0.0
    function = FUNCTION_OF.get(type(op))
    return _DIVISION if isinstance(op, arith.DivfOp) else 1.0 if function is None else float(function.cost)


def _gives_floats(value: SSAValue) -> bool:
    type = value.type
    return is_float(type.get_element_type() if isinstance(type, VectorType) else type)


def _is_fused(op: Operation) -> bool:
    """Whether it is a multiplication that is fused with the addition that uses it."""
    if not isinstance(op, arith.MulfOp):
        return False
    uses = list(op.result.uses)
    return len(uses) == 1 and isinstance(uses[0].operation, arith.AddfOp | arith.SubfOp)


# What the accesses of a block's warps add up to, and what blocks that share elements access for it.

_SUM_BYTES = 16
_KEPT = 2048
"""Counts that are kept, with the addresses of up to 1024 threads each."""


@dataclass
class Traffic:
    """Adds up the accesses of a block of `threads`; `times` are those of each thread."""

    threads: int
    sectors: float = 0.0
    shared_loads: float = 0.0
    shared_stores: float = 0.0
    accesses: float = 0.0
    thread: Addresses = field(init=False)

    def __post_init__(self) -> None:
        self.thread = np.arange(self.threads, dtype=np.int64)

    @property
    def warps(self) -> int:
        """Warps of the block."""
        return -(-self.threads // WARP)

    def reach(self, addresses: Addresses, width: int, times: float) -> None:
        """Accesses of global memory."""
        self.sectors += times * _sectors(addresses.tobytes(), width)
        self.accesses += times * self.warps

    def load(self, addresses: Addresses, width: int, times: float) -> None:
        """Loads from shared memory."""
        self.shared_loads += times * _shared_cycles(addresses.tobytes(), width)
        self.accesses += times * self.warps

    def store(self, addresses: Addresses, width: int, times: float) -> None:
        """Stores to shared memory."""
        self.shared_stores += times * _shared_cycles(addresses.tobytes(), width)
        self.accesses += times * self.warps

    def add_up(self, accumulators: int) -> None:
        """Each of the blocks that share elements stores its sums and arrives; the last one loads all of them."""
        vectors = accumulators * 4 // _SUM_BYTES
        self.reach(self.thread * _SUM_BYTES, _SUM_BYTES, 2 * vectors)
        self.sectors += self.warps
        self.accesses += self.warps


@lru_cache(_KEPT)
def _sectors(addresses: bytes, width: int) -> int:
    """`sectors` of addresses of all threads: those of one schedule are mostly those of its neighbours."""
    return sectors(in_warps(np.frombuffer(addresses, np.int64)), width)


@lru_cache(_KEPT)
def _shared_cycles(addresses: bytes, width: int) -> int:
    """`shared_cycles` in the same way."""
    return shared_cycles(in_warps(np.frombuffer(addresses, np.int64)), width)


def tensor_bytes(value: SSAValue) -> int:
    """Bytes of a tensor."""
    type = value.type
    assert isinstance(type, TensorType)
    return byte_width(type.get_element_type()) * prod(type.get_shape())


Addresses: TypeAlias = "NDArray[Any]"
"""Bytes' addresses, of each warp's lanes: two dimensions."""

SECTOR_BYTES = 32
BANKS, BANK_BYTES = 32, 4
OTHER_REGISTERS = 36
"""Registers of a thread beside its arrays. NVRTC 13.0 takes 29 to 44 for the products of docs/schedules.md whose tiles
do not overhang."""


@dataclass(frozen=True)
class GpuWork:
    """The work of one kernel; what is not said to be of a thread or of the kernel is of a block.

    blocks: of the grid; threads: of a block
    registers: of a thread, estimated: its largest set of live arrays and `OTHER_REGISTERS`
    min_blocks: that a multiprocessor is to hold, for which the compiler saves registers; 1 if it is not told
    operations: on floats, of all threads, outside of tensor cores; a fused multiply-add counts one
    tensor_flops: on tensor cores, whose operands have `tensor_bytes`
    sectors: of 32 bytes, between L2 and the multiprocessor
    shared_loads, shared_stores: cycles of shared memory's port, those of bank conflicts included
    accesses: instructions of warps that access memory
    steps: iterations of the loop over tiles that are loaded `ahead` steps before they are used
    round_trips: waits for global memory that nothing hides
    barriers: of the block
    bytes: of the kernel's tensors, each once
    """

    blocks: int
    threads: int
    registers: int
    min_blocks: int
    shared_bytes: int
    operations: float
    tensor_flops: float
    tensor_bytes: int
    sectors: float
    shared_loads: float
    shared_stores: float
    accesses: float
    steps: float
    ahead: int
    round_trips: float
    barriers: float
    bytes: int

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return -(-self.threads // WARP)


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
