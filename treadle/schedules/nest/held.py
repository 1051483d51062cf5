"""A stage's buffer while the kernel is written: where in it an element is that was read at some position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from treadle.dialects.graph.definition import Scalar
from treadle.schedules.index_value import Index
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.nest.box import Box
from treadle.schedules.nest.layout import Layout


@dataclass(frozen=True)
class Held:
    """half: which of several buffers is read; None where there is one."""

    layout: Layout
    buffer: SSAValue
    half: Index | None = None

    def load(self, b: KernelBuilder, at: Mapping[int, Index]) -> Scalar:
        """The element that the read gives where the levels have done so many iterations."""
        box = self.layout.box
        return b.load(self.buffer, self._address(b, at, [b.index(low) for low in box.low]))

    def load_for(self, b: KernelBuilder, at: Mapping[int, Index], box: Box, place: Sequence[Index]) -> Scalar:
        """The element at a place of an inner stage's box; `at` has those levels, too, that stand apart in it."""
        own = self.layout.box
        inner = {n for n in box.steps if n not in box.apart}
        scales = [there // here for there, here in zip(box.scale, own.scale, strict=True)]
        first = [
            (index - low) * scale + here
            for index, low, scale, here in zip(place, box.low, scales, own.low, strict=True)
        ]
        return b.load(self.buffer, self._address(b, {n: i for n, i in at.items() if n not in inner}, first))

    def address(self, b: KernelBuilder, apart: Mapping[int, Index], place: Sequence[Index]) -> list[Index]:
        """The buffer's indices of a place of the box."""
        halves = [] if self.half is None else [self.half]
        outer = [apart.get(n, b.index(0)) for n in self.layout.box.apart]
        return [*halves, *outer, *(place[dim] for dim in self.layout.order)]

    def _address(self, b: KernelBuilder, at: Mapping[int, Index], first: Sequence[Index]) -> list[Index]:
        box, place = self.layout.box, list(first)
        for n in box.steps:
            for dim, step in enumerate(box.place_steps(n)):
                if step and n in at:
                    place[dim] = place[dim] + at[n] * step
        return self.address(b, at, place)


__all__ = ["Held"]
