"""loop-factor-sums: scales of blocks multiply the sum of a block, not each of its terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects import arith, memref, scf, vector
from xdsl.dialects.builtin import Float32Type, IndexType, IntegerType, ModuleOp, VectorType, f32
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.effects import buffers_read, buffers_written, is_load, is_pure
from treadle.dialects.loop import AllocOp, LaneConvertOp, Space, SpaceAttr, type_of
from treadle.dialects.scalar import number_op
from treadle.passes.loop.kernels import erase_dead, kernels_of, trip_count
from treadle.target import Target

_LEAST_TERMS = 8
"""Terms of a block from which on one product for each saves more than the second sum costs: it is set to 0 and read
once a block."""


@dataclass(frozen=True)
class LoopFactorSumsPass(ModulePass):
    """Takes a factor that does not change in a loop out of the sums of integers times something that the loop adds up.

    ```mlir
    scf.for %k = %c0 to %c32 step %c1 {
      scf.for %n = %c0 to %c4 step %c1 {
        %s = vector.load %scales[%n * 16] : memref<64xf32>, vector<16xf32>
        %w = arith.mulf %number, %s : vector<16xf32>
        %t = arith.mulf %a, %w : vector<16xf32>
        ... memref.store (%sum + %t), %acc[%n] ...
      } {loop.unroll}
    }
    ```
    becomes
    ```mlir
    %part = loop.alloc : memref<4xvector<16xf32>, #loop.space<register>>   // set to 0
    scf.for %k = %c0 to %c32 step %c1 {
      scf.for %n = %c0 to %c4 step %c1 {
        %t = arith.mulf %a, %number : vector<16xf32>
        ... memref.store (%old + %t), %part[%n] ...
      } {loop.unroll}
    }
    scf.for %n = %c0 to %c4 step %c1 {
      %s = vector.load %scales[%n * 16] : memref<64xf32>, vector<16xf32>
      ... memref.store (%sum + %part[%n] * %s), %acc[%n] ...
    } {loop.unroll}
    ```
    The other factor is an integer, converted: with a float, the product could exceed the largest number although scale
    and float together do not. Only where both tiles of sums stay in registers.
    """

    name = "loop-factor-sums"
    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = Target.parse(self.target)
        for kernel in kernels_of(op):
            stores = [inner for inner in kernel.body.walk() if isinstance(inner, memref.StoreOp)]
            sums = [found for store in stores if (found := _sum(store, target)) is not None]
            for each in sums:
                each.rewrite()
            if sums:
                erase_dead(kernel.body.block)


@dataclass(frozen=True)
class _Sum:
    """`acc[...] += number * scale * rest`, in `tile` loops (outermost first), which stand in `loop`, in which the scale
    does not change.

    scaled: the product of number and scale
    slice:  what computes the scale in the tile, in order
    """

    store: memref.StoreOp
    read: memref.LoadOp
    scaled: arith.MulfOp
    number: SSAValue
    scale: SSAValue
    tile: Sequence[scf.ForOp]
    loop: scf.ForOp
    slice: Sequence[Operation]

    def rewrite(self) -> None:
        acc = self.store.memref
        alloc = AllocOp(type_of(acc))
        alloc.buffer.name_hint = "part"
        Rewriter.insert_op(alloc, InsertPoint.before(self.loop))

        def zero(b: Builder, indices: Sequence[SSAValue], copied: dict[SSAValue, SSAValue]) -> None:
            element = type_of(acc).get_element_type()
            zeros = b.insert(vector.BroadcastOp(b.insert(number_op(0, f32)).results[0], element))  # pyright: ignore
            b.insert(memref.StoreOp.get(zeros.results[0], alloc.buffer, indices))

        def add(b: Builder, indices: Sequence[SSAValue], copied: dict[SSAValue, SSAValue]) -> None:
            part = b.insert(memref.LoadOp.get(alloc.buffer, indices)).results[0]
            scaled = b.insert(arith.MulfOp(part, copied.get(self.scale, self.scale))).result
            old = b.insert(memref.LoadOp.get(acc, indices)).results[0]
            b.insert(memref.StoreOp.get(b.insert(arith.AddfOp(old, scaled)).result, acc, indices))

        self._write(InsertPoint.before(self.loop), zero, [])
        self._write(InsertPoint.after(self.loop), add, self.slice)
        self.scaled.result.replace_all_uses_with(self.number)
        Rewriter.erase_op(self.scaled)
        self.read.operands[0] = self.store.operands[1] = alloc.buffer

    def _write(
        self,
        point: InsertPoint,
        body: Callable[[Builder, Sequence[SSAValue], dict[SSAValue, SSAValue]], None],
        slice: Sequence[Operation],
    ) -> None:
        """The tile's loops around copies of `slice` and what `body` writes."""
        copied, builder = dict[SSAValue, SSAValue](), Builder(point)
        for old in self.tile:
            block = Block([end := scf.YieldOp()], arg_types=[IndexType()])
            new = builder.insert(scf.ForOp(old.lb, old.ub, old.step, [], Region(block)))
            new.attributes |= old.attributes
            block.args[0].name_hint = old.body.block.args[0].name_hint
            copied[old.body.block.args[0]] = block.args[0]
            builder = Builder(InsertPoint.before(end))
        for op in slice:
            builder.insert(op.clone(copied))
        body(builder, [copied.get(index, index) for index in self.store.indices], copied)


