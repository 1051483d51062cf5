"""Writing the body of a kernel: loops, task loops, buffers, loads and stores."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType
from typing import Any

from xdsl.dialects import arith, math, scf, vector
from xdsl.dialects.arith import FastMathFlagsAttr
from xdsl.dialects.builtin import IndexType, IntegerAttr, TensorType, UnitAttr, VectorType, f32, i64
from xdsl.dialects.utils import FastMathFlag
from xdsl.dialects.vector import CombiningKindAttr, CombiningKindFlag
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint

from treadle.dialects.graph import AtOp, ComputeOp, ReduceOp
from treadle.dialects.graph import YieldOp as GraphYieldOp
from treadle.dialects.graph.definition import DefinitionBuilder, Scalar, widened
from treadle.dialects.graph.dtypes import accumulator
from treadle.dialects.graph.reduction import identity
from treadle.dialects.hopper import BulkCopyOp, BulkStoreOp
from treadle.dialects.hopper import YieldOp as BulkYieldOp
from treadle.dialects.loop import (
    AllocOp,
    ArriveOp,
    BarrierOp,
    CommitOp,
    CopyOp,
    KernelOp,
    LoadMatrixOp,
    LoadOp,
    MmaOp,
    MultiplyTilesOp,
    RoundPairOp,
    RoundTf32Op,
    Space,
    StoreOp,
    Swizzle,
    TileRows,
    WaitOp,
    WarpReduceOp,
    buffer_type,
    memref_of,
    zeros,
)
from treadle.dialects.loop import YieldOp as CopyYieldOp
from treadle.dialects.task import ForOp, YieldOp, repeat, spatial
from treadle.dialects.task import Mapping as TaskMapping
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Expr, const, var

# From the type in which a fold is carried back to that of its elements.


def narrowed(b: KernelBuilder, value: Scalar, type: Attribute) -> Scalar:
    """A fold in the type of the definition's reduction."""
    if value.type == type:
        return value
    return b.truncated(value, type)


# Indices and predicates of a kernel as values with operators: `row * tile + r` writes `arith` operations.


@dataclass(frozen=True, eq=False)
class Index:
    """A value of type `index`, and the builder at whose insertion point operators write.

    Operations are written when an operator is evaluated, operands first, from left to right:

    >>> row * 8 + r  # %0 = arith.constant 8 : index; %1 = arith.muli %row, %0; %2 = arith.addi %1, %r

    `//` and `%` take non-negative indices. Adding 0, and multiplying or dividing by 1, writes nothing. `==` compares
    Python objects, so that indices can be looked up; `equals` writes a comparison.
    """

    value: SSAValue
    builder: DefinitionBuilder

    def __add__(self, other: Index | int) -> Index:
        return self._index(self.builder.add(self.value, _plain(other)))

    def __radd__(self, other: int) -> Index:
        return self._index(self.builder.add(other, self.value))

    def __sub__(self, other: Index | int) -> Index:
        return self._index(self.builder.binary("sub", self.value, _plain(other)))

    def __rsub__(self, other: int) -> Index:
        return self._index(self.builder.binary("sub", other, self.value))

    def __mul__(self, other: Index | int) -> Index:
        return self._index(self.builder.mul(self.value, _plain(other)))

    def __floordiv__(self, other: int) -> Index:
        return self._index(self.builder.div(self.value, other))

    def __mod__(self, other: int) -> Index:
        return self._index(self.builder.mod(self.value, other))

    def __lt__(self, other: Index | int) -> Predicate:
        return self._compare("lt", other)

    def __le__(self, other: Index | int) -> Predicate:
        return self._compare("le", other)

    def __gt__(self, other: Index | int) -> Predicate:
        return self._compare("gt", other)

    def __ge__(self, other: Index | int) -> Predicate:
        return self._compare("ge", other)

    def equals(self, other: Index | int) -> Predicate:
        """Whether both are the same number."""
        return self._compare("eq", other)

    def min(self, other: Index | int) -> Index:
        """The smaller of both, as signed numbers."""
        return self._index(self.builder.binary("min", self.value, _plain(other)))

    def max(self, other: Index | int) -> Index:
        """The larger of both, as signed numbers."""
        return self._index(self.builder.binary("max", self.value, _plain(other)))

    def delinearize(self, shape: Sequence[int]) -> list[Index]:
        """The row-major indices of this position, which lies inside the shape."""
        return [self._index(i) for i in self.builder.delinearize(self.value, shape)]

    def _index(self, value: SSAValue) -> Index:
        return Index(value, self.builder)

    def _compare(self, kind: str, other: Index | int) -> Predicate:
        return Predicate(self.builder.binary(kind, self.value, _plain(other)), self.builder)


