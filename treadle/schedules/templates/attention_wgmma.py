"""Attention of warpgroups, on Hopper's tensor cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import ClassVar

from xdsl.dialects.builtin import DYNAMIC_INDEX, BFloat16Type, Float16Type

from treadle.dialects.graph import AttentionOp
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.schedules.boxes import contiguous_axis
from treadle.schedules.template import Anchor, Choices, Knob, Template, check_limits
from treadle.schedules.templates.attention_tile import sizes_of
from treadle.schedules.templates.attention_wgmma_kernel import AttentionWgmmaKernel
from treadle.schedules.templates.attention_wgmma_tile import (
    ELEMENT_BYTES,
    IN_TURN,
    OVERLAPPED,
    PLAIN,
    AttentionWgmmaTile,
)
from treadle.schedules.warpgroups import REGISTERS, SLAB, SPAN, without_warpgroups
from treadle.target import Target

_LARGEST_SIZE = 192
"""Elements of a head: with more, the assembler finds no place for the result."""
_ALONE = 220
"""Registers of a thread of one consumer, which keeps those that it begins with: with more the assembler spills."""
_MULTIPROCESSORS = 132
_RATE_OF_MMA: Mapping[int, float] = {64: 287e12 / _MULTIPROCESSORS, 128: 309e12 / _MULTIPROCESSORS}
"""Operations a second of a multiprocessor of an H100, by the size of heads: of `attention_mma` at 16 x 2048 and 16 x
4096."""


@dataclass(frozen=True)
class _Measured:
    """A schedule that was measured on an H100: operations a second while all its multiprocessors have tiles."""

    columns: int
    consumers: int
    stages: int
    rate: float


_MEASURED: Mapping[int, Sequence[_Measured]] = {
    64: (_Measured(128, 3, 3, 488e12), _Measured(192, 2, 2, 433e12)),
    128: (_Measured(128, 2, 2, 642e12),),
}
"""By the size of heads, at 4 x 16 x 2048 and 16 x 4096 queries and keys: 421, 407 and 623 TFLOP/s, which are these
rates where 704, 1024 and 512 tiles take 6, 8 and 4 turns, and 11 tiles of 192 keys have 2048."""
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
        return isinstance(anchor, AttentionOp) and _refusal(anchor) is None

    def obstacle(self, anchor: Anchor, target: Target) -> str | None:
        if not isinstance(anchor, AttentionOp) or target.capability != self.least_capability:
            return None
        if not self.runs_on(target):
            return without_warpgroups(target)
        why = _refusal(anchor)
        if why is None and anchor.mask is not None:
            return "with a mask it has not been measured"
        if why is None and not self.has_default(anchor, target):
            return "attention_mma is predicted to end earlier"
        return why

    def has_default(self, anchor: Anchor, target: Target) -> bool:
        """Whether there is enough to do to be faster than `attention_mma`. Loads of masks have not been measured."""
        if not isinstance(anchor, AttentionOp) or anchor.mask is not None:
            return False
        flops = 2 * sum(sizes_of(anchor)) * prod(anchor.scores_shape) / target.multiprocessors
        seconds = _LATER + _seconds(anchor, _fastest(anchor, target), target)
        return seconds <= flops / _RATE_OF_MMA[_measured_size(anchor)]

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        """Of those that were measured on an H100 for the size of heads the one that ends first, of no more rows than
        there are."""
        assert isinstance(anchor, AttentionOp)
        found = _fastest(anchor, target)
        columns = found.columns if max(sizes_of(anchor)) <= 128 else 64
        return {
            "columns": columns,
            "consumers": _consumers(anchor, found),
            "stages": found.stages,
            "order": IN_TURN,
        }

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        assert isinstance(anchor, AttentionOp)
        tile = AttentionWgmmaTile.of(choices, *sizes_of(anchor))
        available = REGISTERS[tile.consumers]
        registers = _ALONE if available is None else available[1]
        used = (
            ("bytes of shared memory", tile.shared_bytes, target.shared_per_block),
            ("registers a thread", tile.registers, registers),
        )
        check_limits(f"{self.name} with {tile.columns} keys for {tile.consumers} consumers", used, target)

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, AttentionOp)
        tile = AttentionWgmmaTile.of(choices, *sizes_of(anchor))
        return AttentionWgmmaKernel(anchor, tile, target.multiprocessors, _group(anchor, target)).build(name)


def _refusal(anchor: AttentionOp) -> str | None:
    """Why copies of boxes and products of warpgroups cannot compute attention; None if they can."""
    if DYNAMIC_INDEX in (*anchor.scores_shape, *anchor.shape):
        return "its extents change"
    type = anchor.type.get_element_type()
    if not isinstance(type, Float16Type | BFloat16Type):
        return f"its elements are {type}: f16 and bf16 are multiplied so"
    if max(sizes_of(anchor)) > _LARGEST_SIZE:
        return f"heads of more than {_LARGEST_SIZE} elements"
    if not prod(anchor.scores_shape):
        return "it has no scores"
    for name, operand in zip(("queries", "keys", "values"), (anchor.q, anchor.k, anchor.v), strict=True):
        if contiguous_axis(anchor, operand, SPAN // ELEMENT_BYTES) != -1:
            return f"{name} are computed by the group, or their lines begin at no multiples of 16 bytes"
    return None


def _consumers(anchor: AttentionOp, schedule: _Measured) -> int:
    return min(schedule.consumers, ceil(anchor.shape[-2] / SLAB))


def _seconds(anchor: AttentionOp, schedule: _Measured, target: Target) -> float:
    """How long the multiprocessor computes that has most tiles, causality left aside."""
    heads, m, keys = prod(anchor.shape[:-2]), *anchor.scores_shape[-2:]
    rows, columns = _consumers(anchor, schedule) * SLAB, schedule.columns
    scores = ceil(heads * ceil(m / rows) / target.multiprocessors) * rows * ceil(keys / columns) * columns
    return 2 * sum(sizes_of(anchor)) * scores / (schedule.rate / _MULTIPROCESSORS)


def _fastest(anchor: AttentionOp, target: Target) -> _Measured:
    return min(_MEASURED[_measured_size(anchor)], key=lambda each: _seconds(anchor, each, target))


def _measured_size(anchor: AttentionOp) -> int:
    """Of the sizes of heads that were measured, that which an anchor's are most like."""
    return 64 if max(sizes_of(anchor)) <= 64 else 128


def _group(anchor: AttentionOp, target: Target) -> int:
    """Heads whose tiles follow one another: under causality all, so that the long ones come first; else as many as half
    of the L2 cache holds the keys and values of."""
    heads, shared = prod(anchor.shape[:-2]), anchor.group_size
    if anchor.causal.value.data:
        return heads
    each = anchor.scores_shape[-1] * sum(sizes_of(anchor)) * ELEMENT_BYTES
    fitting = (d for d in range(1, heads + 1) if heads % d == 0 and 2 * ceil(d / shared) * each <= target.l2_bytes)
    return max(fitting, default=1)
