"""loop-tail-tiles: of a tile whose last rows or columns nobody needs, those that somebody needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

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
from treadle.index.expr import Expr, const
from treadle.index.reader import IndexReader
from treadle.passes.graph.graph_required_regions import ExtentArguments
from treadle.passes.loop.inline_body import KernelArguments
from treadle.passes.loop.loop_iterations import Iterations, value_of
from treadle.passes.loop.required_levels import constraint_on, is_accessed_by_element, read_extent
from treadle.schedules.register_tile import SHORT_HEIGHTS
from treadle.shapes.decision_tree import boxes
from treadle.target import Target


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

    Panels of several vectors get such code for fewer vectors in the same way, around the code for fewer rows, where
    columns are required up to an extent: `d1 < 0` of `%C`, and task loops over `repeat(8, 48)` become ones over
    `repeat(8, 16)` and `repeat(8, 32)`.
    Source: the choice among micro-kernels by shape is DietCode's (MLSys 2022), section 4.3; here it is made for each
    tile.
    """

    name = "loop-tail-tiles"
    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        lanes = Target.parse(self.target).lanes
        for kernel in [inner for inner in op.walk() if isinstance(inner, KernelOp)]:
            main = enclosing_function(kernel)
            if kernel.required_regions is not None and kernel.threads.value.data == 1 and main is not None:
                # Panels first: each copy of one has its tiles.
                tensors = ExtentArguments(extents_of(main))
                _shorten(_shorten(kernel, tensors, -1, lanes), tensors, 0, lanes)


@dataclass(frozen=True)
class _Tile:
    """A block that computes a tile, and whose size along dimension 0 (its rows) or the last one (its columns) an extent
    ends: the index that a required region compares with the extent, of the first row or column."""

    block: Block
    dim: Literal[0, -1]
    size: int
    index: Expr
    extent: int


def _shorten(kernel: KernelOp, tensors: ExtentArguments, dim: Literal[0, -1], lanes: int) -> KernelOp:
    """Writes smaller tiles along a dimension; the kernel, which is another operation with more arguments."""
    iterations = Iterations(kernel)
    reader = IndexReader(iterations.known)
    tiles = [tile for block in _blocks(kernel.body.block) if (tile := _tile(kernel, block, dim, reader)) is not None]
    arguments = KernelArguments(kernel)
    values: dict[int, tuple[Expr, Sequence[Operation]]] = {}
    chosen: list[Operation] = []
    first = kernel.body.block.first_op
    assert first is not None
    for tile in tiles:
        least = _least(kernel, tensors[tile.extent])
        sizes = _heights(tile.size, least) if dim == 0 else range(lanes, tile.size, lanes)
        bound = tile.index.range()[1]
        if bound is None or not sizes or any(op.is_ancestor(tile.block) for op in chosen):
            continue
        if tile.extent not in values:
            values[tile.extent] = read_extent(arguments.buffer_of(tensors[tile.extent]), bound + tile.size)
            Rewriter.insert_op(values[tile.extent][1], InsertPoint.before(first))
        extent, read = values[tile.extent]
        chosen += [op for op in tile.block.ops if op not in read]
        _choose_size(tile, iterations.in_values(tile.index), extent, sizes, read)
    return arguments.rebuild() if values else kernel


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


def _tile(kernel: KernelOp, block: Block, dim: Literal[0, -1], reader: IndexReader) -> _Tile | None:
    """The tile that a block computes, whose rows (or columns) are independent of each other; None if it does not."""
    tasks = [op for op in block.walk() if isinstance(op, ForOp)]
    direct = [op for op in block.ops if isinstance(op, ForOp)]
    if dim == 0 and (not direct or len(direct) == len(tasks)):
        return None
    if not tasks or (dim == -1 and not any(isinstance(op, AllocOp) for op in block.ops)):
        return None
    size = tasks[0].mapping.data.shape[dim]
    if size < 2 or not all(_goes_over(task, dim, size) for task in tasks):
        return None
    own = {op.buffer for op in (block.ops if dim == 0 else block.walk()) if isinstance(op, AllocOp)}
    shapes = [type_of(buffer).get_shape() for buffer in own]
    if not all(shape and shape[dim] == size for shape in shapes):
        return None
    found: list[tuple[LoadOp | StoreOp, SSAValue]] = []
    for op in block.walk():
        task = _task_of(op, tasks)
        if isinstance(op, AllocOp | ForOp | YieldOp | scf.ForOp | scf.IfOp | scf.YieldOp) or is_pure(op):
            continue
        if not isinstance(op, LoadOp | StoreOp) or task is None:
            return None
        if op.buffer in own and op.indices[dim] is not task.body.block.args[dim]:
            return None
        found.append((op, task.body.block.args[dim]))
    outside = [(op, row) for op, row in found if op.buffer not in own]
    waiting = {op.buffer for op, _ in outside if isinstance(op, StoreOp)} - set(kernel.output_buffers)
    results = [(op, row) for op, row in outside if isinstance(op, StoreOp) and op.buffer not in waiting]
    tile = _required_tile(kernel, _Tile(block, dim, size, const(0), 0), results, reader)
    if tile is None or not all(dim == 0 and _keeps_rows(buffer, tile, outside, reader) for buffer in waiting):
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


