"""Reductions on a CPU whose elements lie one after another: partial results in the lanes of a vector."""

from __future__ import annotations

from math import ceil, prod
from typing import ClassVar

from xdsl.ir import Block, Operation, SSAValue

from treadle.dialects.graph import ComputeOp, ReduceOp, YieldOp
from treadle.dialects.graph.compute import only_reduce
from treadle.dialects.graph.definition import widened
from treadle.dialects.graph.dtypes import accumulator
from treadle.dialects.graph.reduction import identity
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.dialects.task import repeat
from treadle.index.algebra import stride_along
from treadle.index.expr import Expr, floordiv, mod, var
from treadle.schedules.access_analysis import DefinitionAccesses
from treadle.schedules.kernel_builder import (
    Index,
    KernelBuilder,
    emit_block,
    kernel_builder,
    narrowed,
    ssa_values,
)
from treadle.schedules.template import Anchor, Choices, Knob, Template, least_power, number
from treadle.target import Target


def walks_contiguously(compute: ComputeOp, reduce: ReduceOp) -> bool:
    """Whether some read advances by one element along the collapsed reduction, and every other by one or none."""
    args, shape = reduce.body.block.args, reduce.shape
    inner = var("reduced", 0, max(prod(shape) - 1, 0))
    digits: dict[SSAValue, Expr] = {}
    for n, arg in enumerate(args):
        digit = floordiv(inner, prod(shape[n + 1 :]))
        digits[arg] = digit if n == 0 else mod(digit, shape[n])
    accesses = DefinitionAccesses(compute, digits)
    inside = [at for at in compute.reads() if at.parent_op() is reduce]
    strides = [stride_along(accesses.position(at), "reduced") for at in inside]
    conditions = [stride_along(comparison.difference, "reduced") for comparison in accesses.conditions()]
    return 1 in strides and all(s in (0, 1) for s in strides) and None not in conditions


class ReduceCpu(Template):
    """Folds `lanes` elements at a time into as many partial results, then the partial results into one.

    A block computes `rows` elements of the output. Source: the usual vector reduction; the order of the sum differs
    from the definition's, within the tolerance of the reduction's length.
    """

    name: ClassVar[str] = "reduce_cpu"
    kind: ClassVar[str] = "cpu"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("lanes", (16, 32, 64), "partial results of one element"),
        Knob("rows", tuple(2**n for n in range(17)), "elements of the output that a block computes"),
    )

    def fits(self, anchor: Anchor) -> bool:
        if not isinstance(anchor, ComputeOp):
            return False
        reduce = only_reduce(anchor)
        return reduce is not None and walks_contiguously(anchor, reduce) and prod(reduce.shape) >= 16

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        assert isinstance(anchor, ComputeOp)
        reduce = only_reduce(anchor)
        extent = prod(reduce.shape) if reduce is not None else 1
        # Four vectors hide the latency of the fold's operation.
        lanes = max(16, 4 * target.lanes) if extent >= 256 else 16
        rows = 1
        while rows * extent < 16384 and rows * 8 < prod(anchor.shape):
            rows *= 2
        return {"lanes": lanes, "rows": rows}

    def canonical(self, anchor: Anchor, choices: Choices, target: Target) -> Choices:
        """A block has no more elements than there are."""
        assert isinstance(anchor, ComputeOp)
        return {**choices, "rows": least_power(number(choices, "rows"), prod(anchor.shape))}

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, ComputeOp)
        tensors = anchor.tensors()
        b = kernel_builder(tensors, anchor.type)
        rows, total = number(choices, "rows"), prod(anchor.shape)
        with b.tasks_of_block("row", total, rows) as position:
            index = position.delinearize(anchor.shape)
            values: dict[SSAValue, SSAValue] = dict(zip(tensors, b.inputs, strict=True))
            values.update(zip(anchor.body.block.args, ssa_values(index), strict=True))
            value = _element(b, anchor.body.block, values, number(choices, "lanes"))
            b.store(value, b.output, index)
        return b.kernel(name, tensors, anchor.type, ceil(total / rows), 1, f"{anchor.type} by reduction")


def _element(b: KernelBuilder, block: Block, values: dict[SSAValue, SSAValue], lanes: int) -> SSAValue:
    for op in block.ops:
        if isinstance(op, YieldOp):
            return values[op.value]
        values[op.results[0]] = _operation(b, op, values, lanes)
    raise ValueError("a definition's block ends with graph.yield")


def _operation(b: KernelBuilder, op: Operation, values: dict[SSAValue, SSAValue], lanes: int) -> SSAValue:
    if not isinstance(op, ReduceOp):
        return b.evaluated(op, values)
    kind, element, extent = op.kind.data, accumulator(op.result.type), prod(op.shape)
    neutral = identity(kind, element)
    part = b.alloc("part", [lanes], element)
    with b.tasks(["lane"], repeat(lanes), unroll=True, vector=True) as (lane,):
        b.store(b.constant(neutral, element), part, [lane])
    with (
        b.loop("k", extent // lanes) as k,
        b.tasks(["lane"], repeat(lanes), unroll=True, vector=True) as (lane,),
    ):
        digits = (k * lanes + lane).delinearize(op.shape)
        inner = values | dict(zip(op.body.block.args, ssa_values(digits), strict=True))
        term = widened(b, emit_block(b, op.body.block, inner))
        b.store(b.binary(kind, b.load(part, [lane]), term), part, [lane])
    # Every access to `part` is a vector access, so that it can stay in vector registers; the copy is read by element.
    copy = b.alloc("lanes", [lanes], element)
    with b.tasks(["lane"], repeat(lanes), unroll=True, vector=True) as (lane,):
        b.store(b.load(part, [lane]), copy, [lane])
    total = b.fold(
        "lane",
        lanes,
        b.constant(neutral, element),
        lambda lane, acc: b.binary(kind, acc, b.load(copy, [lane])),
    )
    if extent % lanes == 0:
        return narrowed(b, total, op.result.type)

    def rest(k: Index, acc: SSAValue) -> SSAValue:
        digits = (k + (extent - extent % lanes)).delinearize(op.shape)
        inner = values | dict(zip(op.body.block.args, ssa_values(digits), strict=True))
        return b.binary(kind, acc, widened(b, emit_block(b, op.body.block, inner)))

    return narrowed(b, b.fold("k", extent % lanes, total, rest), op.result.type)
