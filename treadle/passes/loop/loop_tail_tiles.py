"""loop-tail-tiles: of a tile whose last rows nobody needs, the rows that somebody needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.effects import is_pure
from treadle.dialects.graph import RequiredAttr
from treadle.dialects.graph.extents import enclosing_function, extents_of
from treadle.dialects.graph.fused import Constraint
from treadle.dialects.loop import AllocOp, DispatchOp, KernelOp, LoadOp, StoreOp, type_of
from treadle.dialects.task import ForOp, YieldOp, repeat
from treadle.dialects.task.ops import MapAttr
from treadle.index.algebra import depends_on, split_linear
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Expr
from treadle.index.reader import IndexReader
from treadle.passes.graph.graph_required_regions import ExtentArguments
from treadle.passes.loop.inline_body import KernelArguments
from treadle.passes.loop.loop_iterations import Iterations, value_of
from treadle.passes.loop.required_levels import constraint_on, is_accessed_by_element, read_extent
from treadle.schedules.register_tile import SHORT_HEIGHTS
from treadle.shapes.decision_tree import boxes


@dataclass(frozen=True)
class LoopTailTilesPass(ModulePass):
    """Writes register tiles of fewer rows beside those of kernels with required regions, for where the required region
    ends.

    ```mlir
    scf.for %m = %c0 to %end step %c8 {
      %acc = loop.alloc : memref<8x48xf32, #loop.space<register>>
      ... task.for (%r, %n) in #task.map<repeat(8, 48)> ... loop.store %v, %C[%m + %r, %n] ...
    }
    ```
    where `d0 < 0` is required of `%C`, and extent 0 is `%seq`, becomes
    ```mlir
    scf.for %m = %c0 to %end step %c8 {
      scf.if %seq <= %m + 1 {
        ... the same with memref<1x48xf32> and repeat(1, 48) ...
      } else {
        scf.if %seq <= %m + 4 { ... 4 rows ... } else { scf.if ... { ... 6 rows ... } else { ... all 8 ... } }
      }
    }
    ```
    so that a product of one row does not take the time of eight. This applies where a block sums in a loop, and all of
    its task loops go over the same rows, each of which uses its own row of the block's buffers only: then fewer rows
    give the same values. A kernel of a dispatch whose calls have one and a half tiles or more gets the tile of half the
    rows only: the last tile takes little of its time. Kernels of one thread a block (those of CPUs) have such tiles.
    Source: the choice among micro-kernels by shape is DietCode's (MLSys 2022), section 4.3; here it is made for each
    tile.
    """

    name = "loop-tail-tiles"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in [inner for inner in op.walk() if isinstance(inner, KernelOp)]:
            main = enclosing_function(kernel)
            if kernel.required_regions is not None and kernel.threads.value.data == 1 and main is not None:
                _shorten(kernel, ExtentArguments(extents_of(main)))


@dataclass(frozen=True)
class _Tile:
    """A block that computes a tile: its rows, and the index that a required region compares with an extent, of row
    0."""

    block: Block
    rows: int
    index: Expr
    extent: int


def _shorten(kernel: KernelOp, tensors: ExtentArguments) -> None:
    iterations = Iterations(kernel)
    reader = IndexReader(iterations.known)
    tiles = [tile for block in _blocks(kernel.body.block) if (tile := _tile(kernel, block, reader)) is not None]
    arguments = KernelArguments(kernel)
    values: dict[int, Expr] = {}
    first = kernel.body.block.first_op
    assert first is not None
    for tile in tiles:
        if tile.extent not in values:
            bound = tile.index.range()[1]
            if bound is None:
                continue
            value, operations = read_extent(arguments.buffer_of(tensors[tile.extent]), bound + tile.rows)
            Rewriter.insert_op(operations, InsertPoint.before(first))
            values[tile.extent] = value
        heights = _heights(tile.rows, _least(kernel, tensors[tile.extent]))
        _choose_height(tile, iterations.in_values(tile.index), values[tile.extent], heights)
    if tiles:
        arguments.rebuild()


def _least(kernel: KernelOp, extent: SSAValue) -> int:
    """The least value of an extent with which a dispatch launches a kernel, as far as its tree says it."""
    dispatch = kernel.parent_op()
    if not isinstance(dispatch, DispatchOp) or extent not in dispatch.extents:
        return 0
    number, own = list(dispatch.extents).index(extent), list(dispatch.alternatives).index(kernel)
    ranges = [box.get(number, (None, None)) for leaf, box in boxes(dispatch.tree.data) if leaf == own]
    return min(least or 0 for least, _ in ranges)


def _heights(rows: int, least: int) -> Sequence[int]:
    """The rows of the tiles beside one of `rows` rows, of a kernel whose calls have `least` rows or more."""
    heights = [height for height in SHORT_HEIGHTS if height < rows]
    return heights if 2 * least < 3 * rows else [height for height in heights if 2 * height <= rows][-1:]


def _blocks(block: Block) -> Iterator[Block]:
    """The blocks of loops and branches in a block, and the block itself, but not those of task loops."""
    yield block
    for op in block.ops:
        if isinstance(op, scf.ForOp | scf.IfOp):
            for region in op.regions:
                for inner in region.blocks:
                    yield from _blocks(inner)


def _tile(kernel: KernelOp, block: Block, reader: IndexReader) -> _Tile | None:
    """The tile that a block computes, whose rows are independent of each other; None if it does not."""
    tasks = [op for op in block.walk() if isinstance(op, ForOp)]
    direct = [op for op in block.ops if isinstance(op, ForOp)]
    if not direct or len(direct) == len(tasks):
        return None
    rows = tasks[0].mapping.data.shape[0]
    if rows < 2 or not all(_goes_over(task, rows) for task in tasks):
        return None
    own = {op.buffer for op in block.ops if isinstance(op, AllocOp)}
    if not all(type_of(buffer).get_shape()[:1] == (rows,) for buffer in own):
        return None
    found: list[tuple[LoadOp | StoreOp, SSAValue]] = []
    for op in block.walk():
        task = _task_of(op, tasks)
        if isinstance(op, AllocOp | ForOp | YieldOp | scf.ForOp | scf.IfOp | scf.YieldOp) or is_pure(op):
            continue
        if not isinstance(op, LoadOp | StoreOp) or task is None:
            return None
        if op.buffer in own and op.indices[0] is not task.body.block.args[0]:
            return None
        found.append((op, task.body.block.args[0]))
    outside = [(op, row) for op, row in found if op.buffer not in own]
    waiting = {op.buffer for op, _ in outside if isinstance(op, StoreOp)} - set(kernel.output_buffers)
    results = [(op, row) for op, row in outside if isinstance(op, StoreOp) and op.buffer not in waiting]
    tile = _required_tile(kernel, block, rows, results, reader)
    if tile is None or not all(_keeps_rows(buffer, tile, outside, reader) for buffer in waiting):
        return None
    return tile


def _keeps_rows(
    buffer: SSAValue, tile: _Tile, accesses: Sequence[tuple[LoadOp | StoreOp, SSAValue]], reader: IndexReader
) -> bool:
    """Whether a buffer outside keeps rows for the same tile: each of its rows is read and stored by one row of the
    tile, of which the index that is compared is a function of the buffer's row."""
    alloc = buffer.owner
    if not isinstance(alloc, AllocOp) or not is_accessed_by_element(alloc):
        return False
    if not all(tile.block.is_ancestor(use.operation) for use in buffer.uses):
        return False
    found: set[Constraint | None] = set()
    for op, row in accesses:
        if op.buffer is buffer:
            index = [reader.read(i) for i in op.indices]
            first = split_linear(index[0], row)
            if first is None or first[0] != 1 or any(depends_on(each, row) for each in index[1:]):
                return False
            if _is_inside(first[1], tile.block):
                return False
            found.add(constraint_on(alloc, index, tile.index + reader.read(row), tile.extent))
    return len(found) == 1 and None not in found


