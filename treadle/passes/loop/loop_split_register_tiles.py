"""loop-split-register-tiles: tiles that take more registers than there are add their terms by halves of a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects import arith, memref, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, MemRefType, ModuleOp, VectorType
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.effects import is_pure
from treadle.dialects.loop import LoadOp, OpaqueBufferOp, OpaqueOp, Space, SpaceAttr, type_of
from treadle.dialects.loop.accesses import accesses
from treadle.index.algebra import split_linear, stride_along
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Expr, const, var
from treadle.index.reader import IndexReader
from treadle.passes.loop.kernels import constant_index, erase_dead, kernels_of, loops_in, trip_count
from treadle.target import Target

_KEPT = 8
"""The most iterations for which GCC 12 keeps an element that a later one reads (-fpredictive-commoning, of -O3)."""


@dataclass(frozen=True)
class LoopSplitRegisterTilesPass(ModulePass):
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
    %again = loop.opaque %k
    scf.for %r = ... {
      ...  // %at = %again + 16 * %r
      scf.for %n = %c2 to %c4 step %c1 { ... } {loop.unroll}
    } {loop.unroll}
    ```
    so that half as many vectors of B are in registers at once, for one more load of each element of A
    (docs/adr/0053). Only where the rows of A are a constant distance apart: else addresses take the registers that are
    not there, and the loads cost more than what they save. Rows of windows are, where a tile ends before a row of the
    image does: loops are read as multiples of their steps. Where another row reads an element few terms later, the
    first index goes through `loop.opaque`, too. A buffer of the kernel's own is read through `loop.opaque_buffer`:
    beside the address of such a buffer GCC keeps no sum in a register (docs/adr/0060).
    """

    name = "loop-split-register-tiles"
    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = Target.parse(self.target)
        for kernel in kernels_of(op):
            loops = list(loops_in(kernel.body.block))
            readers = IndexReader(), IndexReader(_multiples(loops))
            tiles = [tile for loop in loops if (tile := _tile(loop, target, *readers)) is not None]
            for tile in tiles:
                _halve(tile)
            if tiles:
                erase_dead(kernel.body.block)


@dataclass(frozen=True)
class _Tile:
    """The loops over rows and vectors, and the load of a row's element, `distance` elements behind the row before in
    the buffer as one of one dimension; `first` is the index of row 0. `recurs`: another row reads it few terms later.
    """

    rows: scf.ForOp
    vectors: scf.ForOp
    load: LoadOp
    first: Expr
    distance: int
    recurs: bool


def _multiples(loops: Sequence[scf.ForOp]) -> dict[SSAValue, Expr]:
    """The variables of loops with steps, as multiples of variables without."""
    found: dict[SSAValue, Expr] = {}
    for loop in loops:
        lo, step, trips = constant_index(loop.lb), constant_index(loop.step), trip_count(loop)
        if lo is not None and step is not None and step > 1:
            counter = loop.body.block.args[0]
            found[counter] = var(counter, 0, None if trips is None else max(0, trips - 1)) * step + lo
    return found


def _tile(rows: scf.ForOp, target: Target, reader: IndexReader, multiples: IndexReader) -> _Tile | None:
    """None where the loop is not that over the rows of a tile, or the tile fits the registers. `multiples` reads loops
    as multiples of their steps."""
    inner = [op for op in rows.body.block.ops if isinstance(op, scf.ForOp)]
    if "loop.unroll" not in rows.attributes or len(inner) != 1 or "loop.unroll" not in inner[0].attributes:
        return None
    (vectors,) = inner
    around = rows.parent_op()
    if not isinstance(around, scf.ForOp) or around.iter_args or not _only_adds(rows, vectors, target):
        return None
    loads = [op for op in vectors.body.block.ops if isinstance(op, LoadOp)]
    if len(loads) != 1 or loads[0].predicate is not None or None in (type_of(loads[0].buffer).get_strides() or [None]):
        return None
    row = rows.body.block.args[0]
    linear = split_linear(_place(loads[0], multiples), row)
    distance = None if linear is None else linear[0].as_int()
    if linear is None or not distance or any(_is_inside(each.key, rows) for each in linear[1].vars()):
        return None
    first = _place(loads[0], reader).substitute({row: const(0)})
    advance = stride_along(first, around.body.block.args[0])
    recurs = bool(advance) and distance % advance == 0 and 0 < distance // advance <= _KEPT
    return _Tile(rows, vectors, loads[0], first, distance, recurs)


def _place(load: LoadOp, reader: IndexReader) -> Expr:
    """Where a load reads its buffer as one of one dimension."""
    strides = type_of(load.buffer).get_strides() or ()
    terms = [reader.read(index) * (stride or 0) for index, stride in zip(load.indices, strides, strict=True)]
    return sum(terms, const(0))


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
    if tile.recurs:
        first = _again(first, "once", before)
    again = _again(first, "again", before)
    Rewriter.insert_op(half, before)
    copy = tile.rows.clone()
    Rewriter.insert_op(copy, InsertPoint.after(tile.rows))
    position = list(tile.vectors.body.block.ops).index(tile.load)
    (vectors,) = (op for op in copy.body.block.ops if isinstance(op, scf.ForOp))
    load = list(vectors.body.block.ops)[position]
    assert isinstance(load, LoadOp)
    tile.vectors.operands[1] = half.result
    vectors.operands[0] = half.result
    buffer = _flat(tile.load.buffer)
    _read_at(tile.load, buffer, tile.rows, first, tile.distance)
    _read_at(load, buffer, copy, again, tile.distance)


def _again(index: SSAValue, name: str, point: InsertPoint) -> SSAValue:
    again = OpaqueOp(index)
    again.result.name_hint = name
    Rewriter.insert_op(again, point)
    return again.result


def _flat(buffer: SSAValue) -> SSAValue:
    """The buffer as one of one dimension; one of the kernel's own by another name, which all its tiles share."""
    maker = buffer.owner
    if not isinstance(maker, Operation):
        return buffer
    known = [use.operation for use in buffer.uses if isinstance(use.operation, OpaqueBufferOp)]
    if known:
        return known[0].results[0]
    again = OpaqueBufferOp(buffer)
    again.location = maker.location
    again.result.name_hint = f"{buffer.name_hint or 'buffer'}_again"
    Rewriter.insert_op(again, InsertPoint.after(maker))
    return again.result


def _read_at(load: LoadOp, buffer: SSAValue, rows: scf.ForOp, first: SSAValue, distance: int) -> None:
    """The load reads the element of its row from a buffer of one dimension, `first` being the index of row 0."""
    row = rows.body.block.args[0]
    point = InsertPoint.at_start(rows.body.block)
    index = IndexEmitter(point).emit(var(row, 0, None) * const(distance) + var(first, None, None))
    new = LoadOp(buffer, [index])
    new.result.name_hint, new.location = load.result.name_hint, load.location
    new.attributes |= load.attributes
    Rewriter.replace_op(load, new)


__all__ = ["LoopSplitRegisterTilesPass"]
