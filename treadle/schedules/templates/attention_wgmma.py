"""Attention of warpgroups, on Hopper's tensor cores."""

from __future__ import annotations

from math import ceil, prod
from typing import ClassVar

from xdsl.dialects.builtin import DYNAMIC_INDEX, BFloat16Type, Float16Type, TensorType

from treadle.dialects.graph import AttentionOp
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.schedules.boxes import contiguous_axis
from treadle.schedules.template import Anchor, Choices, Knob, Template, check_limits
from treadle.schedules.templates.attention_wgmma_kernel import (
    IN_TURN,
    OVERLAPPED,
    PLAIN,
    AttentionWgmmaKernel,
    AttentionWgmmaTile,
)
from treadle.schedules.warpgroups import REGISTERS, SPAN
from treadle.target import Target

_LARGEST_SIZE = 256
_ELEMENT_BYTES = 2


class AttentionWgmma(Template):
    name: ClassVar[str] = "attention_wgmma"
    kind: ClassVar[str] = "cuda"
    copies_ahead: ClassVar[bool] = True
    least_capability: ClassVar[int] = 90
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("columns", (64, 96, 128, 160, 176, 192), "keys and values of a tile in shared memory"),
        Knob("consumers", (1, 2, 3), "warpgroups that multiply, 64 rows each"),
        Knob("stages", (2, 3), "tiles of keys and of values in shared memory"),
        Knob("order", (PLAIN, OVERLAPPED, IN_TURN), "0: one product after another"),
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
        return all(contiguous_axis(anchor, operand, SPAN // _ELEMENT_BYTES) == -1 for operand in operands)

    def has_default(self, anchor: Anchor, target: Target) -> bool:
        return False

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        assert isinstance(anchor, AttentionOp)
        largest = max(_sizes(anchor))
        if largest <= 64:
            return {"columns": 128, "consumers": 3, "stages": 3, "order": IN_TURN}
        return {"columns": 128 if largest <= 128 else 64, "consumers": 2, "stages": 2, "order": IN_TURN}

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        assert isinstance(anchor, AttentionOp)
        tile = AttentionWgmmaTile.of(choices, *_sizes(anchor))
        available = REGISTERS[tile.consumers]
        registers = target.registers_per_thread if available is None else available[1]
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


def _group(anchor: AttentionOp, target: Target) -> int:
    """Heads whose tiles follow one another."""
    heads = prod(anchor.shape[:-2])
    return heads