def _goes_over(task: ForOp, rows: int) -> bool:
    """Whether a task loop goes over so many rows first, one after another."""
    shape = task.mapping.data.shape
    return task.worker is None and shape[0] == rows and task.mapping == MapAttr.get(repeat(*shape))


def _task_of(op: Operation, tasks: Sequence[ForOp]) -> ForOp | None:
    parent = op.parent_op()
    while parent is not None:
        if isinstance(parent, ForOp) and parent in tasks:
            return parent
        parent = parent.parent_op()
    return None


def _required_tile(
    kernel: KernelOp, block: Block, rows: int, stores: Sequence[tuple[StoreOp, SSAValue]], reader: IndexReader
) -> _Tile | None:
    """The tile, if one constraint on rows holds for all that it stores."""
    common: list[tuple[Expr, int]] | None = None
    for store, row in stores:
        if kernel.required_regions is None:
            return None
        required = kernel.required_regions.data[list[SSAValue](kernel.output_buffers).index(store.buffer)]
        assert isinstance(required, RequiredAttr)
        index = [reader.read(i) for i in store.indices]
        found: list[tuple[Expr, int]] = []
        for constraint in required.data:
            split = split_linear(constraint.at(index), row)
            if split is not None and split[0] == 1 and not _is_inside(split[1], block):
                found.append((split[1], constraint.extent))
        common = found if common is None else [each for each in common if each in found]
    return _Tile(block, rows, *common[0]) if common else None


