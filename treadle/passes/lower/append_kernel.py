"""The kernel of a `graph.append` in place: new elements are stored where a state lies."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from xdsl.dialects.builtin import ArrayAttr
from xdsl.ir import SSAValue

from treadle.dialects.graph import AppendOp, RequiredAttr
from treadle.dialects.graph.definition import shape_of
from treadle.dialects.loop import KernelOp
from treadle.schedules.kernel_builder import Index, KernelBuilder, kernel_builder

_ROWS = 16
"""Rows of a block of one thread."""


def append_kernel(op: AppendOp, name: str, threads: int) -> KernelOp:
    """A kernel of `threads` threads that stores the new elements into its result, whose other elements it leaves.

    A block stores some rows, which are the elements at one position of the dimension along which they are appended.
    """
    dim, shape = op.dim.value.data, shape_of(op.new)
    outer, rows, inner = shape[:dim], shape[dim], shape[dim + 1 :]
    each = _ROWS if threads == 1 else 1
    tensors = [op.new, op.begin, *([] if op.count is None else [op.count])]
    b = kernel_builder(tensors, op.type)
    buffers = dict(zip(tensors, b.inputs, strict=True))
    begin, count = _first(b, op, buffers), _written(b, op, buffers)
    pieces = ceil(rows / each)
    position = (b.block // pieces).delinearize(outer)
    first = (b.block % pieces) * each
    length = prod(inner)
    used = max(1, min(threads, length))
    with b.loop("row", (count - first).min(each)) as row:
        place = begin + (first + row)
        inside = (place < op.shape[dim]) & (place >= 0)
        with b.when(inside), b.loop("i", length, begin=b.thread if used > 1 else 0, step=used) as i:
            behind = i.delinearize(inner)
            value = b.load(buffers[op.new], [*position, first + row, *behind])
            b.store(value, b.output, [*position, place, *behind])
    kernel = b.kernel(name, tensors, op.type, prod(outer) * pieces, used, f"appends to {op.type}")
    kernel.required_regions = ArrayAttr([RequiredAttr.of([])])
    kernel.location, kernel.outputs[0].name_hint = op.location, op.result.name_hint
    return kernel


def _first(b: KernelBuilder, op: AppendOp, buffers: Mapping[SSAValue, SSAValue]) -> Index:
    return b.index(op.first(b, b.load(buffers[op.begin], [])))


def _written(b: KernelBuilder, op: AppendOp, buffers: Mapping[SSAValue, SSAValue]) -> Index:
    return b.index(op.written(b, None if op.count is None else b.load(buffers[op.count], [])))


__all__ = ["append_kernel"]