def _sum(store: memref.StoreOp, target: Target) -> _Sum | None:
    """What a store adds to an element of a tile of vectors, with the outermost loop that a factor can leave."""
    acc, added = store.memref, store.value.owner
    type = type_of(acc)
    element = type.get_element_type()
    is_tile = isinstance(acc.owner, AllocOp) and type.memory_space == SpaceAttr(Space.REGISTER)
    if not is_tile or not isinstance(element, VectorType) or not isinstance(added, arith.AddfOp):
        return None
    if not isinstance(element.element_type, Float32Type) or not _fits(type.get_shape(), target):
        return None
    tile, around = _loops(store, acc.owner)
    for old, term in ((added.lhs, added.rhs), (added.rhs, added.lhs)):
        read = old.owner
        if not isinstance(read, memref.LoadOp) or read.memref is not acc or tuple(read.indices) != tuple(store.indices):
            continue
        if not tile or any(not _stays(index, tile) for index in store.indices):
            return None
        for scaled, number, scale in _scalings(term):
            found = _outermost(scale, tile, around, (store, read))
            if found is not None:
                return _Sum(store, read, scaled, number, scale, tile, *found)
    return None


def _fits(shape: Sequence[int], target: Target) -> bool:
    """Whether two tiles of sums, a row of weights and a broadcast element are in registers."""
    return 2 * prod(shape) + shape[-1] + 1 <= target.vector_registers


def _loops(store: Operation, alloc: object) -> tuple[list[scf.ForOp], list[scf.ForOp]]:
    """The unrolled loops around a store, outermost first, and those around them up to where the tile is made, innermost
    first."""
    tile, around = list[scf.ForOp](), list[scf.ForOp]()
    home = alloc.parent if isinstance(alloc, Operation) else None
    op = store.parent_op()
    while isinstance(op, scf.ForOp) and not op.iter_args and not around and "loop.unroll" in op.attributes:
        tile.insert(0, op)
        op = op.parent_op()
    while isinstance(op, scf.ForOp) and not op.iter_args:
        around.append(op)
        if op.parent is home:
            break
        op = op.parent_op()
    return tile, around


def _stays(value: SSAValue, tile: Sequence[scf.ForOp]) -> bool:
    """Whether a value is a variable of the tile's loops, or comes from outside of them."""
    return any(value is loop.body.block.args[0] for loop in tile) or not _is_inside(value, tile[0])


def _scalings(term: SSAValue) -> list[tuple[arith.MulfOp, SSAValue, SSAValue]]:
    """Products of a converted integer and another factor, among the factors of a term that nothing else reads."""
    found = list[tuple[arith.MulfOp, SSAValue, SSAValue]]()
    product = term.owner
    if not isinstance(product, arith.MulfOp) or not term.has_one_use():
        return []
    for one, other in ((product.lhs, product.rhs), (product.rhs, product.lhs)):
        if _is_integer(one):
            found.append((product, one, other))
        found += _scalings(one)
    return found


def _is_integer(value: SSAValue) -> bool:
    op = value.owner
    if not isinstance(op, LaneConvertOp) or not isinstance(op.source.type, VectorType):
        return False
    return isinstance(op.source.type.element_type, IntegerType)


def _outermost(
    scale: SSAValue, tile: Sequence[scf.ForOp], around: Sequence[scf.ForOp], own: Sequence[Operation]
) -> tuple[scf.ForOp, list[Operation]] | None:
    """The outermost loop in which a scale does not change and the tile is touched by `own` alone, if it has enough
    terms, with what computes the scale inside the tile."""
    best, terms = None, 1
    for loop in around:
        trips, slice = trip_count(loop), _slice(scale, tile, loop)
        acc = own[0].operands[1]
        others = [use.operation for use in acc.uses if use.operation not in own]
        if trips is None or slice is None or any(loop.body.block.is_ancestor(other) for other in others):
            break
        if any(_is_inside(bound, loop) for each in tile for bound in (each.lb, each.ub, each.step)):
            break
        terms *= trips
        best = (loop, slice) if terms >= _LEAST_TERMS else None
    return best


def _slice(value: SSAValue, tile: Sequence[scf.ForOp], loop: scf.ForOp) -> list[Operation] | None:
    """What computes a value inside the tile's loops, in order; None where it changes in `loop`."""
    found = dict[Operation, None]()
    written = buffers_written(loop)

    def visit(each: SSAValue) -> bool:
        if any(each is one.body.block.args[0] for one in tile) or not _is_inside(each, loop):
            return True
        op = each.owner
        if not isinstance(op, Operation) or not _is_inside(each, tile[0]):
            return False
        if op in found:
            return True
        if not (is_pure(op) or (is_load(op) and written.isdisjoint(buffers_read(op)))):
            return False
        if not all(visit(operand) for operand in op.operands):
            return False
        found[op] = None
        return True

    return list(found) if visit(value) else None


def _is_inside(value: SSAValue, loop: scf.ForOp) -> bool:
    """Whether a value is computed in a loop, or is its variable."""
    home = value.owner if isinstance(value.owner, Block) else value.owner.parent
    return home is not None and (home is loop.body.block or loop.body.block.is_ancestor(home))


__all__ = ["LoopFactorSumsPass"]
