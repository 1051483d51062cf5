"""loop-vectorize-accesses: consecutive elements of a short loop move in one vector access."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects import arith, scf, vector
from xdsl.dialects.builtin import FixedBitwidthType, IndexType, LocationAttr, MemRefType, ModuleOp, VectorType
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.effects import accesses_are_known, buffers_written, is_pure
from treadle.dialects.graph.dtypes import byte_width, is_stored
from treadle.dialects.loop import AllocOp, FuncOp, KernelOp, LoadOp, Space, SpaceAttr, StoreOp, buffer_type
from treadle.index.contiguity import Lanes
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Expr, const
from treadle.index.reader import IndexReader
from treadle.passes.loop.kernels import constant_index, kernels_of, loops_in, trip_count
from treadle.schedules.work.rules import LONGEST_LOOP, VECTOR_BYTES

# Which accesses of a short loop are one vector access: consecutive, aligned elements under one predicate.


class Writer:
    """Writes operations and index arithmetic at one insertion point."""

    def __init__(self, point: InsertPoint, location: LocationAttr):
        self._builder = Builder(point)
        self._emitter = IndexEmitter(point, location=location)
        self._location = location

    def emit(self, expr: Expr | int) -> SSAValue:
        """The value of an index expression."""
        return self._emitter.emit(expr)

    def insert(self, op: Operation) -> Operation:
        """Inserts an operation."""
        op.location = self._location
        return self._builder.insert(op)


@dataclass(frozen=True)
class VectorAccess:
    """An access of a loop of `trips` iterations that moves `lanes` elements at once, `trips / lanes` times."""

    op: LoadOp | StoreOp
    lanes: int
    trips: int

    @property
    def type(self) -> VectorType:
        """The vector's type."""
        buffer = self.op.buffer.type
        assert isinstance(buffer, MemRefType)
        return VectorType(buffer.get_element_type(), [self.lanes])

    @property
    def starts(self) -> range:
        """The iterations whose elements come first in a vector."""
        return range(0, self.trips, self.lanes)


class AccessVectorizer:
    """Finds and writes the vector accesses of one loop, which counts `variable` from 0 to `trips` by 1.

    An index, a predicate and the `else` value of a load must be computable in front of the loop.
    """

    def __init__(self, reader: IndexReader, loop: scf.ForOp, trips: int):
        self._reader, self._loop, self._trips = reader, loop, trips
        self._variable = loop.body.block.args[0]

    def widest(self, op: LoadOp | StoreOp, most_bytes: int) -> VectorAccess | None:
        """The access with the most lanes, a power of two of them; None where there is none of two."""
        return next((VectorAccess(op, n, self._trips) for n in self.lanes_of(op, most_bytes)), None)

    def lanes_of(self, op: LoadOp | StoreOp, most_bytes: int) -> list[int]:
        """Every number of lanes that one access may have, largest first."""
        type = op.buffer.type
        assert isinstance(type, MemRefType)
        element = type.get_element_type()
        if not isinstance(element, FixedBitwidthType) or (element.bitwidth % 8 and not is_stored(element)):
            return []
        counts = [2**n for n in range(5, 0, -1) if 2**n * byte_width(element) <= most_bytes]
        return [n for n in counts if self._trips % n == 0 and self._allows(op, n)]

    def _allows(self, op: LoadOp | StoreOp, count: int) -> bool:
        type = op.buffer.type
        assert isinstance(type, MemRefType)
        lanes = Lanes(self._reader, self._variable, self._trips, count)
        if not lanes.is_run(op.indices) or not all(map(self._is_known_before, op.indices)):
            return False
        if len(op.indices) > 1 and type.get_shape()[-1] % count:
            return False
        if isinstance(op, LoadOp) and op.otherwise is not None and not self._is_given_before(op.otherwise):
            return False
        if op.predicate is None:
            return True
        return self._is_computed_before(op.predicate) and lanes.agree(op.predicate, self._is_inside)

    def _is_known_before(self, index: SSAValue) -> bool:
        """Whether an index is an expression of the loop's variable and of what is defined outside."""
        return all(v.key is self._variable or not self._is_inside(v.key) for v in self._reader.read(index).vars())

    def _is_inside(self, value: object) -> bool:
        owner = value.owner if isinstance(value, SSAValue) else None
        operation = owner if isinstance(owner, Operation) else owner.parent_op() if owner is not None else None
        return operation is not None and self._loop.is_ancestor(operation)

    def _is_given_before(self, value: SSAValue) -> bool:
        return isinstance(value.owner, arith.ConstantOp) or not self._is_inside(value)

    def _is_computed_before(self, predicate: SSAValue) -> bool:
        """Whether `write_predicate` can write a predicate in front of the loop."""
        op = predicate.owner
        if self._is_given_before(predicate):
            return True
        if isinstance(op, arith.AndIOp | arith.OrIOp):
            return self._is_computed_before(op.lhs) and self._is_computed_before(op.rhs)
        if not isinstance(op, arith.CmpiOp) or not isinstance(op.lhs.type, IndexType):
            return False
        return all(map(self._is_known_before, (op.lhs, op.rhs)))

    def write_indices(self, access: VectorAccess, start: int, at: Writer) -> list[SSAValue]:
        """The indices of the vector that begins with iteration `start`."""
        return [at.emit(self._from(i, start)) for i in access.op.indices]

    def write_predicate(self, predicate: SSAValue, start: int, at: Writer) -> SSAValue:
        """The predicate of the vector that begins with iteration `start`."""
        op = predicate.owner
        if self._is_given_before(predicate):
            return self.write_value(predicate, at)
        if isinstance(op, arith.AndIOp | arith.OrIOp):
            lhs, rhs = (self.write_predicate(side, start, at) for side in (op.lhs, op.rhs))
            return at.insert(type(op)(lhs, rhs)).results[0]
        assert isinstance(op, arith.CmpiOp)
        lhs, rhs = (at.emit(self._from(side, start)) for side in (op.lhs, op.rhs))
        return at.insert(arith.CmpiOp(lhs, rhs, op.predicate.value.data)).results[0]

    def write_value(self, value: SSAValue, at: Writer) -> SSAValue:
        """A value that is the same in every iteration, outside the loop."""
        op = value.owner
        if isinstance(op, arith.ConstantOp) and self._is_inside(value):
            return at.insert(op.clone()).results[0]
        return value

    def _from(self, index: SSAValue, start: int) -> Expr:
        return self._reader.read(index).substitute({self._variable: const(start)})


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
    bytes: int = VECTOR_BYTES
    elements: int = LONGEST_LOOP

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
