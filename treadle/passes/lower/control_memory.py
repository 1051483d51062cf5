"""Buffers of loops and branches: a loop's second state, its counter, and the arenas of what they call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from xdsl.dialects.builtin import MemRefType, i1, i8, i64
from xdsl.ir import Attribute, Operation, SSAValue

from treadle.dialects import host
from treadle.dialects.graph.control import ControlOp, LoopOp, called
from treadle.dialects.host import BufferOp
from treadle.dialects.loop import memref_of
from treadle.passes.lower.arena import LiveRange
from treadle.passes.lower.joined_values import nbytes


class ControlMemory:
    """The buffers that loops and branches have beside their operands and results, each while its operation runs.

    arenas: the bytes of the arena of each function that is called
    """

    def __init__(self, steps: Sequence[Operation], arenas: Mapping[str, int]):
        self._types = {step: _own_types(step, arenas) for step in steps if isinstance(step, ControlOp)}
        self._numbers = {step: number for number, step in enumerate(steps)}

    @property
    def live_ranges(self) -> list[LiveRange]:
        """Of each buffer."""
        return [
            LiveRange(nbytes(type), self._numbers[step], self._numbers[step])
            for step, types in self._types.items()
            for type in types
        ]

    def buffers(self, offsets: Iterator[int]) -> dict[Operation, list[BufferOp]]:
        """Each operation's buffers; `offsets` are those of the live ranges."""
        return {step: [BufferOp("arena", type, next(offsets)) for type in types] for step, types in self._types.items()}


def planned_control(op: ControlOp, buffers: Mapping[SSAValue, BufferOp], own: Sequence[BufferOp]) -> Operation:
    """The operation on buffers; `own` are those that `ControlMemory` gave it."""

    def of(values: Sequence[SSAValue]) -> list[SSAValue]:
        return [buffers[value].buffer for value in values]

    scratch: list[SSAValue] = [each.buffer for each in own]
    names = [function.sym_name.data for function in called(op)]
    if not isinstance(op, LoopOp):
        (arena,) = scratch
        planned: Operation = host.IfOp(
            buffers[op.condition].buffer, (names[0], names[1]), of(op.read), of(op.outputs), arena
        )
    else:
        count = len(op.carried)
        counter, arena, *again = scratch[count:]
        states = of(op.carried), of(op.outputs[:count]), scratch[:count]
        times = None if op.times is None else op.times.value.data
        own_values = (counter, again, arena)
        planned = host.LoopOp(names[0], times, of(op.tests), states, of(op.read), of(op.rows), own_values)
    planned.location = op.location
    return planned


def _own_types(op: ControlOp, arenas: Mapping[str, int]) -> list[MemRefType[Attribute]]:
    """A loop's spare state, its counter, its arena and its condition; a branch's arena."""
    arena = max(1, *(arenas[function.sym_name.data] for function in called(op)))
    if not isinstance(op, LoopOp):
        return [MemRefType(i8, [arena])]
    spare = [memref_of(value.type) for value in op.carried]  # pyright: ignore[reportArgumentType]
    again = [MemRefType(i1, [])] if op.has_condition else []
    return [*spare, MemRefType(i64, []), MemRefType(i8, [arena]), *again]


__all__ = ["ControlMemory", "planned_control"]