def _is_inside(e: Expr, block: Block) -> bool:
    """Whether an expression depends on what a block computes, other than on the block's own arguments."""
    for v in e.vars():
        value = value_of(v)
        if not isinstance(value, SSAValue):
            return True
        home = value.owner if isinstance(value.owner, Block) else value.owner.parent
        if home is None or (home is block and not isinstance(value.owner, Block)):
            return True
        if home is not block and block.is_ancestor(home):
            return True
    return False


def _choose_height(tile: _Tile, index: Expr, extent: Expr, heights: Sequence[int]) -> None:
    """Puts the tile into branches, the one of fewest rows first."""
    last = tile.block.last_op
    end = last if isinstance(last, scf.YieldOp) else None
    moved = [op for op in tile.block.ops if op is not end]
    location, block = moved[0].location, tile.block
    for height in heights:
        point = InsertPoint.at_end(block) if end is None or block is not tile.block else InsertPoint.before(end)
        if block is not tile.block:
            assert block.last_op is not None
            point = InsertPoint.before(block.last_op)
        emitter = IndexEmitter(point, location=location)
        test = arith.CmpiOp(emitter.emit(extent), emitter.emit(index + (height + 1)), "slt")
        ends = [scf.YieldOp(), scf.YieldOp()]
        short, tall = (Block([each]) for each in ends)
        branch = scf.IfOp(test, [], [short], [tall])
        for op in (test, branch, *ends):
            op.location = location
        Rewriter.insert_op([test, branch], point)
        _insert_shortened(moved, short, height)
        block = tall
    for op in moved:
        op.detach()
        assert block.last_op is not None
        block.insert_op_before(op, block.last_op)


def _insert_shortened(ops: Sequence[Operation], block: Block, rows: int) -> None:
    """Copies of operations of a tile, for so many rows, before the end of a block."""
    end = block.last_op
    assert end is not None
    values: dict[SSAValue, SSAValue] = {}
    for op in ops:
        copy = op.clone(values)
        if isinstance(op, AllocOp):
            type = type_of(op.buffer)
            shape = [rows, *type.get_shape()[1:]]
            copy = AllocOp(MemRefType(type.element_type, shape, type.layout, type.memory_space))
            copy.buffer.name_hint, copy.location = op.buffer.name_hint, op.location
            values[op.buffer] = copy.buffer
        block.insert_op_before(copy, end)
        for task in [inner for inner in copy.walk() if isinstance(inner, ForOp)]:
            task.mapping = MapAttr.get(repeat(rows, *task.mapping.data.shape[1:]))


__all__ = ["LoopTailTilesPass"]
