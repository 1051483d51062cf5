"""Copies of factors to a buffer of a kernel that end where the sums do that read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.loop import AllocOp, KernelOp, LoadOp, StoreOp
from treadle.dialects.task import ForOp, repeat
from treadle.dialects.task.ops import MapAttr
from treadle.passes.loop.buffer_demand import is_accessed_by_element
from treadle.passes.loop.extent_tests import drop_test, text_of


@dataclass(frozen=True)
class End:
    """Where a loop ends: at an extent, by its text (`text_of`), or before; `value` is known all over the kernel."""

    text: str
    value: SSAValue


def end_copies(kernel: KernelOp, ends: Mapping[scf.ForOp, End]) -> None:
    """Ends the loops that fill buffers of a kernel as early as the loops that read them, which are among `ends`."""
    if not ends:
        return
    for alloc in [op for op in kernel.body.walk() if isinstance(op, AllocOp) and is_accessed_by_element(op)]:
        uses = [use.operation for use in alloc.buffer.uses]
        stores = [op for op in uses if isinstance(op, StoreOp)]
        loads = [op for op in uses if isinstance(op, LoadOp)]
        if len(stores) != 1 or not loads:
            continue
        (store,), task = stores, stores[0].parent_op()
        if not isinstance(task, ForOp) or not _only_fills(task, store):
            continue
        for d, index in enumerate(store.indices):
            found = [_end_of(load.indices[d], ends) for load in loads]
            first = found[0]
            if index is task.body.block.args[0] and first is not None and {e and e.text for e in found} == {first.text}:
                _end_early(task, first)
                break


def _only_fills(task: ForOp, store: StoreOp) -> bool:
    """Whether a task loop goes over rows one after another, and does nothing but a store."""
    shape = task.mapping.data.shape
    plain = task.worker is None and len(shape) > 1 and task.mapping == MapAttr.get(repeat(*shape))
    return plain and [op for op in task.body.walk() if isinstance(op, StoreOp)] == [store]


def _end_of(index: SSAValue, ends: Mapping[scf.ForOp, End]) -> End | None:
    """Where the loop of an index ends."""
    loop = index.owner.parent_op() if isinstance(index.owner, Block) else None
    return ends.get(loop) if isinstance(loop, scf.ForOp) else None


def _end_early(task: ForOp, end: End) -> None:
    """Goes over the first coordinate by a loop that ends earlier."""
    row, *others = task.body.block.args
    inner = ForOp(repeat(*task.mapping.data.shape[1:]), unroll=task.unroll is not None)
    inner.attributes |= task.attributes
    bounds = [arith.ConstantOp(IntegerAttr(value, IndexType())) for value in (0, 1)]
    outside = Block(arg_types=[IndexType()])
    loop = scf.ForOp(bounds[0].result, end.value, bounds[1].result, [], Region(outside))
    for new, old in zip((outside.args[0], *inner.body.block.args), (row, *others), strict=True):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    tests = [op for op in task.body.walk() if isinstance(op, arith.CmpiOp) and op.lhs is outside.args[0]]
    for test in tests:
        if arith.CMPI_COMPARISON_OPERATIONS[test.predicate.value.data] == "slt" and text_of(test.rhs) == end.text:
            drop_test(test)
    for op in list(inner.body.block.ops):
        op.detach()
    for op in list(task.body.block.ops):
        op.detach()
        inner.body.block.add_op(op)
    last = scf.YieldOp()
    outside.add_ops([inner, last])
    placed: list[Operation] = [*bounds, loop, inner, last]
    for op in placed:
        op.location = task.location
    Rewriter.insert_op([*bounds, loop], InsertPoint.before(task))
    Rewriter.erase_op(task)


__all__ = ["End", "end_copies"]
