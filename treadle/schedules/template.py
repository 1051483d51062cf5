"""What a schedule template is: an anchor, declared knobs, limits, and a builder of kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from math import prod
from typing import ClassVar, TypeAlias

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import ComputeOp, MatmulOp, ReduceOp, WholeOp
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.errors import TreadleError
from treadle.extensions import note_source
from treadle.schedules.gpu_work import GpuWork
from treadle.schedules.space import Choices, Knob, Space
from treadle.target import Target

Anchor: TypeAlias = ComputeOp | WholeOp


class Template(ABC):
    """Schedules one kind of anchor on one kind of target."""

    name: ClassVar[str]
    kind: ClassVar[str]
    """The kind of target: cpu or cuda."""
    knobs: ClassVar[tuple[Knob, ...]]
    precision: ClassVar[str] = "f32"
    """How exact products of f32 are; a template of a lower precision is a default only where that is asked for."""
    takes_all: ClassVar[bool] = False
    """Whether it schedules every definition, so that fitting says nothing about being a good choice."""

    copies_ahead: ClassVar[bool] = False
    """Whether operands come by asynchronous copies, which a prologue that computes would make wait."""

    def __init_subclass__(cls) -> None:
        """Has caches know the sources of a template that is none of Treadle's."""
        super().__init_subclass__()
        note_source(cls)

    @abstractmethod
    def fits(self, anchor: Anchor) -> bool:
        """Whether the template can schedule this anchor."""

    @abstractmethod
    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        """The choice made without a search."""

    def has_default(self, anchor: Anchor, target: Target) -> bool:
        """Whether the target has room for a default of an anchor that fits; if not, another template is tried."""
        del anchor, target
        return True

    @abstractmethod
    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        """The scheduled kernel of the anchor alone, taking the anchor's operands."""

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        """TreadleError naming the limit and the margin by which a combination of choices exceeds it.

        A template without limits of its own inherits this one, which accepts everything.
        """
        del anchor, choices, target

    def evaluations(self, anchor: Operation, operand: SSAValue, target: Target) -> Fraction | None:
        """How often the kernel of the default choices computes an element of an operand, by which prologues are judged.

        None, unless overridden, where that is as often as the definition reads it.
        """
        del anchor, operand, target
        return None

    def work(self, anchor: Anchor, choices: Choices, target: Target) -> GpuWork | None:
        """What `count_gpu_work` finds in the kernel of some choices, without the kernel; None, unless overridden, and
        where only the kernel says."""
        del anchor, choices, target
        return None

    def decided(self, anchor: Anchor, target: Target) -> Choices:
        """The knobs that the anchor itself decides, with the only value worth choosing; none by default."""
        del anchor, target
        return {}

    def dependent(self, anchor: Anchor, target: Target) -> Mapping[str, Callable[[Choices], Choice]]:
        """The knobs for which the other knobs' choices leave one value worth choosing, and how it follows from them;
        none by default."""
        del anchor, target
        return {}

    def canonical(self, anchor: Anchor, choices: Choices, target: Target) -> Choices:
        """The combination that stands for all which give the same kernel, such as blocks longer than a small tensor.

        A search tries only those that are their own; unless overridden, all are.
        """
        del anchor, target
        return choices

    def of_part(self, anchor: Anchor, choices: Choices, target: Target) -> Choices:
        """The choices for an anchor of which often only a part is needed, from those of a smaller one; the same unless
        overridden."""
        del anchor, target
        return choices

    def candidates(self, anchor: Anchor, target: Target) -> Iterable[Choices]:
        """The combinations of the space that are their own canonical ones: all different kernels, each once."""
        return (c for c in self.space(anchor, target) if self.canonical(anchor, c, target) == c)

    def values(self, anchor: Anchor, target: Target) -> Mapping[str, tuple[Choice, ...]]:
        """The values worth trying of knobs that have more of them; none by default."""
        del anchor, target
        return {}

    def space(self, anchor: Anchor, target: Target) -> Space:
        """Every choice for an anchor on a target that is worth trying, and within the limits."""
        pinned = self._whole(anchor, target).pinned(**self.decided(anchor, target))
        return pinned.following(self.dependent(anchor, target))

    def _whole(self, anchor: Anchor, target: Target) -> Space:
        return Space(self.name, self.knobs, lambda choices: self.limits(anchor, choices, target))

    def check(self, anchor: Anchor, choices: Choices, target: Target, where: str) -> None:
        """TreadleError unless the choices are in the space and within the target's limits."""
        if self.kind != ("cuda" if target.is_cuda else "cpu"):
            raise TreadleError(f"template {self.name!r} is for {self.kind} targets, not {target.name}", where)
        if not has_elements(anchor):
            raise TreadleError(f"template {self.name!r} schedules no empty tensor", where, "extents from 1 upwards")
        if not self.fits(anchor):
            raise TreadleError(f"template {self.name!r} does not schedule {anchor.name}", where)
        error = self._whole(anchor, target).exclusion(choices)
        if error is not None:
            error.where = where
            raise error


def has_elements(anchor: Anchor) -> bool:
    """Whether neither the result, nor what is read, nor a folded range is empty: no template knows an extent of 0."""
    tensors = [value.type for op in anchor.walk() for value in (*op.operands, *op.results)]
    shapes = [type.get_shape() for type in tensors if isinstance(type, TensorType)]
    folded = [op.shape for op in anchor.walk() if isinstance(op, ReduceOp)]
    return not any(0 in shape for shape in (*shapes, *folded))


def shared_by_batch(anchor: MatmulOp, operand: SSAValue) -> Fraction:
    """How many products of a batch read the same operand, on average."""
    assert isinstance(operand.type, TensorType)
    return Fraction(prod(anchor.shape[:-2]), prod(operand.type.get_shape()[:-2]) or 1)


def number(choices: Choices, name: str) -> int:
    """The value of a numeric knob."""
    value = choices[name]
    assert isinstance(value, int)
    return value


def least_power(value: int, extent: int) -> int:
    """`value`, or the smallest power of two that covers an extent, where it is larger than that."""
    return min(value, 1 << max(extent - 1, 0).bit_length())


__all__ = ["Anchor", "Choices", "Knob", "Space", "Template", "has_elements", "least_power", "number", "shared_by_batch"]
