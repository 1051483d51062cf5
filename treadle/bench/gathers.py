"""Which buffers a kernel reads at places that other data says, as gathers do: how much of them, a call decides."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects import func
from xdsl.dialects.builtin import IntegerType, MemRefType, VectorType
from xdsl.ir import Attribute, Operation, SSAValue


def gathered_buffers(kernel: func.FuncOp) -> list[int]:
    """The numbers of the arguments that are read at indices which depend on integers of another one. A buffer of one
    integer, as that of an extent, gives no places."""
    tainted, found = set[SSAValue](), dict[int, None]()
    numbers = _numbers(kernel)
    while True:
        before = len(tainted)
        for op in kernel.walk():
            buffer = _buffer(op)
            at = [operand for operand in op.operands if operand is not buffer and operand in tainted]
            if buffer is not None and op.results and at and buffer in numbers:
                found[numbers[buffer]] = None
            if at or (buffer is not None and op.results and _gives_places(buffer)):
                tainted.update(op.results)
                tainted.update(arg for region in op.regions for block in region.blocks for arg in block.args)
        if len(tainted) == before:
            return list(found)


def stored_elements(kernel: func.FuncOp) -> int:
    """Elements of the arguments that the kernel writes."""
    args = kernel.body.block.args
    touched = [_buffer(op) for op in kernel.walk() if not op.results]
    return sum(prod(_shape(arg.type)) for arg in args if any(buffer is arg for buffer in touched))


def _numbers(kernel: func.FuncOp) -> dict[SSAValue, int]:
    return {arg: n for n, arg in enumerate(kernel.body.block.args)}


def _buffer(op: Operation) -> SSAValue | None:
    """The buffer that an operation reads or writes elements of."""
    return next((operand for operand in op.operands if isinstance(operand.type, MemRefType)), None)


def _gives_places(buffer: SSAValue) -> bool:
    """Whether it holds integers that may be indices."""
    assert isinstance(buffer.type, MemRefType)
    element = buffer.type.element_type
    element = element.element_type if isinstance(element, VectorType) else element
    return isinstance(element, IntegerType) and element.width.data >= _LEAST_WIDTH and prod(_shape(buffer.type)) > 1


_LEAST_WIDTH = 32
"""Bits of an index; bytes are pixels and weights."""


def _shape(type: Attribute) -> Sequence[int]:
    assert isinstance(type, MemRefType)
    return type.get_shape()


__all__ = ["gathered_buffers", "stored_elements"]
