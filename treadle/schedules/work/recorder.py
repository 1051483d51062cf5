"""A kernel builder that writes no IR: what a template or a nest does with it becomes a tree that is counted.

`Recorder` has the methods of `KernelBuilder`. Its values carry what is counted: an index its position, a predicate its
conditions. What the group computes besides the anchor is recorded where it is fused: where a buffer is loaded that a
producer gives, and where the result is stored that a consumer reads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import cast

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    IndexType,
    TensorType,
    VectorType,
    i1,
    i32,
)
from xdsl.ir import Attribute, Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp
from treadle.dialects.graph.compute import yielded
from treadle.dialects.graph.definition import Scalar
from treadle.dialects.hopper import UniformOp, WgmmaOp, WgmmaRegistersOp, WgmmaWaitOp
from treadle.dialects.hopper.barrier import WARPGROUP, number_of
from treadle.dialects.hopper.wgmma import ROWS, TERM_BYTES
from treadle.dialects.loop import (
    KernelOp,
    Space,
    Swizzle,
    buffer_type,
    memref_of,
)
from treadle.dialects.loop.accesses import accesses
from treadle.dialects.loop.tiles import SECTOR_BYTES, SIDE_BY_SIDE, WARP, TileRows, whole_row
from treadle.dialects.schedule import UseAttr
from treadle.dialects.task import Mapping as TaskMapping
from treadle.errors import TreadleError
from treadle.index.positions import Position, Variable, position_of
from treadle.schedules.access_analysis import remembering
from treadle.schedules.gpu_time import GpuWork
from treadle.schedules.kernel_builder import (
    Index,
    IndexLike,
    KernelBuilder,
    Predicate,
    building_with,
    emit_block,
)
from treadle.schedules.nest.kernel import nest_kernel
from treadle.schedules.nest.nest import Nest
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.work.cpu_work import Work, count_on_cpu, lower_for_cpu
from treadle.schedules.work.gpu_work import count_on_gpu, lower_for_gpu, op_cost
from treadle.schedules.work.group import PLACE, Group, StandIn
from treadle.schedules.work.scalars import ScalarRecorder, Value, buffer_of, unknown_index
from treadle.schedules.work.tree import (
    ROUND_PAIR,
    Access,
    Branch,
    Buffer,
    Chance,
    Condition,
    Kernel,
    Loop,
    Node,
    Step,
    renew,
    tiles_step,
)
from treadle.target import Target

_INDEX = IndexType()
_MOST_BLOCKS = 1 << 40


class Recorder(ScalarRecorder):
    """Records the kernel of an anchor.

    group: the anchor's neighbours; tensors, result: as of `kernel_builder`
    """

    def __init__(self, group: Group, tensors: Sequence[SSAValue], result: TensorType):
        self._group = group
        self._root: list[Node] = []
        self._here = self._root
        self._under: tuple[Condition, ...] = ()
        self._arguments: dict[SSAValue | str, Value] = {}
        self._allocs: list[Buffer] = []
        self._stores: list[Value] = []
        self._block_variable = Variable("block", _MOST_BLOCKS)
        self._thread_variable = Variable("thread", 1024)
        self.block = Index(Value(_INDEX, self._block_variable.position()), self)
        self.thread = Index(Value(_INDEX, self._thread_variable.position()), self)
        self.inputs = [self._of_tensor(tensor) for tensor in tensors]  # pyright: ignore[reportIncompatibleVariableOverride]
        self.output = Value(memref_of(result))  # pyright: ignore[reportIncompatibleVariableOverride]
        self.output.buffer = Buffer("C", result.get_shape(), result.get_element_type())

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
        del name, operands, result, comment, cluster
        for variable, size in ((self._block_variable, grid), (self._thread_variable, threads)):
            variable.fix(size)
        renew(self._root)
        buffers = [value.buffer for value in self._arguments.values() if value.buffer is not None]
        recorded = Kernel(
            grid, threads, min_blocks_per_sm or 1, self._block_variable, self._thread_variable, buffers,
            self._allocs, self._root,
        )  # fmt: skip
        # What templates do with a kernel is to return it.
        return cast("KernelOp", recorded)

    def insert(self, op: Operation) -> Scalar:
        """An operation of the loop or the vector dialect; others are as in definitions."""
        if isinstance(op, UniformOp):
            return op.value
        if op.dialect_name() in ("arith", "math"):
            operands = tuple(cast("Value", operand) for operand in op.operands)
            return self._of_operation(op, operands, op.results[0].type)
        for access in accesses(op):
            self._accessed(access.buffer, access.indices, access.elements, is_store=access.is_store)
        operands = tuple(operand for operand in op.operands if isinstance(operand, Value))
        return self._given(operands, op.results[0].type, op_cost(op))

    def _accessed(
        self,
        buffer: SSAValue,
        indices: Sequence[IndexLike],
        elements: int,
        *,
        is_store: bool = False,
        lanes: int = WARP,
    ) -> Access:
        """An access of several elements."""
        target = cast("Value", buffer).buffer
        assert target is not None
        access = self._access(target, indices, is_store, ())
        access.elements, access.lanes = elements, lanes
        return access

    def truncated(self, value: Scalar, type: Attribute) -> Scalar:
        return self._computed(arith.TruncFOp, (cast("Value", value),), type)

    def round_pair(self, even: Scalar, odd: Scalar) -> Scalar:
        return self._given((cast("Value", even), cast("Value", odd)), i32, ROUND_PAIR)

    def fold_lanes(self, kind: str, value: Scalar, lanes: int) -> Scalar:
        del kind, lanes
        return self._given((cast("Value", value),), value.type)

    def arrive(self, counters: SSAValue, at: IndexLike, blocks: int) -> SSAValue:
        self._accessed(counters, [at], 1, is_store=True, lanes=1)
        result = Value(i1, None, (Chance(1 / blocks),))
        self._here.append(Step(result=result))
        return result

    def load_vector(self, buffer: SSAValue, type: VectorType) -> SSAValue:
        access = self._accessed(buffer, [0] * type.get_num_dims(), type.element_count())
        return self._loaded(access, type)

    def load_matrix(
        self, buffer: SSAValue, indices: Sequence[IndexLike], type: VectorType, *, transpose: bool = False
    ) -> SSAValue:
        # Eight lanes give the addresses of the rows of each matrix, 16 bytes each.
        *matrices, row = type.get_shape()
        return self._loaded(self._accessed(buffer, indices, 4 * row, lanes=8 * prod(matrices)), type)

    def extract(self, source: SSAValue, indices: Sequence[IndexLike], type: Attribute) -> SSAValue:
        return self._given((cast("Value", source),), type)

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
        rows, depth = extents
        columns = cast("Value", acc[0]).buffer
        element = cast("Value", a[0]).buffer
        assert columns is not None
        assert element is not None
        reach = left.reach(rows, depth // whole_row(element.element), whole_row(element.element))
        width = columns.shape[-1]
        for place in (acc, a, b):
            buffer = cast("Value", place[0]).buffer
            assert buffer is not None
            buffer.is_of_unit = True
        self._here.append(tiles_step(rows, depth / whole_row(element.element), width))
        self._accessed(*acc, rows * width, is_store=True, lanes=1)
        self._accessed(*a, reach, lanes=1)
        panel = cast("Value", b[0]).buffer
        together = SIDE_BY_SIDE[element.element] if panel is not None and panel.element == i32 else 1
        self._accessed(*b, depth * width // together, lanes=1)

    def perform(self, op: Operation) -> None:
        if isinstance(op, WgmmaWaitOp) and number_of(op.pending) == 0:
            # Until the last products are over, the warpgroup has nothing else to do.
            self._here.append(Step(is_barrier=True))
        if not isinstance(op, WgmmaOp | WgmmaRegistersOp):
            return
        # Each of the warpgroup's warps has a quarter of the rows.
        flops = 2.0 * ROWS * WARP / WARPGROUP * op.columns * op.terms
        self._here.append(Step(tensor=flops, tensor_bytes=TERM_BYTES // op.terms))

    def bulk_copy(
        self,
        tile: tuple[SSAValue, Sequence[IndexLike]],
        barrier: tuple[SSAValue, IndexLike],
        extents: Sequence[int],
        value: Callable[[Sequence[Index]], Scalar],
        part: tuple[Sequence[SSAValue], Sequence[int]] | None = None,
    ) -> None:
        del barrier, part
        outer, self._here = self._here, []
        variables = [Variable(name, extent) for name, extent in zip("rc"[-len(extents) :], extents, strict=True)]
        value([Index(Value(_INDEX, each.position()), self) for each in variables])
        self._here = outer
        target = cast("Value", tile[0]).buffer
        assert target is not None
        stages = target.shape[0]
        self._here.append(Step(brought=prod(extents) * target.bytes / SECTOR_BYTES, pending=stages - 1))

    @contextmanager
    def bulk_store(self, warp: Index, warps: int, piece: IndexLike, pieces: int) -> Generator[None]:
        del warp, warps, piece, pieces
        yield

    # Loops and branches.

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
        loop, position = self._counted(name, self._value(begin), self._value(end), step)
        loop.is_unrolled, loop.is_vector, loop.at_once = unroll or at_once is not None, vector, at_once
        if loop.variable.size == 1 and loop.is_constant:
            yield Index(Value(_INDEX, position), self)
            return
        self._here.append(loop)
        with self._inside(loop.inside):
            yield Index(Value(_INDEX, position), self)

    def fold(
        self,
        name: str,
        extent: Index | int,
        initial: Scalar,
        body: Callable[[Index, SSAValue], Scalar],
        at_once: int | None = None,
    ) -> Scalar:
        carried, before = Value(initial.type), len(self._here)
        if isinstance(initial.type, IndexType):
            carried.position = unknown_index()
        with self.loop(name, extent, at_once=at_once) as i:
            result = body(i, carried)
        loop = self._here[before] if not isinstance(extent, int) or extent > 1 else None
        if isinstance(loop, Loop):
            loop.carried = carried
        return result

    @contextmanager
    def when(self, condition: Predicate | SSAValue | None) -> Generator[None]:
        plain = condition.value if isinstance(condition, Predicate) else condition
        conditions = () if plain is None else cast("Value", plain).conditions
        if not conditions:
            yield
            return
        branch = Branch(conditions)
        self._here.append(branch)
        with self._inside(branch.inside):
            yield

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
        outer, steps = self._here, list[Position]()
        loops = mapping.loops
        last = max((n for n, extent in enumerate(loops) if extent > 1), default=-1)
        for n, extent in enumerate(loops):
            variable = Variable(names[min(n, len(names) - 1)], extent)
            steps.append(variable.position())
            if extent > 1:
                loop = Loop(variable, float(extent), unroll, vector and n == last)
                self._here.append(loop)
                self._here = loop.inside
        own = Position(0, {}) if worker is None or mapping.workers == 1 else self._position(worker)
        found = mapping.task(own, steps)
        yield [Index(Value(_INDEX, each if isinstance(each, Position) else Position(each, {})), self) for each in found]
        self._here = outer

    # Memory.

    def alloc(
        self,
        name: str,
        shape: Sequence[int],
        element: Attribute,
        space: Space = Space.REGISTER,
        swizzle: Swizzle | None = None,
    ) -> SSAValue:
        value = Value(buffer_type(tuple(shape), element, space, swizzle))
        value.buffer = buffer_of(name, value.type)
        if space in (Space.REGISTER, Space.SHARED):
            self._allocs.append(value.buffer)
            self._here.append(Step(allocated=value.buffer))
        else:
            self._arguments[name] = value
        return value

    def _of_tensor(self, tensor: SSAValue) -> Value:
        """The buffer of a tensor; what a producer gives is never in memory."""
        tensor = tensor.tensor if isinstance(tensor, StandIn) else tensor
        found = self._arguments.get(tensor)
        if found is None:
            assert isinstance(tensor.type, TensorType)
            found = self._arguments[tensor] = Value(memref_of(tensor.type))
            found.producer = self._group.producer(tensor)
            if found.producer is None:
                found.buffer = buffer_of(tensor.name_hint or "X", found.type)
        return found

    def load(
        self,
        buffer: SSAValue,
        indices: Sequence[IndexLike],
        where: Predicate | SSAValue | None = None,
        otherwise: SSAValue | None = None,
    ) -> Scalar:
        value = cast("Value", buffer)
        conditions = _conditions(where)
        if value.given is not None:
            return value.given
        if value.producer is not None:
            return self._produced(value.producer, indices, conditions, otherwise)
        assert value.buffer is not None
        access = self._access(value.buffer, indices, False, (*self._under, *conditions))
        found = self._loaded(access, value.buffer.element)
        if isinstance(found.type, IndexType):
            found.position = unknown_index()
        return found

    def _produced(
        self,
        producer: ComputeOp,
        indices: Sequence[IndexLike],
        conditions: tuple[Condition, ...],
        otherwise: SSAValue | None,
    ) -> Scalar:
        """An element of a tensor that a producer gives, computed under the load's predicate."""
        outer, self._under = self._under, (*self._under, *conditions)
        value = self._element(producer, [self._value(i) for i in indices], {})
        self._under = outer
        if not conditions or otherwise is None or _only_moves(producer):
            return value
        return self._computed(arith.SelectOp, (cast("Value", value), cast("Value", otherwise)), value.type)

    def _element(self, compute: ComputeOp, at: Sequence[Value], given: Mapping[SSAValue, Value]) -> Scalar:
        """An element of a definition; `given`: buffers of tensors of which one element is known."""
        values: dict[SSAValue, SSAValue] = {}
        for tensor in compute.tensors():
            values[tensor] = given[tensor] if tensor in given else self._of_tensor(tensor)
        values.update(zip(compute.body.block.args, at, strict=True))
        return emit_block(self, compute.body.block, values)

    def store(
        self,
        value: Scalar,
        buffer: SSAValue,
        indices: Sequence[IndexLike],
        where: Predicate | SSAValue | None = None,
    ) -> None:
        stored, conditions = cast("Value", value), _conditions(where)
        stored.used()
        if buffer is self.output:
            self._result(stored, [self._value(i) for i in indices], conditions)
            return
        target = cast("Value", buffer).buffer
        assert target is not None
        self._stored(stored, target, indices, conditions)

    def _stored(
        self, value: Value, buffer: Buffer, indices: Sequence[IndexLike], conditions: tuple[Condition, ...]
    ) -> None:
        access = self._access(buffer, indices, True, conditions)
        access.value, access.adds_up = value, buffer in value.sources

    def _result(self, value: Value, at: Sequence[Value], conditions: tuple[Condition, ...]) -> None:
        """An element of the anchor's result: consumers are computed from it, and what is wanted is stored."""
        root = self._group.results[0] if not self._group.consumers else None
        if root is not None:
            self._stored(value, self._result_buffer(root), at, conditions)
            return
        anchor = self._group.anchor.result
        elements: dict[SSAValue, tuple[Sequence[Value], Value]] = {anchor: (at, value)}
        outer, self._under = self._under, (*self._under, *conditions)
        for consumer in self._group.consumers:
            place = at
            if consumer.source is not None:
                known = {(PLACE, n): self._position(i) for n, i in enumerate(elements[consumer.source][0])}
                place = [Value(_INDEX, position_of(e, known)) for e in consumer.index]
            given = {tensor: _given(known_value) for tensor, (_, known_value) in elements.items()}
            found = self._element(consumer.compute, place, given)
            elements[consumer.compute.result] = place, cast("Value", found)
        self._under = outer
        for tensor in self._group.results:
            place, found = elements[tensor]
            self._stored(found, self._result_buffer(tensor), place, conditions)

    def _result_buffer(self, tensor: SSAValue) -> Buffer:
        """The buffer of a tensor that the kernel gives."""
        found = self._arguments.get(tensor)
        if found is None:
            found = self._arguments[tensor] = Value(memref_of(cast("TensorType", tensor.type)))
            found.buffer = buffer_of("C", found.type)
        assert found.buffer is not None
        return found.buffer

    def copy(
        self, buffer: SSAValue, indices: Sequence[IndexLike], extent: int, value: Callable[[Index], Scalar]
    ) -> None:
        element = Variable("e", extent)
        loop = Loop(element, float(extent), is_unrolled=True, is_copy=True)
        with self._inside(loop.inside):
            given = cast("Value", value(Index(Value(_INDEX, element.position()), self)))
            at: list[Value] = [self._value(i) for i in indices]
            at[-1] = Value(_INDEX, self._position(at[-1]) + element.position())
            target = cast("Value", buffer).buffer
            assert target is not None
            self._stored(given, target, at, ())
        self._here.append(loop)

    def commit(self) -> None:
        """Groups of copies are counted where they are waited for."""

    def wait(self, pending: int) -> None:
        self._here.append(Step(pending=pending))

    def barrier(self) -> None:
        self._here.append(Step(is_barrier=True))


