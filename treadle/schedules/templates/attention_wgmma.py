"""Attention of warpgroups, on Hopper's tensor cores."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod
from typing import ClassVar

from xdsl.dialects.builtin import DYNAMIC_INDEX, BFloat16Type, Float16Type, TensorType

from treadle.dialects.graph import AttentionOp
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.schedules.boxes import contiguous_axis
from treadle.schedules.template import Anchor, Choices, Knob, Template, check_limits
from treadle.schedules.templates.attention_wgmma_kernel import AttentionWgmmaKernel
from treadle.schedules.templates.attention_wgmma_tile import (
    ELEMENT_BYTES,
    IN_TURN,
    OVERLAPPED,
    PLAIN,
    AttentionWgmmaTile,
)
from treadle.schedules.warpgroups import REGISTERS, SLAB, SPAN
from treadle.target import Target

_LARGEST_SIZE = 192
"""Elements of a head: with more, the assembler finds no place for the result."""
_ALONE = 220
"""Registers of a thread of one consumer, which keeps those that it begins with: with more the assembler spills."""
_MULTIPROCESSORS = 132
_RATE: Mapping[int, float] = {64: 422e12 / _MULTIPROCESSORS, 128: 623e12 / _MULTIPROCESSORS}
_RATE_OF_MMA: Mapping[int, float] = {64: 287e12 / _MULTIPROCESSORS, 128: 309e12 / _MULTIPROCESSORS}
"""Operations a second of a multiprocessor of an H100, by the size of heads: of this kernel at 4 x 16 x 2048 and 16 x
4096, and of `attention_mma` at 16 x 2048 and 16 x 4096."""
_LATER = 2.6e-6
"""Seconds by which this kernel ends after `attention_mma` where neither has much to do: 5.8 and 3.2 us on an H100 for
12 heads of 128 queries and keys of 64 elements."""


class AttentionWgmma(Template):
    """Attention on Hopper's tensor cores. A block has a tile of 64 queries for each of its `consumers`, warpgroups that
    multiply; one thread of another warpgroup, the producer, copies boxes of queries, and of `columns` keys and values,
    `stages` of these, to swizzled shared memory. A consumer's scores are products of tiles in shared memory; they
    become weights in its registers, which are, as they lie, the operand A of the products with the values. The softmax
    is that of `attention_mma`.

    In `order` 1 the products of a tile's scores are started along with those of the weights of the tile before, which
    go on under the softmax; in 2 the consumers start theirs in turn, at named barriers, so that one multiplies while
    another exponentiates. In 0 each is waited for.

    Blocks stay and take one tile after another: under causality those with many keys first, and every second round
    backwards, so that all have about the same number of keys. Tiles of keys are taken from the last on; masks of
    causality and of overhang are applied in tiles that need one, which come first.

    Heads of up to 192 elements are covered whose lines begin at multiples of 16 bytes, of any number of queries and
    keys: copies beyond a tensor write 0, keys beyond the end weigh nothing.

    Source: Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision", NeurIPS
    2024, algorithms 1 and 2, for roles, order and turns; Dao, "FlashAttention-2", ICLR 2024, algorithm 1.
    """

    name: ClassVar[str] = "attention_wgmma"
    kind: ClassVar[str] = "cuda"
    copies_ahead: ClassVar[bool] = True
    least_capability: ClassVar[int] = 90
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("columns", (64, 96, 128, 160, 176, 192), "keys and values of a tile in shared memory"),
        Knob("consumers", (1, 2, 3), "warpgroups that multiply, 64 rows each"),
        Knob("stages", (2, 3), "tiles of keys and of values in shared memory"),
        Knob(
            "order",
            (PLAIN, OVERLAPPED, IN_TURN),
            "0: products one after another, 1: under the softmax, 2: and consumers in turn",
        ),
    )

    def runs_on(self, target: Target) -> bool:
        return super().runs_on(target) and target.has_warpgroups

    def fits(self, anchor: Anchor) -> bool:
        if not isinstance(anchor, AttentionOp) or DYNAMIC_INDEX in (*anchor.scores_shape, *anchor.shape):
            return False
        if not isinstance(anchor.type.get_element_type(), Float16Type | BFloat16Type):
            return False
        size, width = _sizes(anchor)
        if max(size, width) > _LARGEST_SIZE or not prod(anchor.scores_shape):
            return False
        operands = (anchor.q, anchor.k, anchor.v)
        return all(contiguous_axis(anchor, operand, SPAN // ELEMENT_BYTES) == -1 for operand in operands)

    def has_default(self, anchor: Anchor, target: Target) -> bool:
        """Whether there is enough to do to be faster than `attention_mma`. Loads of masks have not been measured."""
        if not isinstance(anchor, AttentionOp) or anchor.mask is not None:
            return False
        size = _measured_size(anchor)
        tile = AttentionWgmmaTile.of(self.default(anchor, target), *_sizes(anchor))
        flops = 2 * sum(_sizes(anchor)) * anchor.scores_shape[-1]
        heads, m = prod(anchor.shape[:-2]), anchor.shape[-2]
        rows = ceil(heads * ceil(m / tile.rows) / target.multiprocessors) * tile.rows
        seconds = _LATER + flops * rows / _RATE[size]
        return seconds <= flops * heads * m / target.multiprocessors / _RATE_OF_MMA[size]

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        """The fastest that was measured on an H100 of each size of heads, of no more rows than there are."""
        assert isinstance(anchor, AttentionOp)
        largest, useful = max(_sizes(anchor)), ceil(anchor.shape[-2] / SLAB)
        if largest <= 64:
            return {"columns": 128, "consumers": min(3, useful), "stages": 3, "order": IN_TURN}
        return {
            "columns": 128 if largest <= 128 else 64,
            "consumers": min(2, useful),
            "stages": 2,
            "order": IN_TURN,
        }

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        assert isinstance(anchor, AttentionOp)
        tile = AttentionWgmmaTile.of(choices, *_sizes(anchor))
        available = REGISTERS[tile.consumers]
        registers = _ALONE if available is None else available[1]
        used = (
            ("bytes of shared memory", tile.shared_bytes, target.shared_per_block),
            ("registers a thread", tile.registers, registers),
        )
        check_limits(f"{self.name} with {tile.columns} keys for {tile.consumers} consumers", used, target)

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, AttentionOp)
        tile = AttentionWgmmaTile.of(choices, *_sizes(anchor))
        return AttentionWgmmaKernel(anchor, tile, target.multiprocessors, _group(anchor, target)).build(name)


def _sizes(anchor: AttentionOp) -> tuple[int, int]:
    """The sizes of queries and of values."""
    assert isinstance(anchor.q.type, TensorType)
    return anchor.q.type.get_shape()[-1], anchor.shape[-1]


def _measured_size(anchor: AttentionOp) -> int:
    """Of the sizes of heads that were measured, that which an anchor's are most like."""
    return 64 if max(_sizes(anchor)) <= 64 else 128


def _group(anchor: AttentionOp, target: Target) -> int:
    """Heads whose tiles follow one another: under causality all, so that the long ones come first; else as many as half
    of the L2 cache holds the keys and values of."""
    heads, shared = prod(anchor.shape[:-2]), anchor.group_size
    if anchor.causal.value.data:
        return heads
    each = anchor.scores_shape[-1] * sum(_sizes(anchor)) * ELEMENT_BYTES
    fitting = (d for d in range(1, heads + 1) if heads % d == 0 and 2 * ceil(d / shared) * each <= target.l2_bytes)
    return max(fitting, default=1)