def _goes_over(task: ForOp, dim: Literal[0, -1], size: int) -> bool:
    """Whether a task loop goes over so many rows first, or columns last, one after another."""
    shape = task.mapping.data.shape
    return task.worker is None and shape[dim] == size and task.mapping == MapAttr.get(repeat(*shape))


def _task_of(op: Operation, tasks: Sequence[ForOp]) -> ForOp | None:
    parent = op.parent_op()
    while parent is not None:
        if isinstance(parent, ForOp) and parent in tasks:
            return parent
        parent = parent.parent_op()
    return None


def _required_tile(
    kernel: KernelOp, tile: _Tile, stores: Sequence[tuple[StoreOp, SSAValue]], reader: IndexReader
) -> _Tile | None:
    """The tile, if one constraint on rows holds for all that it stores, with the index that is compared."""
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
            if split is not None and split[0] == 1 and not _is_inside(split[1], tile.block):
                found.append((split[1], constraint.extent))
        common = found if common is None else [each for each in common if each in found]
    return replace(tile, index=common[0][0], extent=common[0][1]) if common else None


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


def _choose_size(tile: _Tile, index: Expr, extent: Expr, sizes: Sequence[int], before: Sequence[Operation]) -> None:
    """Puts the tile into branches, the smallest one first, behind some operations."""
    last = tile.block.last_op
    end = last if isinstance(last, scf.YieldOp) else None
    moved = [op for op in tile.block.ops if op is not end and op not in before]
    location, block = moved[0].location, tile.block
    for size in sizes:
        point = InsertPoint.at_end(block) if end is None or block is not tile.block else InsertPoint.before(end)
        if block is not tile.block:
            assert block.last_op is not None
            point = InsertPoint.before(block.last_op)
        emitter = IndexEmitter(point, location=location)
        test = arith.CmpiOp(emitter.emit(extent), emitter.emit(index + (size + 1)), "slt")
        ends = [scf.YieldOp(), scf.YieldOp()]
        short, tall = (Block([each]) for each in ends)
        branch = scf.IfOp(test, [], [short], [tall])
        for op in (test, branch, *ends):
            op.location = location
        Rewriter.insert_op([test, branch], point)
        _insert_shortened(moved, short, tile.dim, size)
        block = tall
    for op in moved:
        op.detach()
        assert block.last_op is not None
        block.insert_op_before(op, block.last_op)


def _insert_shortened(ops: Sequence[Operation], block: Block, dim: Literal[0, -1], size: int) -> None:
    """Copies of operations of a tile, for so many rows or columns, before the end of a block."""
    end = block.last_op
    assert end is not None
    values: dict[SSAValue, SSAValue] = {}
    for op in ops:
        copy = op.clone(values)
        block.insert_op_before(copy, end)
        for inner in list(copy.walk()):
            if isinstance(inner, AllocOp):
                type = type_of(inner.buffer)
                shape = list(type.get_shape())
                shape[dim] = size
                new = AllocOp(MemRefType(type.element_type, shape, type.layout, type.memory_space))
                new.buffer.name_hint, new.location = inner.buffer.name_hint, inner.location
                if inner is copy:
                    values[op.results[0]] = new.buffer
                Rewriter.replace_op(inner, new)
            elif isinstance(inner, ForOp):
                extents = list(inner.mapping.data.shape)
                extents[dim] = size
                inner.mapping = MapAttr.get(repeat(*extents))


__all__ = ["LoopTailTilesPass"]
