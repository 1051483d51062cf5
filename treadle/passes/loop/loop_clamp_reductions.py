"""loop-clamp-reductions: sums end where an extent ends the terms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr, ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.effects import is_pure
from treadle.dialects.graph.extents import Extents, enclosing_function, extents_of
from treadle.dialects.loop import AllocOp, KernelOp, LoadOp, StoreOp
from treadle.dialects.task import ForOp, YieldOp, repeat
from treadle.dialects.task.ops import MapAttr
from treadle.passes.loop.kernels import constant_index, loops_in, trip_count
from treadle.passes.loop.required_levels import computation, drop_test, is_accessed_by_element, text_of

# Copies of factors to a buffer of a kernel that end where the sums do that read them.


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
                _end_task_early(task, first)
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


def _end_task_early(task: ForOp, end: End) -> None:
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


@dataclass(frozen=True)
class LoopClampReductionsPass(ModulePass):
    """Ends a loop that sums products at an extent from which on a factor of each is 0.

    ```mlir
    scf.for %k = %c0 to %c128 step %c1 {
      %inside = arith.cmpi slt, %k, %length : index
      %b = loop.load %B[%k, %n] where %inside else %zero : memref<128x64xf32>
      %t = arith.mulf %a, %b : f32
      ... loop.store %acc + %t, %acc[%r, %n] ...
    }
    ```
    becomes
    ```mlir
    %end = arith.minsi %c128, %length : index
    scf.for %k = %c0 to %end step %c1 {
      %b = loop.load %B[%k, %n] : memref<128x64xf32>
      ...
    }
    ```
    where `%length` is read from an extent of @main. So does a loop that copies a factor to a buffer that only such
    loops read. Beyond the extent is what the model's own tensors do not have: the other factor is nothing that a result
    may depend on. The importer writes such a mask before each product over a dimension that changes. A sum that would
    have been -0 + 0 stays -0. Source of the idea: DietCode (MLSys 2022), section 4.2.
    """

    name = "loop-clamp-reductions"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in [inner for inner in op.walk() if isinstance(inner, KernelOp)]:
            main = enclosing_function(kernel)
            extents: Extents = {} if main is None else extents_of(main)
            buffers = zip(kernel.input_buffers, kernel.inputs, strict=True)
            known: set[SSAValue] = {buffer for buffer, value in buffers if value in extents}
            if known:
                loops = list(loops_in(kernel.body.block))
                ends = {loop: end for loop in loops if (end := _end_early(kernel, loop, known)) is not None}
                end_copies(kernel, ends)


def _end_early(kernel: KernelOp, loop: scf.ForOp, extents: set[SSAValue]) -> End | None:
    """Ends one loop at the first extent that all of its sums have in common."""
    if loop.results or trip_count(loop) is None or not _only_sums(loop.body.block):
        return None
    stores = [op for op in loop.body.block.walk() if isinstance(op, StoreOp)]
    tests = [_masks_of(store, loop, extents) for store in stores]
    if not tests or not all(tests):
        return None
    limits = {text_of(test.rhs): test for test in tests[0]}
    for others in tests[1:]:
        limits = {text: test for text, test in limits.items() if text in {text_of(other.rhs) for other in others}}
    if not limits:
        return None
    text, test = next(iter(limits.items()))
    loop.operands[1] = _end(kernel, loop, test.rhs)
    for each in [each for tested in tests for each in tested]:
        if each.lhs is loop.body.block.args[0] and text_of(each.rhs) == text:
            drop_test(each)
    return End(text, loop.ub)


def _end(kernel: KernelOp, loop: scf.ForOp, limit: SSAValue) -> SSAValue:
    """Where the loop ends, computed at the beginning of the kernel."""
    copies, before = dict[SSAValue, SSAValue](), kernel.body.block.first_op
    assert before is not None
    point = InsertPoint.before(before)
    whole = arith.ConstantOp(IntegerAttr(constant_index(loop.ub) or 0, IndexType()))
    for op in computation(limit):
        Rewriter.insert_op(op.clone(copies), point)
    end = arith.MinSIOp(whole.result, copies[limit])
    for op in (whole, end):
        op.location = loop.location
        Rewriter.insert_op(op, point)
    return end.result


def _only_sums(block: Block) -> bool:
    """Whether a block does nothing but add to elements of the kernel's own buffers."""
    for op in block.walk():
        if isinstance(op, StoreOp):
            if not isinstance(op.buffer.owner, AllocOp) or block.is_ancestor(op.buffer.owner):
                return False
        elif not isinstance(op, LoadOp | ForOp | YieldOp | scf.ForOp | scf.YieldOp) and not is_pure(op):
            return False
    return True


