"""Buffers of a launch: what a kernel allocates for all of its blocks becomes an argument."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Operation
from xdsl.rewriter import Rewriter

from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.host import BufferOp
from treadle.dialects.loop import AllocOp, KernelOp, Space, SpaceAttr, type_of
from treadle.passes.lower.arena import LiveRange

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


__all__ = ["LaunchMemory"]