def record(group: Group, build: Callable[[], object]) -> Kernel:
    """The tree of the kernel of a group's anchor that `build` would write, with what the group computes besides.

    TreadleError for a template of an extension that writes IR all the same.
    """

    def builder(tensors: Sequence[SSAValue], result: TensorType) -> KernelBuilder:
        return Recorder(group, tensors, result)

    with remembering(group.memory), building_with(builder):
        written = build()
    if isinstance(written, KernelOp):
        written.erase()
        message = "a template that makes a builder itself has no prediction"
        raise TreadleError(message, "work of a kernel", "a builder that kernel_builder(tensors, result) gives")
    assert isinstance(written, Kernel), "a template returns what its builder gives"
    return written


def _conditions(where: Predicate | SSAValue | None) -> tuple[Condition, ...]:
    plain = where.value if isinstance(where, Predicate) else where
    return () if plain is None else cast("Value", plain).conditions


def _given(value: Value) -> Value:
    """A buffer of which one element can be loaded."""
    found = Value(value.type)
    found.given = value
    return found


def _only_moves(compute: ComputeOp) -> bool:
    """Whether the elements of a definition are elements of what it reads."""
    return isinstance(yielded(compute.body).owner, AtOp)


# The work of a candidate's kernel without the kernel: its template, or the builder of nests, runs on a recorder.


def recorded(group: Group, schedule: Nest | UseAttr, target: Target) -> Kernel:
    """The tree of what a nest or a template with its choices writes for a group's anchor."""
    anchor = group.anchor
    if isinstance(schedule, UseAttr):
        template, choices = TEMPLATES[schedule.template.data], schedule.knobs()
        return record(group, lambda: template.build(anchor, choices, target, "kernel"))
    return record(group, lambda: nest_kernel(anchor, schedule, target, "kernel", group.definition))


def work_of(group: Group, schedule: Nest | UseAttr, target: Target) -> Work | GpuWork:
    """The work of a group's kernel as stage `loops` leaves it."""
    kernel = recorded(group, schedule, target)
    if target.is_cuda:
        lower_for_gpu(kernel)
        return count_on_gpu(kernel)
    lower_for_cpu(kernel, target)
    return count_on_cpu(kernel, target)
