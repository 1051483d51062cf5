"""loop-vectorize-accesses: consecutive elements of a short loop move in one vector access."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import scf, vector
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.effects import accesses_are_known, buffers_written, is_pure
from treadle.dialects.loop import AllocOp, FuncOp, KernelOp, LoadOp, Space, SpaceAttr, StoreOp, buffer_type
from treadle.index.reader import IndexReader
from treadle.passes.loop.counted_loops import loops_in, trip_count
from treadle.passes.loop.kernels import constant_index, kernels_of
from treadle.passes.loop.vector_access import AccessVectorizer, VectorAccess, Writer


@dataclass(frozen=True)
class LoopVectorizeAccessesPass(ModulePass):
    """Combines the accesses of short loops to global and shared memory into vector accesses of up to `bytes` bytes.

    ```mlir
    scf.for %j = %c0 to %c4 step %c1 {
      %i = arith.addi %base, %j : index          // %base is a multiple of 4
      %x = loop.load %X[%i] : memref<64xf32>
      %y = math.exp %x : f32
      loop.store %y, %Y[%i] : memref<64xf32>
    }
    ```
    becomes
    ```mlir
    %x4 = loop.alloc : memref<4xf32, #loop.space<register>>
    %0 = vector.load %X[%base] : memref<64xf32>, vector<4xf32>
    vector.store %0, %x4[%c0] : ...
    %y4 = loop.alloc : memref<4xf32, #loop.space<register>>
    scf.for %j = %c0 to %c4 step %c1 {
      %x = loop.load %x4[%j] : ...
      %y = math.exp %x : f32
      loop.store %y, %y4[%j] : ...
    }
    %1 = vector.load %y4[%c0] : ...
    vector.store %1, %Y[%base] : memref<64xf32>, vector<4xf32>
    ```
    and a loop that only copies becomes one load and one store. Accesses are combined where their elements are
    consecutive and aligned, their predicates agree, and no other access in the loop depends on their order. Buffers of
    arguments start at multiples of `bytes`. Loops of more than `elements` iterations stay.
    """

    name = "loop-vectorize-accesses"
    bytes: int = 16
    elements: int = 16

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in kernels_of(op):
            reader = IndexReader()
            for loop in list(loops_in(kernel.body.block)):
                trips = trip_count(loop) or 0
                counts = constant_index(loop.lb) == 0 and constant_index(loop.step) == 1
                if counts and 1 < trips <= self.elements and accesses_are_known(loop):
                    _LoopRewriter(kernel, loop, trips, reader, self.bytes).rewrite()


class _LoopRewriter:
    """Vectorizes the accesses of one loop."""

    def __init__(self, kernel: KernelOp | FuncOp, loop: scf.ForOp, trips: int, reader: IndexReader, most: int):
        self._kernel, self._loop, self._trips, self._most = kernel, loop, trips, most
        self._variable = loop.body.block.args[0]
        self._vectorizer = AccessVectorizer(reader, loop, trips)

    def rewrite(self) -> None:
        """Replaces a copying loop by vector accesses, else stages the elements of combined accesses in registers."""
        copied = self._copied()
        if copied is not None:
            load, store = copied
            before = self._writer(InsertPoint.before(self._loop))
            for start in load.starts:
                self._store(store, start, self._load(load, start, before), before)
            Rewriter.erase_op(self._loop)
            return
        for op in [op for op in self._loop.body.block.ops if isinstance(op, LoadOp | StoreOp)]:
            access = None if _space(op.buffer) is Space.REGISTER else self._vectorizer.widest(op, self._most)
            if access is not None and self._may_move(op):
                self._stage(access)

    def _copied(self) -> tuple[VectorAccess, VectorAccess] | None:
        """The load and the store of a loop that does nothing else, if both are vectors of the same length."""
        memory = [op for op in self._loop.body.block.ops if not is_pure(op) and not isinstance(op, scf.YieldOp)]
        if self._loop.iter_args or len(memory) != 2:
            return None
        load, store = memory
        if not isinstance(load, LoadOp) or not isinstance(store, StoreOp) or store.value is not load.result:
            return None
        if load.buffer is store.buffer or not load.result.has_one_use():
            return None
        if {_space(load.buffer), _space(store.buffer)} == {Space.REGISTER}:
            return None
        both = set(self._vectorizer.lanes_of(load, self._most)) & set(self._vectorizer.lanes_of(store, self._most))
        if not both:
            return None
        return VectorAccess(load, max(both), self._trips), VectorAccess(store, max(both), self._trips)

    def _may_move(self, op: LoadOp | StoreOp) -> bool:
        """Whether a load may come before the loop, or a store after it, as far as the loop's other accesses go."""
        others = [o for o in self._loop.body.block.walk() if o is not op and op.buffer in o.operands]
        if isinstance(op, StoreOp):
            return not others
        return not any(op.buffer in buffers_written(o) for o in others)

    def _stage(self, access: VectorAccess) -> None:
        """Moves the vectors between memory and registers outside the loop; inside, only registers are accessed."""
        op, loop = access.op, self._loop
        before = self._writer(InsertPoint.before(loop))
        staged = AllocOp(buffer_type((self._trips,), access.type.get_element_type(), Space.REGISTER))
        staged.buffer.name_hint = f"{op.buffer.name_hint or 'x'}_vector".lower()
        before.insert(staged)
        if isinstance(op, LoadOp):
            for start in access.starts:
                vector_of = self._load(access, start, before)
                before.insert(vector.StoreOp(vector_of, staged.buffer, [before.emit(start)]))
            inner: LoadOp | StoreOp = LoadOp(staged.buffer, [self._variable])
            inner.results[0].name_hint = op.result.name_hint
        else:
            inner = StoreOp(op.value, staged.buffer, [self._variable])
            after = self._writer(InsertPoint.after(loop))
            for start in access.starts:
                loaded = vector.LoadOp(staged.buffer, [after.emit(start)], access.type)
                self._store(access, start, after.insert(loaded).results[0], after)
        inner.location = op.location
        Rewriter.replace_op(op, inner)

    def _writer(self, point: InsertPoint) -> Writer:
        return Writer(point, self._loop.location)

    def _load(self, access: VectorAccess, start: int, at: Writer) -> SSAValue:
        """One vector; where its predicate does not hold, the value that each element would have."""
        op = access.op
        assert isinstance(op, LoadOp)
        load = vector.LoadOp(op.buffer, self._vectorizer.write_indices(access, start, at), access.type)
        load.location = op.location
        load.attributes |= op.attributes
        if op.predicate is None or op.otherwise is None:
            return at.insert(load).results[0]
        predicate = self._vectorizer.write_predicate(op.predicate, start, at)
        other = vector.BroadcastOp(self._vectorizer.write_value(op.otherwise, at), access.type)
        at.insert(other)
        taken, skipped = scf.YieldOp(load.result), scf.YieldOp(other.vector)
        return at.insert(scf.IfOp(predicate, [access.type], [load, taken], [skipped])).results[0]

    def _store(self, access: VectorAccess, start: int, value: SSAValue, at: Writer) -> None:
        op = access.op
        store = vector.StoreOp(value, op.buffer, self._vectorizer.write_indices(access, start, at))
        store.location = op.location
        store.attributes |= op.attributes
        if op.predicate is None:
            at.insert(store)
            return
        predicate = self._vectorizer.write_predicate(op.predicate, start, at)
        at.insert(scf.IfOp(predicate, [], [store, scf.YieldOp()]))


def _space(buffer: SSAValue) -> Space | None:
    type = buffer.type
    assert isinstance(type, MemRefType)
    return type.memory_space.data if isinstance(type.memory_space, SpaceAttr) else None


__all__ = ["LoopVectorizeAccessesPass"]
