"""loop-pack-accesses: consecutive elements that an unrolled loop accesses move together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf, vector
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    FloatAttr,
    IndexType,
    IntegerAttr,
    ModuleOp,
    VectorType,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.loop import AllocOp, LoadOp, Space, SpaceAttr, StoreOp, buffer_type, type_of, zeros
from treadle.passes.loop.access_groups import Elements
from treadle.passes.loop.counted_loops import loops_in, trip_count
from treadle.passes.loop.emit_index import IndexReader
from treadle.passes.loop.kernels import constant_index, id_ranges, kernels_of

_WIDEST_BYTES = 16
_SIZES: dict[type[Attribute], int] = {Float16Type: 2, BFloat16Type: 2, Float32Type: 4}
"""Bytes of the elements that are packed."""


@dataclass(frozen=True)
class LoopPackAccessesPass(ModulePass):
    """Loads before a loop that `loop.vector` marks, and stores after it, whole vectors of what its iterations load and
    store one by one, where those are consecutive, aligned, and accessed under one predicate.

    ```mlir
    scf.for %e = %c0 to %c8 step %c1 {
      %v = loop.load %tile[%i, %e] : memref<16x8xf16, #loop.space<shared>>
      %w = arith.mulf %v, %two : f16
      loop.store %w, %C[%e] where %p : memref<8xf16>
    } {loop.vector, loop.unroll}
    ```
    becomes, with register buffers `%a` and `%b` of 8 elements,
    ```mlir
    %0 = vector.load %tile[%i, %c0] : memref<16x8xf16, #loop.space<shared>>, vector<8xf16>
    vector.store %0, %a[%c0] : memref<8xf16, #loop.space<register>>, vector<8xf16>
    scf.for %e ... { %v = loop.load %a[%e] ... loop.store %w, %b[%e] ... }
    scf.if %p {
      %1 = vector.load %b[%c0] : memref<8xf16, #loop.space<register>>, vector<8xf16>
      vector.store %1, %C[%c0] : memref<8xf16>, vector<8xf16>
    }
    ```
    Buffers that the loop both reads and writes stay as they are, and so do loads with an `else` other than 0.
    """

    name = "loop-pack-accesses"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in kernels_of(op):
            reader = IndexReader(id_ranges(kernel).get)
            for loop in list(loops_in(kernel.body.block)):
                if "loop.vector" in loop.attributes:
                    _pack(loop, reader)


def _pack(loop: scf.ForOp, reader: IndexReader) -> None:
    trips = trip_count(loop)
    if trips is None or trips < 2 or constant_index(loop.lb) != 0 or constant_index(loop.step) != 1:
        return
    block = loop.body.block
    if any(op.regions for op in block.ops):
        return
    elements = Elements(reader, block, block.args[0], trips)
    accesses = [op for op in block.ops if isinstance(op, LoadOp | StoreOp)]
    read = {op.buffer for op in accesses if isinstance(op, LoadOp)}
    written = {op.buffer for op in accesses if isinstance(op, StoreOp)}
    for access in accesses:
        width = 1 if access.buffer in read & written else _width(access, elements)
        if width == 1:
            continue
        if isinstance(access, LoadOp):
            _pack_load(loop, access, elements, width)
        else:
            _pack_store(loop, access, elements, width)


def _width(access: LoadOp | StoreOp, elements: Elements) -> int:
    """Elements that one vector access takes."""
    type = type_of(access.buffer)
    size = _SIZES.get(type.get_element_type().__class__)
    if size is None or type.memory_space == SpaceAttr(Space.REGISTER):
        return 1
    if access.predicate is not None and not elements.computes(access.predicate):
        return 1
    if isinstance(access, LoadOp) and not _is_zero(access.otherwise):
        return 1
    return elements.widest_group(access.indices, access.predicate, _WIDEST_BYTES // size)


def _is_zero(value: SSAValue | None) -> bool:
    if value is None:
        return True
    op = value.owner
    return isinstance(op, arith.ConstantOp) and isinstance(op.value, FloatAttr) and str(op.value.value.data) == "0.0"


class _Writer:
    """Inserts operations at one place."""

    def __init__(self, place: InsertPoint, source: Operation):
        self._place, self._source = place, source

    def put(self, op: Operation) -> Sequence[SSAValue]:
        """The results of the operation, inserted."""
        op.location = self._source.location
        Rewriter.insert_op(op, self._place)
        return op.results

    def number(self, value: int) -> SSAValue:
        """A constant index."""
        return self.put(arith.ConstantOp(IntegerAttr(value, IndexType())))[0]

    def when(self, predicate: SSAValue | None, then: Sequence[Operation], otherwise: Sequence[Operation]) -> SSAValue:
        """The first operation's result after `then`, under a predicate; else that of `otherwise`."""
        for op in (*then, *otherwise):
            op.location = self._source.location
        if predicate is None:
            for op in then:
                Rewriter.insert_op(op, self._place)
            return then[0].results[0]
        results = [op.results[0] for op in otherwise[-1:]]
        taken = scf.YieldOp(*([then[0].results[0]] if results else []))
        skipped = [*otherwise, scf.YieldOp(*results)] if results else []
        branches = [Block([*then, taken])], [Block(skipped)] if skipped else None
        values = self.put(scf.IfOp(predicate, [r.type for r in results], *branches))
        return values[0] if values else then[0].results[0]


def _register_buffer(loop: scf.ForOp, access: LoadOp | StoreOp, trips: int) -> SSAValue:
    element = type_of(access.buffer).get_element_type()
    alloc = AllocOp(buffer_type((trips,), element, Space.REGISTER))
    _Writer(InsertPoint.before(loop), access).put(alloc)
    alloc.buffer.name_hint = f"{(access.buffer.name_hint or 'x').lower()}_values"
    return alloc.buffer


def _pack_load(loop: scf.ForOp, load: LoadOp, elements: Elements, width: int) -> None:
    """Loads vectors before the loop, which then reads registers."""
    registers = _register_buffer(loop, load, elements.extent)
    place = InsertPoint.before(loop)
    writer = _Writer(place, load)
    type = VectorType(load.result.type, [width])
    for first in range(0, elements.extent, width):
        number = writer.number(first)
        indices = [elements.at(index, number, place) for index in load.indices]
        predicate = None if load.predicate is None else elements.at(load.predicate, number, place)
        nothing = arith.ConstantOp(zeros(type))
        found = writer.when(predicate, [vector.LoadOp(load.buffer, indices, type)], [nothing])
        writer.put(vector.StoreOp(found, registers, [number]))
    new = LoadOp(registers, [elements.variable])
    new.location = load.location
    new.result.name_hint = load.result.name_hint
    Rewriter.replace_op(load, new)


def _pack_store(loop: scf.ForOp, store: StoreOp, elements: Elements, width: int) -> None:
    """Stores registers in the loop, and vectors after it."""
    registers = _register_buffer(loop, store, elements.extent)
    place = InsertPoint.after(loop)
    writer = _Writer(place, store)
    type = VectorType(store.value.type, [width])
    for first in range(0, elements.extent, width):
        number = writer.number(first)
        indices = [elements.at(index, number, place) for index in store.indices]
        predicate = None if store.predicate is None else elements.at(store.predicate, number, place)
        found = vector.LoadOp(registers, [number], type)
        writer.when(predicate, [found, vector.StoreOp(found.result, store.buffer, indices)], [])
    new = StoreOp(store.value, registers, [elements.variable])
    new.location = store.location
    Rewriter.replace_op(store, new, [])


__all__ = ["LoopPackAccessesPass"]
