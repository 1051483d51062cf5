"""task-lower: task mappings become loops and index arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, ModuleOp, UnitAttr, UnknownLoc
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.location import location_of
from treadle.dialects.loop import FuncOp, KernelOp
from treadle.dialects.task import ForOp
from treadle.errors import TreadleError
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Expr, const, var
from treadle.index.reader import Bounds, IndexReader, comparisons_around
from treadle.passes.loop.kernels import kernels_of

# Whether the workers of every task mapping are the threads that run it.

_NO_WORKER = (0, -1)


def check_workers(kernel: KernelOp | FuncOp) -> None:
    """Raises TreadleError for a `task.for` with more workers than threads, so that some tasks would not be done, or
    with fewer, so that threads would do tasks that do not exist.

    A worker's number is bounded by the kernel's threads and blocks, by loops, and by the branches around. Where no
    upper bound is known, nothing is checked.
    """
    reader = IndexReader()
    bounds = Bounds(reader)
    for loop in [op for op in kernel.walk() if isinstance(op, ForOp)]:
        if loop.worker is None:
            continue
        worker, around = reader.read(loop.worker), list(comparisons_around(reader, loop))
        _, last = bounds.range(worker, around)
        if last is None or last + 1 == loop.mapping.data.workers:
            continue
        # Only where some worker arrives: the branches around may contradict each other.
        if bounds.range(worker, around, _NO_WORKER) != _NO_WORKER:
            raise _misfit(loop, loop.worker, last + 1, f"{kernel.name} @{kernel.sym_name.data}")


def _misfit(loop: ForOp, worker: SSAValue, present: int, kernel: str) -> TreadleError:
    mapping, name = loop.mapping.data, f"%{worker.name_hint or 'worker'}"
    accepted = f"a mapping of {present} workers"
    if present < mapping.workers:
        consequence = f"nobody does the tasks of workers {present} to {mapping.workers - 1}"
    else:
        consequence = f"workers {mapping.workers} to {present - 1} have none"
        accepted += f", or scf.if {name} < {mapping.workers} around it"
    message = f"task.for deals {mapping} to {mapping.workers} workers, but {name} counts {present}: {consequence}"
    return TreadleError(message, kernel if isinstance(loop.location, UnknownLoc) else location_of(loop), accepted)


@dataclass(frozen=True)
class TaskLowerPass(ModulePass):
    """Turns each `task.for` into one loop per repeated dimension and arithmetic on the worker's number.

    ```mlir
    task.for (%i, %k) in #task.map<repeat(4, 1) * spatial(16, 8)>(%t) {
      "use"(%i, %k) : (index, index) -> ()
    }
    ```
    becomes
    ```mlir
    %0 = arith.divui %t, %c8 : index
    %k = arith.remui %t, %c8 : index
    scf.for %io = %c0 to %c4 step %c1 {
      %1 = arith.muli %io, %c16 : index
      %i = arith.addi %1, %0 : index
      "use"(%i, %k) : (index, index) -> ()
    }
    ```
    Dimensions of extent 1 make no loop; what does not depend on a loop is computed outside it.  `unroll` becomes
    `loop.unroll` on every loop, and the discardable attributes of the `task.for` go to its innermost loop.
    Rejected: a mapping whose number of workers differs from the range of the worker's number in the kernel.
    Source: Hidet (ASPLOS 2023), section 5.1.1.
    """

    name = "task-lower"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in kernels_of(op):
            check_workers(kernel)
        for loop in [inner for inner in op.walk() if isinstance(inner, ForOp)]:
            lower_task_for(loop)


def lower_task_for(loop: ForOp) -> None:
    """Replaces one `task.for` by its loops."""
    mapping = loop.mapping.data
    emitter = IndexEmitter(InsertPoint.before(loop), location=loop.location)
    nest: list[scf.ForOp] = []
    steps: list[Expr] = []
    point = InsertPoint.after(loop)
    for extent in mapping.loops:
        if extent == 1:
            steps.append(const(0))
            continue
        level, end = _counted_loop(emitter, extent, loop)
        Rewriter.insert_op(level, point)
        point = InsertPoint.before(end)
        nest.append(level)
        steps.append(var(level.body.block.args[0], 0, extent - 1))
    coordinates = [c if isinstance(c, Expr) else const(c) for c in mapping.task(_worker(loop), steps)]
    _name_loops(nest, coordinates, loop)
    for deeper in nest[1:]:
        emitter = emitter.inside(InsertPoint.before(deeper))
    if not nest:
        _move_body(loop, InsertPoint.before(loop), emitter, coordinates)
        return
    nest[-1].attributes |= loop.attributes
    _move_body(loop, point, emitter.inside(point), coordinates)


def _counted_loop(emitter: IndexEmitter, extent: int, source: ForOp) -> tuple[scf.ForOp, Operation]:
    """A loop over [0, extent), and its terminator."""
    end = scf.YieldOp()
    body = Block([end], arg_types=[IndexType()])
    level = scf.ForOp(emitter.emit(0), emitter.emit(extent), emitter.emit(1), [], body)
    level.location = end.location = source.location
    if source.unroll is not None:
        level.attributes["loop.unroll"] = UnitAttr()
    return level, end


def _worker(loop: ForOp) -> Expr:
    """The worker's number: known to lie in [0, workers)."""
    worker, workers = loop.worker, loop.mapping.data.workers
    if worker is None or workers == 1:
        return const(0)
    source = worker.owner
    if isinstance(source, arith.ConstantOp) and isinstance(source.value, IntegerAttr):
        return const(source.value.value.data)
    return var(worker, 0, workers - 1)


def _name_loops(nest: list[scf.ForOp], coordinates: list[Expr], loop: ForOp) -> None:
    """Names each loop's variable after the first coordinate that depends on it: `io` for `i`."""
    for level in nest:
        counter = level.body.block.args[0]
        for coordinate, argument in zip(coordinates, loop.body.block.args, strict=True):
            if argument.name_hint and any(v.key is counter for v in coordinate.vars()):
                alone = coordinate.as_atom() is not None
                counter.name_hint = argument.name_hint if alone else f"{argument.name_hint}o"
                break


def _move_body(loop: ForOp, point: InsertPoint, emitter: IndexEmitter, coordinates: list[Expr]) -> None:
    """Moves the body to `point`, computes its arguments there, and erases the `task.for`."""
    body = loop.body.block
    values = [_emit_named(emitter, c, a) for c, a in zip(coordinates, body.args, strict=True)]
    if body.last_op is not None:
        Rewriter.erase_op(body.last_op)
    Rewriter.inline_block(body, point, values)
    Rewriter.erase_op(loop)


def _emit_named(emitter: IndexEmitter, coordinate: Expr, argument: SSAValue) -> SSAValue:
    value = emitter.emit(coordinate)
    if value.name_hint is None and not isinstance(value.owner, Block):
        value.name_hint = argument.name_hint
    return value
