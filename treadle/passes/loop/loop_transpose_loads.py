"""loop-transpose-loads: vectors of elements that lie apart are read as rows, and transposed in registers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects import arith, memref, scf, vector
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, MemRefType, ModuleOp, VectorType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.effects import buffers_read, buffers_written, is_load, is_pure
from treadle.dialects.loop import (
    AllocOp,
    FuncOp,
    KernelOp,
    LaneMaskOp,
    Space,
    SpaceAttr,
    StridedLoadOp,
    TransposeOp,
)
from treadle.dialects.loop.accesses import Access, accesses
from treadle.index.algebra import depends_on, stride_along
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Expr, const
from treadle.index.reader import IndexReader
from treadle.passes.loop.kernels import erase_dead, kernels_of, loops_in, trip_count
from treadle.schedules.access_analysis import LEAST_STRIDE


@dataclass(frozen=True)
class LoopTransposeLoadsPass(ModulePass):
    """Tiles loops along which strided loads advance by one element, as many iterations as a vector has lanes: the tile
    is read row by row, and transposed.

    ```mlir
    scf.for %k = %c0 to %c64 step %c1 {
      %at = arith.addi %base, %k : index
      %v = loop.strided_load %B[%at] by 64 : memref<1024xf32>, vector<16xf32>
      memref.store %v, %panel[%k] : memref<64xvector<16xf32>, #loop.space<register>>
    }
    ```
    becomes
    ```mlir
    scf.for %k = %c0 to %c64 step %c16 {
      %tile = loop.alloc : memref<16xvector<16xf32>, #loop.space<register>>
      scf.for %row = %c0 to %c16 step %c1 {
        ... %v = vector.load %B[%at + %row * 64] ...
        memref.store %v, %tile[%row] : memref<16xvector<16xf32>, #loop.space<register>>
      }
      loop.transpose %tile[%c0] : memref<16xvector<16xf32>, #loop.space<register>>
      scf.for %column = %c0 to %c16 step %c1 {
        %v = memref.load %tile[%column] : memref<16xvector<16xf32>, #loop.space<register>>
        ... memref.store %v, %panel[%k + %column] ...
      }
    }
    ```
    The last tile of a number of iterations that is no multiple begins earlier, and does some of them twice. A loop is
    tiled if it counts from 0, runs at least as often as there are lanes, and has nothing but one store, loads of other
    buffers and pure operations inside, in loops of which each is alone in the one around it; and if the store writes
    each element once. Lanes that are masked off make no row; what they get instead is a constant.
    """

    name = "loop-transpose-loads"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in kernels_of(op):
            _tile_loops(kernel)


def _tile_loops(kernel: KernelOp | FuncOp) -> None:
    """Tiles every loop that can be tiled: the innermost ones first, whose tiles stay in their loops."""
    for loop in reversed(list(loops_in(kernel.body.block))):
        nest = _nest(loop, IndexReader())
        if nest is not None:
            nest.tile()


@dataclass(frozen=True)
class _Nest:
    """A loop and those inside of it, each alone in the one around it; `loads` are what is to be transposed."""

    loops: Sequence[scf.ForOp]
    loads: Sequence[StridedLoadOp]
    trips: int

    @property
    def lanes(self) -> int:
        """Of the vectors, and iterations of a tile."""
        return _lanes(self.loads[0])

    def tile(self) -> None:
        """Rewrites the nest."""
        outer, block = self.loops[0], self.loops[-1].body.block
        first = self._outer_step(outer)
        bodies = [loop.body.block for loop in self.loops]
        own = [op for body in bodies for op in body.ops if op is not body.last_op and not isinstance(op, scf.ForOp)]
        last = block.last_op
        assert last is not None
        at = InsertPoint.before(last)
        emitter = IndexEmitter(at, location=outer.location)
        tiles = {load: self._read_tile(load, at, emitter) for load in self.loads}
        columns = _counted(self.lanes, "column", at, emitter)
        columns.location = outer.location
        column = iteration = columns.body.block.args[0]
        if self.trips > self.lanes:
            inner, reader = (
                IndexEmitter(InsertPoint.at_start(columns.body.block), location=outer.location),
                IndexReader(),
            )
            iteration = inner.emit(reader.read(first) + reader.read(column))
            iteration.name_hint = outer.body.block.args[0].name_hint
        end = columns.body.block.last_op
        assert end is not None
        mapped: dict[SSAValue, SSAValue] = {first: iteration}
        for op in own:
            if op is first.owner:
                continue
            if isinstance(op, StridedLoadOp) and op in tiles:
                new: Operation = memref.LoadOp.get(tiles[op], [column])
                new.location = op.location
                new.results[0].name_hint = op.result.name_hint
                mapped[op.result] = new.results[0]
            elif is_pure(op) and not any(operand in mapped for operand in op.operands):
                continue
            else:
                new = op.clone(mapped)
            Rewriter.insert_op(new, InsertPoint.before(end))
        for op in reversed(own):
            if not is_pure(op):
                Rewriter.erase_op(op, safe_erase=False)
        erase_dead(outer.body.block)
        if self.trips == self.lanes:
            _inline(outer)

    def _outer_step(self, loop: scf.ForOp) -> SSAValue:
        """Makes the loop advance by tiles; the first iteration of one, which is what its body uses instead."""
        emitter = IndexEmitter(InsertPoint.before(loop), location=loop.location)
        variable = loop.body.block.args[0]
        uses = list(variable.uses)
        loop.operands[2] = emitter.emit(self.lanes)
        if self.trips % self.lanes == 0:
            return variable
        last = emitter.emit(self.trips - self.lanes)
        first = arith.MinSIOp(variable, last)
        first.location, first.result.name_hint = loop.location, variable.name_hint
        Rewriter.insert_op(first, InsertPoint.at_start(loop.body.block))
        for use in uses:
            use.operation.operands[use.index] = first.result
        return first.result

    def _read_tile(self, load: StridedLoadOp, at: InsertPoint, around: IndexEmitter) -> SSAValue:
        """The tile of a load, transposed, in registers of its own."""
        reader = IndexReader()
        type = load.result.type
        assert isinstance(type, VectorType)
        alloc = AllocOp(MemRefType(type, [self.lanes], memory_space=SpaceAttr(Space.REGISTER)))
        alloc.location, alloc.buffer.name_hint = load.location, "tile"
        Rewriter.insert_op(alloc, at)
        rows = _counted(self.lanes, "row", at, around)
        rows.location = load.location
        row = rows.body.block.args[0]
        end = rows.body.block.last_op
        assert end is not None
        point = InsertPoint.before(end)
        emitter = IndexEmitter(point, location=load.location)
        indices = [reader.read(index) for index in load.indices]
        indices[-1] += reader.read(row) * load.stride.value.data
        where = [emitter.emit(index) for index in indices]
        read = vector.LoadOp(load.buffer, where, type)
        read.location, read.attributes = load.location, load.attributes | read.attributes
        value = read.result
        value.name_hint = load.result.name_hint
        if load.mask is None or load.otherwise is None:
            Rewriter.insert_op(read, point)
        else:
            value = _guarded(read, load.mask.owner, row, load.otherwise, point)
        store = memref.StoreOp.get(value, alloc.buffer, [row])
        transpose = TransposeOp(alloc.buffer, [around.emit(0)])
        store.location = transpose.location = load.location
        Rewriter.insert_op(store, point)
        Rewriter.insert_op(transpose, at)
        return alloc.buffer


def _nest(loop: scf.ForOp, reader: IndexReader) -> _Nest | None:
    """The nest of a loop that can be tiled, if it has anything to transpose."""
    trips = trip_count(loop)
    loops = list(_chain(loop))
    if trips is None or reader.read(loop.lb) != 0 or reader.read(loop.step) != 1 or not loops:
        return None
    block, variable = loops[-1].body.block, loop.body.block.args[0]
    # What is computed otherwise than by arithmetic may depend on the variable, too.
    computed = IndexReader(functions=True)
    loads = [op for op in block.ops if isinstance(op, StridedLoadOp) and _is_row(op, variable, computed)]
    if not loads or trips < _lanes(loads[0]) or not _is_independent(loops, reader):
        return None
    return _Nest(loops, loads, trips)


def _chain(loop: scf.ForOp) -> Iterator[scf.ForOp]:
    """A loop and those inside of it; none where more than one stands in a block, or anything else has a region."""
    found = [loop]
    while True:
        if loop.iter_args:
            return
        nested = [op for op in loop.body.block.ops if op.regions]
        if not nested:
            break
        inner = nested[0]
        beside = [op for op in loop.body.block.ops if op is not inner and op is not loop.body.block.last_op]
        if len(nested) > 1 or not isinstance(inner, scf.ForOp) or not all(map(is_pure, beside)):
            return
        loop = inner
        found.append(loop)
    yield from found


def _is_row(load: StridedLoadOp, variable: SSAValue, reader: IndexReader) -> bool:
    """Whether each lane reads consecutive elements in consecutive iterations, and is masked off in all or none."""
    *outer, last = [reader.read(index) for index in load.indices]
    if abs(load.stride.value.data) < LEAST_STRIDE or stride_along(last, variable) != 1:
        return False
    if any(depends_on(index, variable) for index in outer):
        return False
    if load.mask is None:
        return True
    mask = load.mask.owner
    if not isinstance(mask, LaneMaskOp) or not _is_splat(load.otherwise):
        return False
    return not any(depends_on(reader.read(bound), variable) for bound in (mask.lo, mask.hi))


def _is_splat(value: SSAValue | None) -> bool:
    """Whether a vector is one constant in all lanes."""
    op = None if value is None else value.owner
    if isinstance(op, vector.BroadcastOp):
        return isinstance(op.source.owner, arith.ConstantOp)
    number = op.value if isinstance(op, arith.ConstantOp) else None
    return isinstance(number, DenseIntOrFPElementsAttr) and number.is_splat()


def _is_independent(loops: Sequence[scf.ForOp], reader: IndexReader) -> bool:
    """Whether iterations may run in any order, and twice: of the innermost block, one operation stores, each element
    once, in a buffer that is not read there."""
    own = [op for op in loops[-1].body.block.ops if op is not loops[-1].body.block.last_op and not is_pure(op)]
    stores = [op for op in own if isinstance(op, vector.StoreOp | vector.MaskedStoreOp | memref.StoreOp)]
    if len(stores) != 1 or not all(op in stores or is_load(op) for op in own):
        return False
    written = buffers_written(stores[0])
    return not any(written & buffers_read(op) for op in own) and _writes_once(accesses(stores[0])[0], loops, reader)


def _writes_once(access: Access, loops: Sequence[scf.ForOp], reader: IndexReader) -> bool:
    """Whether no two iterations of some loops write one element."""
    place: Expr = const(0)
    for index, stride in zip(access.indices, access.strides, strict=True):
        place += reader.read(index) * stride
    reach, steps = access.elements, list[tuple[int, int]]()
    for loop in loops:
        step, trips = stride_along(place, loop.body.block.args[0]), trip_count(loop)
        if step is None or trips is None:
            return False
        steps.append((abs(step), trips))
    for step, trips in sorted(steps):
        if trips > 1 and step < reach:
            return False
        reach = max(reach, step * trips)
    return True


def _guarded(
    read: vector.LoadOp, mask: Operation | Block, row: SSAValue, otherwise: SSAValue, point: InsertPoint
) -> SSAValue:
    """A row that is read if its lane is on."""
    assert isinstance(mask, LaneMaskOp)
    parts: list[Operation] = [arith.CmpiOp(row, mask.hi, "slt")]
    if IndexReader().read(mask.lo) != 0:
        parts += [arith.CmpiOp(row, mask.lo, "sge")]
        parts.append(arith.AndIOp(parts[0].results[0], parts[1].results[0]))
    taken, skipped = scf.YieldOp(read.result), scf.YieldOp(otherwise)
    branch = scf.IfOp(parts[-1].results[0], [otherwise.type], [read, taken], [skipped])
    for op in (*parts, taken, skipped, branch):
        op.location = read.location
    for op in (*parts, branch):
        Rewriter.insert_op(op, point)
    branch.results[0].name_hint = read.result.name_hint
    return branch.results[0]


def _inline(loop: scf.ForOp) -> None:
    """Puts the body of a loop that runs once in its place."""
    block = loop.body.block
    block.args[0].replace_all_uses_with(loop.lb)
    assert block.last_op is not None
    Rewriter.erase_op(block.last_op)
    Rewriter.inline_block(block, InsertPoint.before(loop), [loop.lb])
    Rewriter.erase_op(loop)


def _counted(trips: int, name: str, at: InsertPoint, emitter: IndexEmitter) -> scf.ForOp:
    """An empty loop, which is inserted; the emitter writes there, too."""
    zero, end, one = (emitter.emit(each) for each in (0, trips, 1))
    block = Block(arg_types=[zero.type])
    block.args[0].name_hint = name
    block.add_op(scf.YieldOp())
    loop = scf.ForOp(zero, end, one, [], block)
    Rewriter.insert_op(loop, at)
    return loop


def _lanes(load: StridedLoadOp) -> int:
    assert isinstance(load.result.type, VectorType)
    return prod(load.result.type.get_shape())


__all__ = ["LoopTransposeLoadsPass"]
