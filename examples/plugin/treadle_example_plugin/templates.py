"""A template: blocks of consecutive elements, for elementwise anchors on CPUs."""

from math import ceil, prod
from typing import ClassVar

from treadle import Target
from treadle.dialects.graph import ComputeOp
from treadle.dialects.loop import KernelOp
from treadle.plugins import TemplatePlugin
from treadle.scheduling import (
    Anchor,
    Choice,
    Choices,
    Knob,
    Template,
    emit_element,
    kernel_builder,
    number,
    repeat,
)


class Flat(Template):
    """A block computes `elements` consecutive elements of the output."""

    name: ClassVar[str] = "example_flat_cpu"
    kind: ClassVar[str] = "cpu"
    knobs: ClassVar[tuple[Knob, ...]] = (Knob("elements", (64, 1024), "elements that a block computes"),)

    def fits(self, anchor: Anchor) -> bool:
        """Everything that is a definition of its elements."""
        return isinstance(anchor, ComputeOp)

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        """Few blocks of many elements."""
        return {"elements": 64 if prod(anchor.shape) < 16384 else 1024}

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        """The kernel of the anchor alone."""
        assert isinstance(anchor, ComputeOp)
        tensors = anchor.tensors()
        b = kernel_builder(tensors, anchor.type)
        total, tile = prod(anchor.shape), number(choices, "elements")
        with b.tasks(("i",), repeat(tile), vector=True) as (i,):
            position = b.block * tile + i
            with b.when(position < total if total % tile else None):
                where = position.delinearize(anchor.shape)
                value = emit_element(b, anchor, where, dict(zip(tensors, b.inputs, strict=True)))
                b.store(value, b.output, where)
        return b.kernel(name, tensors, anchor.type, ceil(total / tile), 1, f"{anchor.type}, flat")


FLAT = TemplatePlugin(Flat, before="generic_cpu")
