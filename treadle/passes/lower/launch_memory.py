"""Memory of launches: offsets in an arena, and what a kernel allocates for all of its blocks as an argument."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Operation
from xdsl.rewriter import Rewriter

from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.host import BufferOp
from treadle.dialects.loop import AllocOp, KernelOp, Space, SpaceAttr, type_of

# The memory planner: byte offsets of temporary buffers in one arena from their live ranges, as plain values.


@dataclass(frozen=True)
class LiveRange:
    """A buffer of `size` bytes that holds a value from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int

    def meets(self, other: LiveRange) -> bool:
        """Whether both hold a value in some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Arena:
    """The byte offset of each live range, in the order given, and the number of bytes that hold them all."""

    offsets: tuple[int, ...]
    nbytes: int


def plan_arena(ranges: Sequence[LiveRange], alignment: int = 64) -> Arena:
    """Offsets at multiples of `alignment` such that no two ranges that meet share a byte.

    The largest buffer is placed first; each goes into the smallest gap that holds it between the buffers
    already placed that it meets, else above them. Ties are broken by first step, then position: equal input,
    equal plan. The arena is never larger than the sum of the sizes, each rounded up to the alignment.
    Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020), "greedy by
    size".
    """
    sizes = [_round_up(r.size, alignment) for r in ranges]
    steps = np.array([(r.first, r.last) for r in ranges], np.int64).reshape(-1, 2)
    order = sorted(range(len(ranges)), key=lambda n: (-sizes[n], ranges[n].first, n))
    first, last = steps[order].T
    start, end = np.zeros((2, len(ranges)), np.int64)
    for n, position in enumerate(order):
        # Vectorised by NumPy: each of thousands of buffers is compared with all that have an offset.
        meets = (first[:n] <= last[n]) & (last[:n] >= first[n])
        start[n] = _best_gap(start[:n][meets], end[:n][meets], sizes[position])
        end[n] = start[n] + sizes[position]
    offsets = dict(zip(order, start.tolist(), strict=True))
    return Arena(tuple(offsets[n] for n in range(len(ranges))), int(end.max(initial=0)))


def _best_gap(starts: NDArray[np.int64], ends: NDArray[np.int64], size: int) -> int:
    """Where the smallest gap of at least `size` bytes between what is taken begins, of two the first."""
    order = np.argsort(starts)
    below = np.maximum.accumulate(np.concatenate([[0], ends[order]]))
    gaps = starts[order] - below[:-1]
    fitting = np.flatnonzero(gaps >= size)
    return int(below[fitting[np.argmin(gaps[fitting])]] if fitting.size else below[-1])


def _round_up(size: int, alignment: int) -> int:
    """The next multiple of `alignment`; an empty buffer still gets an address of its own."""
    return max(1, -(-size // alignment)) * alignment


# Buffers of a launch: what a kernel allocates for all of its blocks becomes an argument.

_ZEROED = SpaceAttr(Space.ZEROED)


class LaunchMemory:
    """The `device` and `zeroed` buffers of some kernels, each launched once, in order.

    A `device` buffer lives in the arena during its launch. All `zeroed` buffers share the beginning of the zeroed
    memory: launches run one after another, and each leaves it zero.
    """

    def __init__(self, steps: Sequence[Operation]):
        """Makes the kernels' buffers of a launch arguments, between those of their operands and of their result.
        Steps that are no kernels have none."""
        self._arguments = [_as_arguments(step) if isinstance(step, KernelOp) else [] for step in steps]

    @property
    def live_ranges(self) -> list[LiveRange]:
        """Of each buffer that lives in the arena."""
        return [
            LiveRange(_nbytes(type), step, step)
            for step, arguments in enumerate(self._arguments)
            for _, type in arguments
            if type.memory_space != _ZEROED
        ]

    def buffers(self, offsets: Iterable[int]) -> list[list[BufferOp]]:
        """Each launch's buffers, in the order of the kernel's arguments; `offsets` are those of the live ranges."""
        remaining = iter(offsets)
        zeroed: dict[MemRefType, BufferOp] = {}
        launches: list[list[BufferOp]] = []
        for arguments in self._arguments:
            launches.append([])
            for name, type in arguments:
                if type.memory_space != _ZEROED:
                    launches[-1].append(_buffer("arena", name, type, next(remaining)))
                    continue
                if type not in zeroed:
                    zeroed[type] = _buffer("zeroed", name, type, 0)
                launches[-1].append(zeroed[type])
        return launches


def _as_arguments(kernel: KernelOp) -> list[tuple[str | None, MemRefType]]:
    """Replaces a kernel's buffers of the launch by arguments; their names and types."""
    found: list[tuple[str | None, MemRefType]] = []
    for op in list(kernel.body.walk()):
        if not isinstance(op, AllocOp) or not _is_of_launch(type_of(op.buffer)):
            continue
        type = type_of(op.buffer)
        argument = kernel.body.block.insert_arg(type, len(kernel.inputs) + len(found))
        argument.name_hint = op.buffer.name_hint
        found.append((op.buffer.name_hint, type))
        Rewriter.replace_op(op, [], [argument])
    return found


def _is_of_launch(type: MemRefType) -> bool:
    return isinstance(type.memory_space, SpaceAttr) and type.memory_space.data.is_global


def _buffer(kind: str, name: str | None, type: MemRefType, position: int) -> BufferOp:
    op = BufferOp(kind, MemRefType(type.get_element_type(), type.get_shape()), position)
    op.buffer.name_hint = name
    return op


def _nbytes(type: MemRefType) -> int:
    return prod(type.get_shape()) * byte_width(type.get_element_type())
