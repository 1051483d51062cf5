"""From a definition to scalar code: one element of a `graph.compute` inside a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.ir import Block, Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, ReduceOp
from treadle.dialects.graph import YieldOp as GraphYieldOp
from treadle.dialects.graph.definition import Scalar, widened
from treadle.dialects.graph.dtypes import accumulator
from treadle.dialects.graph.reduction import identity
from treadle.schedules.accumulator import narrowed
from treadle.schedules.index_value import Index, ssa_values
from treadle.schedules.kernel_builder import KernelBuilder


def emit_element(
    b: KernelBuilder, compute: ComputeOp, index: Sequence[Index], buffers: Mapping[SSAValue, SSAValue]
) -> Scalar:
    """Writes the value of the element at `index`; `buffers` holds the tensors that the definition reads."""
    values: dict[SSAValue, SSAValue] = dict(buffers)
    values.update(zip(compute.body.block.args, ssa_values(index), strict=True))
    return emit_block(b, compute.body.block, values)


def emit_block(b: KernelBuilder, block: Block, values: dict[SSAValue, SSAValue]) -> Scalar:
    """Writes the operations of a definition's block under `values`, and gives what it yields."""
    for op in block.ops:
        if isinstance(op, GraphYieldOp):
            return values[op.value]
        values[op.results[0]] = emit_operation(b, op, values)
    raise ValueError("a definition's block ends with graph.yield")


def emit_operation(b: KernelBuilder, op: Operation, values: dict[SSAValue, SSAValue]) -> Scalar:
    """Writes one operation of a definition."""
    if isinstance(op, AtOp):
        indices = [values[i] for i in op.indices]
        where = None if op.predicate is None else values[op.predicate]
        otherwise = None if op.otherwise is None else values[op.otherwise]
        return b.load(values[op.source], indices, where, otherwise)
    if isinstance(op, ReduceOp):
        return _emit_reduce(b, op, values)
    return b.insert(op.clone(dict(values)))


def _emit_reduce(b: KernelBuilder, op: ReduceOp, values: dict[SSAValue, SSAValue]) -> Scalar:
    args, shape = op.body.block.args, op.shape
    type = accumulator(op.result.type)
    start = b.constant(identity(op.kind.data, type), type)

    def level(depth: int, carried: SSAValue) -> Scalar:
        if depth == len(shape):
            return b.binary(op.kind.data, carried, widened(b, emit_block(b, op.body.block, values)))

        def body(i: Index, inner: SSAValue) -> Scalar:
            values[args[depth]] = i.value
            return level(depth + 1, inner)

        return b.fold(args[depth].name_hint or f"k{depth}", shape[depth], carried, body)

    return narrowed(b, level(0, start), op.result.type)