@dataclass(frozen=True, eq=False)
class Predicate:
    """A value of type `i1` that a kernel computes: `(row < m) & (column < n)`."""

    value: SSAValue
    builder: DefinitionBuilder

    def __and__(self, other: Predicate) -> Predicate:
        return Predicate(self.builder.binary("and", self.value, other.value), self.builder)

    def __or__(self, other: Predicate) -> Predicate:
        return Predicate(self.builder.binary("or", self.value, other.value), self.builder)

    def select(self, then: Index, otherwise: Index) -> Index:
        """One of two indices."""
        return Index(self.builder.select(self.value, then.value, otherwise.value), self.builder)

    def __bool__(self) -> bool:
        """Not known before the kernel runs: `a < b < c` and `p and q` would need it."""
        raise TypeError("a kernel's predicate has no value in Python: combine predicates with & and |")


IndexLike = Index | SSAValue | int
"""What memory operations and loops take as an index."""


def all_of(conditions: Sequence[Predicate | None]) -> Predicate | None:
    """The conjunction of those that are given; None, which holds everywhere, where none is."""
    result: Predicate | None = None
    for condition in conditions:
        if condition is not None:
            result = condition if result is None else result & condition
    return result


def ssa_values(indices: Sequence[Index]) -> list[Scalar]:
    """The values of indices, as operands of operations."""
    return [i.value for i in indices]


def _plain(other: Index | int) -> SSAValue | int:
    return other.value if isinstance(other, Index) else other


# From a definition to scalar code: one element of a `graph.compute` inside a kernel.


def emit_element(
    b: KernelBuilder, compute: ComputeOp, index: Sequence[Index], buffers: Mapping[SSAValue, SSAValue]
) -> Scalar:
    """Writes the value of the element at `index`; `buffers` holds the tensors that the definition reads."""
    values: dict[SSAValue, SSAValue] = dict(buffers)
    values.update(zip(compute.body.block.args, ssa_values(index), strict=True))
    return emit_block(b, compute.body.block, values)


def emit_block(b: KernelBuilder, block: Block, values: dict[SSAValue, SSAValue]) -> Scalar:
    """Writes the operations of a definition's block under `values`, and gives what it yields."""
    for op in block.ops:
        if isinstance(op, GraphYieldOp):
            return values[op.value]
        values[op.results[0]] = b.evaluated(op, values)
    raise ValueError("a definition's block ends with graph.yield")


def emit_reduce(b: KernelBuilder, op: ReduceOp, values: dict[SSAValue, SSAValue]) -> Scalar:
    """Writes a definition's reduction as loops that carry what is folded."""
    args, shape = op.body.block.args, op.shape
    type = accumulator(op.result.type)
    start = b.constant(identity(op.kind.data, type), type)

    def level(depth: int, carried: SSAValue) -> Scalar:
        if depth == len(shape):
            return b.binary(op.kind.data, carried, widened(b, emit_block(b, op.body.block, values)))

        def body(i: Index, inner: SSAValue) -> Scalar:
            values[args[depth]] = i.value
            return level(depth + 1, inner)

        extent = b.ends.get(args[depth], shape[depth])
        return b.fold(args[depth].name_hint or f"k{depth}", extent, carried, body)

    return narrowed(b, level(0, start), op.result.type)


index = IndexType()
VECTOR_FOLDS = {"add": CombiningKindFlag.ADD, "max": CombiningKindFlag.MAXIMUMF, "min": CombiningKindFlag.MINIMUMF}
"""Folds of the lanes of a vector of f32."""