def _masks_of(store: StoreOp, loop: scf.ForOp, extents: set[SSAValue]) -> Sequence[arith.CmpiOp]:
    """The tests `k < extent` of a loop's variable without which the element that is stored is the one from before."""
    total = store.value.owner
    if store.predicate is not None or not isinstance(total, arith.AddfOp):
        return []
    for before, term in ((total.lhs, total.rhs), (total.rhs, total.lhs)):
        read = before.owner
        if isinstance(read, LoadOp) and read.buffer is store.buffer and [*read.indices] == [*store.indices]:
            return list(_zero_unless(term, loop.body.block.args[0], extents))
    return []


def _zero_unless(term: SSAValue, k: SSAValue, extents: set[SSAValue]) -> Iterator[arith.CmpiOp]:
    """The tests of k without which a term is 0: a load that then gives 0, a product of one, one that is converted, an
    element of a buffer that such terms were copied to."""
    op = term.owner
    if isinstance(op, arith.MulfOp):
        yield from _zero_unless(op.lhs, k, extents)
        yield from _zero_unless(op.rhs, k, extents)
    elif isinstance(op, arith.ExtFOp):
        yield from _zero_unless(op.input, k, extents)
    elif isinstance(op, LoadOp) and op.predicate is not None and op.otherwise is not None:
        test = op.predicate.owner
        if _is_zero(op.otherwise) and isinstance(test, arith.CmpiOp) and _is_below_extent(test, k, extents):
            yield test
    elif isinstance(op, LoadOp) and isinstance(op.buffer.owner, AllocOp):
        yield from _zero_copies(op, k, extents)


def _zero_copies(load: LoadOp, k: SSAValue, extents: set[SSAValue]) -> Iterator[arith.CmpiOp]:
    """The tests without which an element of a buffer is 0, where one store writes each by its own indices."""
    writers = [use.operation for use in load.buffer.uses if not isinstance(use.operation, LoadOp)]
    if len(writers) == 1 and isinstance(store := writers[0], StoreOp) and store.predicate is None:
        for read, written in zip(load.indices, store.indices, strict=True):
            loop = written.owner.parent_op() if isinstance(written.owner, Block) else None
            if read is k and isinstance(loop, ForOp) and loop.worker is None:
                yield from _zero_unless(store.value, written, extents)


def _is_zero(value: SSAValue) -> bool:
    constant = value.owner
    return (
        isinstance(constant, arith.ConstantOp)
        and isinstance(constant.value, FloatAttr)
        and constant.value.value.data == 0
    )


def _is_below_extent(test: arith.CmpiOp, k: SSAValue, extents: set[SSAValue]) -> bool:
    is_less = arith.CMPI_COMPARISON_OPERATIONS[test.predicate.value.data] == "slt"
    if not is_less or test.lhs is not k or not isinstance(test.rhs.type, IndexType):
        return False
    operations = computation(test.rhs)
    reads = [op for op in operations if isinstance(op, LoadOp)]
    return len(reads) == 1 and reads[0].buffer in extents and all(op in reads or is_pure(op) for op in operations)
