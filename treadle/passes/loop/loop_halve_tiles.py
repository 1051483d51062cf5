"""loop-halve-tiles: tiles that take more registers than there are add their terms by halves of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects import arith, memref, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, MemRefType, ModuleOp, NoneAttr, VectorType
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.effects import is_pure
from treadle.dialects.loop import AgainOp, LoadOp, Space, SpaceAttr, type_of
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Expr, const, var
from treadle.index.linear import split_linear
from treadle.index.reader import IndexReader
from treadle.passes.loop.accesses import accesses
from treadle.passes.loop.counted_loops import loops_in, trip_count
from treadle.passes.loop.kernels import constant_index, erase_dead, kernels_of
from treadle.target import Target


@dataclass(frozen=True)
class LoopHalveTilesPass(ModulePass):
    """Writes the loop over a tile's rows twice, for the first and the last vectors of a row, where all vectors of the
    tile, those of a row and a broadcast element are more than the target's registers.

    ```mlir
    scf.for %r = %c0 to %c7 step %c1 {
      ...  // %at = %k + 16 * %r
      scf.for %n = %c0 to %c4 step %c1 {
        ... loop.load %A[%at] ... vector.load %B[...] ... memref.store %sum, %acc[%r, %n] ...
      } {loop.unroll}
    } {loop.unroll}
    ```
    becomes, with 32 registers,
    ```mlir
    scf.for %r = ... { ... scf.for %n = %c0 to %c2 step %c1 { ... } {loop.unroll} } {loop.unroll}
    %again = loop.again %k
    scf.for %r = ... {
      ...  // %at = %again + 16 * %r
      scf.for %n = %c2 to %c4 step %c1 { ... } {loop.unroll}
    } {loop.unroll}
    ```
    so that half as many vectors of B are in registers at once, for one more load of each element of A
    (docs/adr/0053). Only where the rows of A are a constant distance apart in a buffer of one dimension: else addresses
    take the registers that are not there, and the loads cost more than what they save.
    """

    name = "loop-halve-tiles"
    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = Target.parse(self.target)
        for kernel in kernels_of(op):
            reader = IndexReader()
            tiles = [tile for loop in loops_in(kernel.body.block) if (tile := _tile(loop, target, reader)) is not None]
            for tile in tiles:
                _halve(tile)
            if tiles:
                erase_dead(kernel.body.block)


@dataclass(frozen=True)
class _Tile:
    """The loops over rows and vectors, and the load of a row's element, `distance` elements behind the row before;
    `first` is the index of row 0."""

    rows: scf.ForOp
    vectors: scf.ForOp
    load: LoadOp
    first: Expr
    distance: int


def _tile(rows: scf.ForOp, target: Target, reader: IndexReader) -> _Tile | None:
    """None where the loop is not that over the rows of a tile, or the tile fits the registers."""
    inner = [op for op in rows.body.block.ops if isinstance(op, scf.ForOp)]
    if "loop.unroll" not in rows.attributes or len(inner) != 1 or "loop.unroll" not in inner[0].attributes:
        return None
    (vectors,) = inner
    around = rows.parent_op()
    if not isinstance(around, scf.ForOp) or around.iter_args or not _only_adds(rows, vectors, target):
        return None
    scalars = [op for op in vectors.body.block.ops if isinstance(op, LoadOp)]
    loads = [op for op in scalars if type_of(op.buffer).memory_space == NoneAttr()]
    if len(loads) != 1 or loads[0].predicate is not None or len(loads[0].indices) != 1:
        return None
    row, (index,) = rows.body.block.args[0], loads[0].indices
    linear = split_linear(reader.read(index), row)
    distance = None if linear is None else linear[0].as_int()
    if linear is None or not distance or any(_is_inside(each.key, rows) for each in linear[1].vars()):
        return None
    return _Tile(rows, vectors, loads[0], linear[1], distance)


def _only_adds(rows: scf.ForOp, vectors: scf.ForOp, target: Target) -> bool:
    """Whether the loops do nothing but to change elements of a tile of vectors that is too large."""
    others = [op for op in (*rows.body.block.ops, *vectors.body.block.ops) if op is not vectors]
    stores = [op for op in others if isinstance(op, memref.StoreOp)]
    if len(stores) != 1 or not all(op in stores or is_pure(op) or accesses(op) or _ends(op) for op in others):
        return False
    (store,) = stores
    type = cast(MemRefType, store.memref.type)
    element = type.get_element_type()
    height, width = trip_count(rows), trip_count(vectors)
    is_tile = type.memory_space == SpaceAttr(Space.REGISTER) and type.get_shape() == (height, width)
    if not is_tile or height is None or width is None or not isinstance(element, VectorType):
        return False
    if element.get_shape() != (target.lanes,) or constant_index(vectors.lb) != 0:
        return False
    return height * width <= target.vector_registers < (height + 1) * width + 1


def _ends(op: Operation) -> bool:
    return isinstance(op, scf.YieldOp) and not op.operands


def _is_inside(value: object, loop: scf.ForOp) -> bool:
    """Whether a value is computed in a loop."""
    owner = value.owner if isinstance(value, SSAValue) else None
    while owner is not None:
        if owner is loop:
            return True
        owner = owner.parent_op()
    return False


def _halve(tile: _Tile) -> None:
    """The loop over rows goes on with the first vectors; a copy behind it has the last ones."""
    before = InsertPoint.before(tile.rows)
    width = trip_count(tile.vectors)
    assert width is not None
    half = arith.ConstantOp(IntegerAttr(width // 2, IndexType()))
    half.result.name_hint = f"c{width // 2}"
    first = IndexEmitter(before).emit(tile.first)
    again = AgainOp(first)
    again.result.name_hint = "again"
    Rewriter.insert_op([half, again], before)
    copy = tile.rows.clone()
    Rewriter.insert_op(copy, InsertPoint.after(tile.rows))
    position = list(tile.vectors.body.block.ops).index(tile.load)
    (vectors,) = (op for op in copy.body.block.ops if isinstance(op, scf.ForOp))
    load = list(vectors.body.block.ops)[position]
    assert isinstance(load, LoadOp)
    tile.vectors.operands[1] = half.result
    vectors.operands[0] = half.result
    _read_at(tile.load, tile.rows, first, tile.distance)
    _read_at(load, copy, again.result, tile.distance)


def _read_at(load: LoadOp, rows: scf.ForOp, first: SSAValue, distance: int) -> None:
    """The load reads the element of its row, `first` being the index of row 0."""
    row = rows.body.block.args[0]
    point = InsertPoint.at_start(rows.body.block)
    load.operands[1] = IndexEmitter(point).emit(var(row, 0, None) * const(distance) + var(first, None, None))


__all__ = ["LoopHalveTilesPass"]