class KernelBuilder(DefinitionBuilder):
    """Writes a kernel's body: scalar expressions of `DefinitionBuilder`, loops and memory.

    inputs, output: the buffers that hold the operands and the result
    block, thread: their numbers
    ends: of indices of reductions that end earlier in a call than their extents say
    """

    ends: Mapping[SSAValue, Index] = MappingProxyType({})

    def __init__(self, inputs: Sequence[TensorType], output: TensorType):
        types = [*map(memref_of, inputs), memref_of(output), index, index]
        self.body = Block(arg_types=types)
        super().__init__(self.body)
        *self.inputs, self.output, block, thread = self.body.args
        block.name_hint, thread.name_hint = "block", "thread"
        self.block, self.thread = Index(block, self), Index(thread, self)
        self._name_buffers()

    def _name_buffers(self) -> None:
        names = ("A", "B") if len(self.inputs) == 2 else tuple(f"X{n}" for n in range(len(self.inputs)))
        for buffer, name in zip(self.inputs, names, strict=True):
            buffer.name_hint = name
        self.output.name_hint = "C"

    def kernel(
        self,
        name: str,
        operands: Sequence[SSAValue],
        result: TensorType,
        grid: int,
        threads: int,
        comment: str,
        min_blocks_per_sm: int | None = None,
        cluster: int | None = None,
    ) -> KernelOp:
        """The finished kernel."""
        shape, body = (grid, threads), Region(self.body)
        return KernelOp(name, operands, [result], *shape, body, comment, min_blocks_per_sm, cluster=cluster)

    def truncated(self, value: Scalar, type: Attribute) -> Scalar:
        """A float in a narrower type."""
        return self.insert(arith.TruncFOp(value, type))  # pyright: ignore[reportArgumentType]

    def evaluated(self, op: Operation, values: dict[SSAValue, SSAValue]) -> Scalar:
        """An operation of a definition, whose operands have some values."""
        if isinstance(op, AtOp):
            indices = [values[i] for i in op.indices]
            where = None if op.predicate is None else values[op.predicate]
            otherwise = None if op.otherwise is None else values[op.otherwise]
            return self.load(values[op.source], indices, where, otherwise)
        if isinstance(op, ReduceOp):
            return emit_reduce(self, op, values)
        return self.insert(op.clone(dict(values)))

    def index(self, i: IndexLike) -> Index:
        """A constant, or a value of type `index`, with operators."""
        return Index(self._ssa(i), self)

    def expression(self, e: Expr, known: Mapping[Any, Index]) -> Index:
        """Writes an index expression, given its variables by their keys; those that are not given are 0."""
        found = {v.key: var(known[v.key].value, *v.range) if v.key in known else const(0) for v in e.vars()}
        return Index(IndexEmitter(self._builder.insertion_point).emit(e.substitute(found)), self)

    def _ssa(self, i: IndexLike) -> SSAValue:
        if isinstance(i, Index):
            return i.value
        return self.constant(i) if isinstance(i, int) else i

    def _all_ssa(self, indices: Sequence[IndexLike]) -> list[SSAValue]:
        return [self._ssa(i) for i in indices]

    @contextmanager
    def _inside(self, block: Block) -> Generator[None]:
        outer = self._builder.insertion_point
        self._builder.insertion_point = InsertPoint.at_end(block)
        yield
        self._builder.insertion_point = outer

    @contextmanager
    def loop(
        self,
        name: str,
        end: IndexLike,
        *,
        begin: IndexLike = 0,
        step: int = 1,
        unroll: bool = False,
        vector: bool = False,
        at_once: int | None = None,
    ) -> Generator[Index]:
        """`for name in range(begin, end, step)`; `at_once` iterations are unrolled, and no more, if it is given."""
        block = Block(arg_types=[index])
        block.args[0].name_hint = name
        op = scf.ForOp(self._ssa(begin), self._ssa(end), self._ssa(step), [], Region(block))
        for flag, wanted in (("loop.unroll", unroll), ("loop.vector", vector)):
            if wanted:
                op.attributes[flag] = UnitAttr()
        if at_once is not None:
            op.attributes["loop.unroll"] = IntegerAttr(at_once, i64)
        self._builder.insert(op)
        with self._inside(block):
            yield Index(block.args[0], self)
        block.add_op(scf.YieldOp())

    def fold(
        self,
        name: str,
        extent: Index | int,
        initial: Scalar,
        body: Callable[[Index, SSAValue], Scalar],
        at_once: int | None = None,
    ) -> Scalar:
        """A loop that carries a value: `body(index, carried)` gives the next; `at_once` as of `loop`."""
        block = Block(arg_types=[index, initial.type])
        block.args[0].name_hint, block.args[1].name_hint = name, "acc"
        op = scf.ForOp(self._ssa(0), self._ssa(extent), self._ssa(1), [initial], Region(block))
        if at_once is not None:
            op.attributes["loop.unroll"] = IntegerAttr(at_once, i64)
        self._builder.insert(op)
        with self._inside(block):
            result = body(Index(block.args[0], self), block.args[1])
        block.add_op(scf.YieldOp(result))
        op.results[0].name_hint = "acc"
        return op.results[0]

    @contextmanager
    def when(self, condition: Predicate | SSAValue | None) -> Generator[None]:
        """`if condition`; nothing around the body without one."""
        if condition is None:
            yield
            return
        block = Block()
        plain = condition.value if isinstance(condition, Predicate) else condition
        self._builder.insert(scf.IfOp(plain, [], Region(block)))
        with self._inside(block):
            yield
        block.add_op(scf.YieldOp())

    @contextmanager
    def tasks(
        self,
        names: Sequence[str],
        mapping: TaskMapping,
        worker: Index | None = None,
        *,
        unroll: bool = False,
        vector: bool = False,
    ) -> Generator[Sequence[Index]]:
        """`for names in mapping(worker)`: the tasks of a worker, such as `b.thread` or `b.block`, as indices.

        worker: none for a mapping of one, such as `repeat(4, 4)`; unroll: as straight code; vector: the last dimension
        in vectors
        """
        op = ForOp(mapping, None if worker is None else worker.value, unroll=unroll)
        if vector:
            op.attributes["loop.vector"] = UnitAttr()
        for arg, name in zip(op.body.block.args, names, strict=True):
            arg.name_hint = name
        self._builder.insert(op)
        with self._inside(op.body.block):
            yield [Index(arg, self) for arg in op.body.block.args]
        op.body.block.add_op(YieldOp())

    def task_of_block(self, mapping: TaskMapping) -> Sequence[Index]:
        """The task of the calling block in a mapping without loops, such as `spatial(rows, columns)`."""
        return mapping.task(self.block, [])

    @contextmanager
    def tasks_of_block(self, name: str, total: int, each: int) -> Generator[Index]:
        """The tasks of the calling block where each has that many neighbours of `total`, and none beyond the end.

        They are a loop at once, which `loop-skip-padding` ends where what is required ends, before mappings are
        lowered.
        """
        mapping = spatial(ceil(total / each)) * repeat(each)
        with self.loop(name, each) as step:
            (task,) = mapping.task(self.block, [step])
            with self.when(task < total if total % each else None):
                yield task

    def alloc(
        self,
        name: str,
        shape: Sequence[int],
        element: Attribute,
        space: Space = Space.REGISTER,
        swizzle: Swizzle | None = None,
    ) -> SSAValue:
        """A buffer of the calling thread (registers), or of its block (shared memory), whose elements are undefined."""
        op = AllocOp(buffer_type(tuple(shape), element, space, swizzle))
        op.buffer.name_hint = name
        return self.insert(op)

    def load(
        self,
        buffer: SSAValue,
        indices: Sequence[IndexLike],
        where: Predicate | SSAValue | None = None,
        otherwise: SSAValue | None = None,
    ) -> Scalar:
        """An element; `otherwise` where the predicate `where` does not hold, and then nothing is read."""
        return self.insert(LoadOp(buffer, self._all_ssa(indices), _plain_predicate(where), otherwise))

    def load_vector(self, buffer: SSAValue, type: VectorType) -> SSAValue:
        """All of a register buffer, or its beginning, as a vector."""
        return self.insert(vector.LoadOp(buffer, [self.constant(0)] * type.get_num_dims(), type))

    def load_matrix(
        self, buffer: SSAValue, indices: Sequence[IndexLike], type: VectorType, *, transpose: bool = False
    ) -> SSAValue:
        """A warp's fragments of matrices in shared memory: see `loop.load_matrix`."""
        return self.insert(LoadMatrixOp(buffer, self._all_ssa(indices), type, transpose=transpose))

    def fold_lanes(self, kind: str, value: Scalar, lanes: int) -> Scalar:
        """The fold of a value over each group of consecutive lanes of a warp: see `loop.warp_reduce`."""
        return self.insert(WarpReduceOp(kind, value, lanes))

    def fold_vector(self, kind: str, buffer: SSAValue, lanes: int) -> Scalar:
        """The fold (`VECTOR_FOLDS`) of the first elements of a register buffer of f32, one vector."""
        last = self.load_vector(buffer, VectorType(f32, [lanes]))
        # Upstream's constructor infers a vector as the result.
        properties = {"kind": CombiningKindAttr(VECTOR_FOLDS[kind]), "fastmath": FastMathFlagsAttr("none")}
        return self.insert(vector.ReductionOp.create(operands=[last], result_types=[f32], properties=properties))

    def mma(self, a: SSAValue, b: SSAValue, c: SSAValue) -> SSAValue:
        """A warp's product of fragments, added to c: see `loop.mma`."""
        return self.insert(MmaOp(a, b, c))

    def approximate_exp2(self, value: Scalar) -> Scalar:
        """2 to the power of an f32, within 2^-22 of its value, and 0 below the smallest normal number."""
        return self.insert(math.Exp2Op(value, FastMathFlagsAttr([FastMathFlag.APPROX_FUNC])))

    def fma(self, a: Scalar, b: Scalar, c: Scalar) -> Scalar:
        """a * b + c, rounded once."""
        return self.insert(math.FmaOp(a, b, c))

    def round_tf32(self, fragment: SSAValue) -> SSAValue:
        """Floats as tensor cores take them: see `loop.round_tf32`."""
        return self.insert(RoundTf32Op(fragment))

    def round_pair(self, even: Scalar, odd: Scalar) -> Scalar:
        """Two floats as neighbours of a panel of bf16: see `loop.round_pair`."""
        return self.insert(RoundPairOp(even, odd))

    def arrive(self, counters: SSAValue, at: IndexLike, blocks: int) -> SSAValue:
        """Whether the block is the last one of some to come here: see `loop.arrive`."""
        return self.insert(ArriveOp(counters, self._ssa(at), blocks))

    def multiply_tiles(
        self,
        acc: tuple[SSAValue, Sequence[IndexLike]],
        a: tuple[SSAValue, Sequence[IndexLike]],
        b: tuple[SSAValue, Sequence[IndexLike]],
        extents: tuple[int, int],
        left: TileRows,
        ahead: IndexLike | None = None,
        lines: int = 0,
    ) -> None:
        """Sums on a CPU's matrix unit, of operands from an element on: see `loop.multiply_tiles`."""
        sums, rows, panel = ((buffer, self._all_ssa(indices)) for buffer, indices in (acc, a, b))
        fetched = None if ahead is None else self._ssa(ahead)
        self._builder.insert(MultiplyTilesOp(sums, rows, panel, extents, left, fetched, lines))

    def extract(self, source: SSAValue, indices: Sequence[IndexLike], type: Attribute) -> SSAValue:
        """An element of a vector, or a vector of one of more dimensions."""
        return self.insert(vector.ExtractOp(source, self._all_ssa(indices), type))

    def store(
        self,
        value: Scalar,
        buffer: SSAValue,
        indices: Sequence[IndexLike],
        where: Predicate | SSAValue | None = None,
    ) -> None:
        """Writes an element, where the predicate `where` holds, if there is one."""
        self._builder.insert(StoreOp(value, buffer, self._all_ssa(indices), _plain_predicate(where)))

    def copy(
        self, buffer: SSAValue, indices: Sequence[IndexLike], extent: int, value: Callable[[Index], Scalar]
    ) -> None:
        """An asynchronous copy of `extent` elements; `value` gives that of element e."""
        op = CopyOp(buffer, self._all_ssa(indices), extent, is_async=True)
        op.element.name_hint = "e"
        self._builder.insert(op)
        with self._inside(op.body.block):
            result = value(Index(op.element, self))
        op.body.block.add_op(CopyYieldOp(result))

    def bulk_copy(
        self,
        tile: tuple[SSAValue, Sequence[IndexLike]],
        barrier: tuple[SSAValue, IndexLike],
        extents: Sequence[int],
        value: Callable[[Sequence[Index]], Scalar],
        part: tuple[Sequence[SSAValue], Sequence[int]] | None = None,
    ) -> None:
        """A copy by one thread of as many elements as `extents` say, in a part of a matrix if one is given, to a tile's
        last dimensions; `value` gives an element. It completes at the barrier: see `hopper.bulk_copy`."""
        op = BulkCopyOp(tile[0], self._all_ssa(tile[1]), barrier[0], self._ssa(barrier[1]), len(extents), part)
        for argument, name in zip(op.body.block.args, "rc"[-len(extents) :], strict=True):
            argument.name_hint = name
        self._builder.insert(op)
        with self._inside(op.body.block):
            result = value([Index(argument, self) for argument in op.body.block.args])
        op.body.block.add_op(BulkYieldOp(result))

    @contextmanager
    def bulk_store(self, warp: Index, warps: int, piece: IndexLike, pieces: int) -> Generator[None]:
        """Inside is a loop over a rectangle that a warp stores, which may go through shared memory: see
        `hopper.bulk_store`."""
        op = BulkStoreOp(warp.value, warps, self._ssa(piece), pieces)
        self._builder.insert(op)
        with self._inside(op.body.block):
            yield

    def perform(self, op: Operation) -> None:
        """Inserts an operation without a result, such as a barrier of the hopper dialect."""
        self._builder.insert(op)

    def select(self, condition: Predicate | Scalar, a: Scalar, b: Scalar) -> Scalar:
        """a where the condition holds, else b."""
        return super().select(condition.value if isinstance(condition, Predicate) else condition, a, b)

    def commit(self) -> None:
        """Ends a group of copies."""
        self._builder.insert(CommitOp())

    def wait(self, pending: int) -> None:
        """Waits for all but the newest groups of copies."""
        self._builder.insert(WaitOp(pending))

    def barrier(self) -> None:
        """All threads of the block have written before any goes on."""
        self._builder.insert(BarrierOp())

    def zeros(self, type: VectorType) -> SSAValue:
        """A vector of zeros."""
        return self.insert(arith.ConstantOp(zeros(type)))


_BUILDER: ContextVar[Callable[[Sequence[SSAValue], TensorType], KernelBuilder] | None] = ContextVar(
    "builder", default=None
)


def kernel_builder(tensors: Sequence[SSAValue], result: TensorType) -> KernelBuilder:
    """The builder of a kernel that reads tensors and gives a result.

    Every template and every nest asks for its builder here, since a search has what they write recorded instead, to
    predict its time (`treadle/schedules/work/recorder.py`).
    """
    given = _BUILDER.get()
    if given is not None:
        return given(tensors, result)
    return KernelBuilder([t.type for t in tensors if isinstance(t.type, TensorType)], result)


@contextmanager
def building_with(builder: Callable[[Sequence[SSAValue], TensorType], KernelBuilder]) -> Generator[None]:
    """Inside, `kernel_builder` gives what `builder` does."""
    before = _BUILDER.set(builder)
    try:
        yield
    finally:
        _BUILDER.reset(before)


def _plain_predicate(condition: Predicate | SSAValue | None) -> SSAValue | None:
    return condition.value if isinstance(condition, Predicate) else condition
