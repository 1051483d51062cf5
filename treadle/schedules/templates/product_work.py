"""What the kernels of both products on GPUs have in common as work: stores of partial sums, and the sums' addition."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

from treadle.dialects.graph import FusedOp, MatmulOp
from treadle.dialects.graph.dtypes import byte_width
from treadle.schedules.gpu_work import WARP, Addresses, in_warps, sectors, shared_cycles

_SUM_BYTES = 16


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
        self.thread = np.arange(self.threads)

    @property
    def warps(self) -> int:
        """Warps of the block."""
        return -(-self.threads // WARP)

    def reach(self, addresses: Addresses, width: int, times: float) -> None:
        """Accesses of global memory."""
        self.sectors += times * sectors(in_warps(addresses), width)
        self.accesses += times * self.warps

    def load(self, addresses: Addresses, width: int, times: float) -> None:
        """Loads from shared memory."""
        self.shared_loads += times * shared_cycles(in_warps(addresses), width)
        self.accesses += times * self.warps

    def store(self, addresses: Addresses, width: int, times: float) -> None:
        """Stores to shared memory."""
        self.shared_stores += times * shared_cycles(in_warps(addresses), width)
        self.accesses += times * self.warps

    def add_up(self, accumulators: int, split_k: int) -> None:
        """Each of `split_k` blocks stores its sums and arrives; the last one loads all of them."""
        vectors = accumulators * 4 // _SUM_BYTES
        self.reach(self.thread * _SUM_BYTES, _SUM_BYTES, 2 * vectors)
        self.sectors += self.warps
        self.accesses += self.warps


def comes_from_outside(anchor: MatmulOp, *operands: SSAValue) -> bool:
    """Whether no operand is computed in the anchor's group, so that it lies in memory row by row, and nothing follows
    the product."""
    group = anchor.parent_op()
    alone = not isinstance(group, FusedOp) or len(list(group.body.block.ops)) == 2
    return alone and not any(operand.owner.parent_op() is group for operand in operands if group is not None)


def bytes_of(anchor: MatmulOp, tiles: int, split_k: int, sums: int) -> int:
    """Bytes of a product's tensors and, where each of its tiles has several blocks, of their sums and the counters."""
    found = sum(map(_tensor_bytes, (anchor.a, anchor.b, anchor.result)))
    return found + (tiles * (split_k * sums + 1) * 4 if split_k > 1 else 0)


def _tensor_bytes(value: SSAValue) -> int:
    type = value.type
    assert isinstance(type, TensorType)
    return byte_width(type.get_element_type()) * prod(type.get_shape())


__all__ = ["Traffic", "bytes_of", "comes_from_outside"]
