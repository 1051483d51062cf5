"""Results of kernels that are parts of another one's, and so need no copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import cast

from xdsl.dialects.builtin import MemRefType, TensorType
from xdsl.ir import Attribute, SSAValue

from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.loop import DispatchOp, KernelOp


@dataclass
class JoinedValues:
    """The values that are parts, each with the whole and its byte in that, which may be a part itself."""

    parts: dict[SSAValue, tuple[SSAValue, int]] = field(default_factory=dict[SSAValue, tuple[SSAValue, int]])

    @property
    def results(self) -> list[SSAValue]:
        """The values that are wholes, which no kernel has to write."""
        return list(dict.fromkeys(whole for whole, _ in self.parts.values()))

    def place(self, value: SSAValue) -> tuple[SSAValue, int]:
        """The whole that a value lies in, which is no part, and at which byte: itself, for most."""
        offset = 0
        while value in self.parts:
            value, more = self.parts[value]
            offset += more
        return value, offset


def joined_values(steps: Sequence[KernelOp | DispatchOp], returned: Sequence[SSAValue], alignment: int) -> JoinedValues:
    """The parts of what kernels join: only results of other kernels, which are not `returned`, at multiples of
    `alignment`, and each part of one whole only."""
    joined = JoinedValues()
    own = {value for step in steps for value in step.outputs}.difference(returned)
    for step in steps:
        offsets = step.offsets if isinstance(step, KernelOp) and step.demands is None else None
        if not isinstance(step, KernelOp) or offsets is None:
            continue
        whole = step.outputs[0]
        bytes_each = byte_width(whole.type.get_element_type())
        parts = {value: (whole, offset * bytes_each) for value, offset in zip(step.inputs, offsets, strict=True)}
        is_free = {whole, *parts} <= own and len(parts) == len(offsets) and joined.parts.keys().isdisjoint(parts)
        if is_free and all(byte % alignment == 0 for _, byte in parts.values()):
            joined.parts.update(parts)
    return joined


def nbytes(type: Attribute) -> int:
    """The bytes of a tensor, or of a buffer."""
    tensor = cast("TensorType[Attribute] | MemRefType[Attribute]", type)
    return prod(tensor.get_shape()) * byte_width(tensor.get_element_type())


__all__ = ["JoinedValues", "joined_values", "nbytes"]
