"""A kernel's body as Python text, which `kernels.py` runs.

Every thread of a block is a call; it yields at barriers, and where its warp acts together. A buffer is a flat list of
scalars, in which None is an element that was never stored; swizzles are ignored, since indices are those of the
unpermuted matrix. Every access checks its indices.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from typing import Any, NoReturn, cast

import numpy as np
from xdsl.dialects import arith, memref, scf, vector
from xdsl.dialects.builtin import MemRefType, NoneAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue

from treadle.backends.reference.kernel_operations import (
    LAUNCH,
    TILES,
    VECTORS,
    WarpFunction,
    arrive,
    constant,
    dtype_name,
    expression,
    folded,
    folder,
    function,
    initial,
    is_of_launch,
    lanes_of,
    literal,
    loaded_shape,
    matrix_loader,
    multiply,
    shuffled,
    space_of,
    unit_product,
    vector_expression,
)
from treadle.dialects import loop, task
from treadle.dialects.graph.arithmetic import scalar_dtype
from treadle.dialects.scalar import UnsignedConstantOp, is_arithmetic
from treadle.errors import TreadleError

# The Python text of a kernel while it is written: names, lines, and the checks of accesses.


class KernelText:
    """Lines of Python, and what their names stand for. All names in the text are made here; none comes from the IR.

    names: of values; namespace: of objects that are no text; ops: the operations that messages name, by their numbers
    """

    def __init__(self, name: str, body: Block, outputs: int):
        self.kernel = name
        self.lines: list[str] = []
        self.names: dict[SSAValue, str] = {arg: f"v{n}" for n, arg in enumerate(body.args)}
        self.read_only = {arg for arg in body.args[: -2 - outputs] if not is_of_launch(arg.type)}
        self.namespace: dict[str, object] = {"np": np, "fault": self._fault, "unset": self.unset}
        self.ops: list[Operation] = []
        self._indent = 1
        self._serial = len(self.names)

    def describe(self, number: int) -> str:
        """An operation and the buffer that it touches, for messages."""
        op = self.ops[number]
        buffers = [v for v in (*op.operands, *op.results) if isinstance(v.type, MemRefType)]
        return " ".join([op.name, *(f"of %{b.name_hint or '?'}: {b.type}" for b in buffers)])

    @contextmanager
    def indented(self) -> Generator[None]:
        """Lines that are written inside belong to the statement above."""
        self._indent += 1
        yield
        self._indent -= 1

    def check_writable(self, op: Operation, buffer: SSAValue) -> None:
        """TreadleError for a store to a buffer that is only read."""
        if buffer in self.read_only:
            raise TreadleError(f"{op.name} to %{buffer.name_hint or '?'}, an input", f"kernel '{self.kernel}'")

    def checked_lanes(
        self, op: Operation, buffer: SSAValue, indices: Sequence[SSAValue], active: str, stride: int = 1
    ) -> str:
        """Writes the check of the active lanes, none of which may be; gives the flat offset of lane 0."""
        shape = self.shape(op, cast("MemRefType[Attribute]", buffer.type))
        names = [self.names[i] for i in indices]
        checks = [f"0 <= {i} < {extent}" for i, extent in zip(names[:-1], shape[:-1], strict=True)]
        checks += [f"0 <= {names[-1]} + {active}[{end}] * {stride} < {shape[-1]}" for end in (0, -1)]
        self.line(f"if {active} and not ({' and '.join(checks)}): fault({self.arguments(op, indices)})")
        return _offset(names, shape)

    def checked(self, op: Operation, buffer: SSAValue, indices: Sequence[SSAValue], lanes: str = "1") -> str:
        """Writes the check of an access to `lanes` elements of the last dimension; gives its flat offset."""
        shape = self.shape(op, cast("MemRefType[Attribute]", buffer.type))
        names = [self.names[i] for i in indices]
        extents = zip(names, shape, strict=True)
        checks = [f"0 <= {i} < {extent}" for i, extent in extents if literal(i) not in range(extent)]
        if lanes != "1":
            checks.append(f"{names[-1]} + {lanes} <= {shape[-1]}")
        if checks:
            self.line(f"if not ({' and '.join(checks)}): fault({self.arguments(op, indices)})")
        return _offset(names, shape)

    def offset_of(self, buffer: SSAValue, indices: Sequence[SSAValue]) -> str:
        """The flat offset of an element that was checked before."""
        return _offset([self.names[i] for i in indices], cast("MemRefType[Attribute]", buffer.type).get_shape())

    def shape(self, op: Operation, type: MemRefType[Attribute]) -> tuple[int, ...]:
        """A buffer's extents; TreadleError for one that is not row-major with static extents."""
        if not type.has_static_shape() or not isinstance(type.layout, NoneAttr | loop.SwizzleAttr):
            where = f"kernel '{self.kernel}'"
            raise TreadleError(f"{op.name} of {type}", where, "row-major buffers of static extents")
        return type.get_shape()

    def arguments(self, op: Operation, indices: Sequence[SSAValue]) -> str:
        """What `fault` and `unset` are called with: the operation's number, and the indices."""
        return ", ".join([str(self.number_of(op)), *(self.names[i] for i in indices)])

    def _fault(self, number: int, *indices: int) -> NoReturn:
        op = self.ops[number]
        accepted = "indices inside the buffer"
        if isinstance(op, task.ForOp):
            accepted = f"a worker of {op.mapping.data}: 0 to {op.mapping.data.workers - 1}"
        raise TreadleError(f"{self.describe(number)} at {list(indices)}", f"kernel '{self.kernel}'", accepted)

    def unset(self, number: int, *indices: int) -> NoReturn:
        """Raises TreadleError: a thread reads an element that was never stored."""
        message = f"{self.describe(number)} at {list(indices)} reads what nobody has stored"
        raise TreadleError(message, f"kernel '{self.kernel}'", "a store, and a barrier if another thread makes it")

    def number_of(self, op: Operation) -> int:
        """The number of the operation that is being written, by which messages name it."""
        if not self.ops or self.ops[-1] is not op:
            self.ops.append(op)
        return len(self.ops) - 1

    def assign(self, targets: Sequence[str], values: Sequence[str]) -> None:
        """Writes an assignment of several values at once."""
        if targets:
            self.line(f"{', '.join(targets)} = {', '.join(values)}")

    def bind(self, value: object) -> str:
        """A name in the text for an object that is no text."""
        name = f"g{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def define(self, value: SSAValue) -> str:
        """A new name for a value."""
        self.names[value] = self.fresh_name()
        return self.names[value]

    def fresh_name(self) -> str:
        """A name that nothing has yet."""
        self._serial += 1
        return f"v{self._serial}"

    def line(self, text: str) -> None:
        """Writes a line at the current indentation."""
        self.lines.append("  " * (self._indent - 1) + text)


def _offset(names: Sequence[str], shape: Sequence[int]) -> str:
    """The flat offset of an element of a row-major buffer."""
    start, terms = 0, list[str]()
    for n, i in enumerate(names):
        known, stride = literal(i), prod(shape[n + 1 :])
        if known is not None:
            start += known * stride
        else:
            terms.append(i if stride == 1 else f"{i} * {stride}")
    return " + ".join([*terms, str(start)] if start or not terms else terms)


# Chooses the loops of a kernel that are unrolled in its Python: those with constant bounds and short bodies.

_LONGEST = 256
"""The limit of an unrolled loop's operations: more take longer to compile than they save."""

Rounds = Sequence[Sequence[int]]


def unrolled(op: scf.ForOp | task.ForOp, names: Mapping[SSAValue, str]) -> Rounds | None:
    """The variables' values in each iteration of a loop that is to be unrolled; None for any other loop.

    A loop with barriers is not unrolled, since a barrier is identified by its operation, nor one that allocates buffers
    of a block.
    """
    rounds = _rounds(op, names)
    if rounds is None or any(map(_stays_one, op.body.walk())):
        return None
    return rounds if len(rounds) * _length(op.body.block, names) <= _LONGEST else None


def _rounds(op: scf.ForOp | task.ForOp, names: Mapping[SSAValue, str]) -> Rounds | None:
    if isinstance(op, task.ForOp):
        worker, mapping = 0 if op.worker is None else literal(names.get(op.worker, "")), op.mapping.data
        return mapping(worker) if worker is not None and worker in range(mapping.workers) else None
    low, high, step = (literal(names.get(value, "")) for value in (op.lb, op.ub, op.step))
    return None if low is None or high is None or not step else [(at,) for at in range(low, high, step)]


def _length(block: Block, names: Mapping[SSAValue, str]) -> int:
    """The operations of a body when loops with constant bounds in it are unrolled."""
    return sum(_length_of(op, names) for op in block.ops)


def _length_of(op: Operation, names: Mapping[SSAValue, str]) -> int:
    inside = sum(_length(block, names) for region in op.regions for block in region.blocks)
    rounds = _rounds(op, names) if isinstance(op, scf.ForOp | task.ForOp) else None
    return 1 + inside * (1 if rounds is None else len(rounds))


def _stays_one(op: Operation) -> bool:
    if isinstance(op, loop.BarrierOp | loop.ArriveOp):
        return True
    return isinstance(op, loop.AllocOp) and space_of(op.results[0].type) not in (None, loop.Space.REGISTER)


_ACCEPTED = "task.for, scf.for, scf.if, arith, math, memref.load/store/alloca, vector, the loop dialect's accesses"


@dataclass(frozen=True)
class KernelSource:
    """`run(block, thread, shared, *buffers)`: one thread's work, a generator if threads synchronise (`cooperates`).

    `shared` is a dictionary of the block, in which threads find the buffers they share; under `LAUNCH` it holds one of
    the launch for those of `of_launch`, by their operations' numbers; both are empty at first. At each barrier a
    generator yields the number of the operation, which `describe` names; at an operation of its warp it yields the
    number and the lane's operands, and is sent the lane's result, which `warp` of that number computes.
    """

    run: Callable[..., Any]
    cooperates: bool
    warp: Mapping[int, WarpFunction]
    of_launch: Mapping[int, MemRefType[Attribute]]
    text: str
    describe: Callable[[int], str]


def kernel_source(name: str, body: Block, outputs: int = 1) -> KernelSource:
    """Compiles a kernel's body, whose arguments are buffers (the last `outputs` of them written), block and thread.

    TreadleError for an operation that kernels do not support, and for a store to a buffer that is only read.
    """
    writer = _Writer(name, body, outputs)
    writer.write_block(body, [])
    *buffers, block, thread = (writer.names[arg] for arg in body.args)
    head = f"def run({', '.join([block, thread, 'shared', *buffers])}):"
    text = "\n".join([head, "  flight = [[]]", *writer.lines, ""])
    exec(compile(text, f"<kernel {name}>", "exec"), writer.namespace)
    run = cast("Callable[..., Any]", writer.namespace["run"])
    return KernelSource(run, writer.cooperates, writer.warp, writer.of_launch, text, writer.describe)


class _Writer(KernelText):
    """Writes statements for operations."""

    def __init__(self, name: str, body: Block, outputs: int):
        super().__init__(name, body, outputs)
        self.namespace |= {"arrive": arrive} | VECTORS | TILES
        self.cooperates = False
        self.warp: dict[int, WarpFunction] = {}
        self.of_launch: dict[int, MemRefType[Attribute]] = {}
        self._handlers: dict[type[Operation], Callable[[Any], None]] = {
            arith.ConstantOp: self._constant,
            UnsignedConstantOp: self._constant,
            scf.ForOp: self._for,
            scf.IfOp: self._if,
            task.ForOp: self._task_for,
            loop.LoadOp: self._loop_load,
            loop.StoreOp: self._loop_store,
            loop.AllocOp: self._alloc,
            loop.BarrierOp: self._barrier,
            loop.ArriveOp: self._arrive,
            loop.PrefetchOp: lambda op: None,
            loop.OpaqueOp: lambda op: self.names.update({op.result: self.names[op.index]}),
            loop.OpaqueBufferOp: lambda op: self.names.update({op.result: self.names[op.buffer]}),
            loop.WarpReduceOp: self._warp_reduce,
            loop.ShuffleOp: self._shuffle,
            loop.CopyOp: self._copy,
            loop.AsyncCopyOp: self._async_copy,
            loop.CommitOp: lambda op: self.line("flight.append([])"),
            loop.WaitOp: lambda op: self.line(f"land(flight, {op.groups})"),
            loop.LoadMatrixOp: self._load_matrix,
            loop.MmaOp: self._multiply,
            loop.MultiplyTilesOp: self._multiply_tiles,
            memref.LoadOp: lambda op: self._load(op, op.memref, op.indices),
            memref.StoreOp: lambda op: self._store(op, op.value, op.memref, op.indices),
            memref.AllocaOp: self._alloc,
            vector.LoadOp: self._vector_load,
            vector.StoreOp: self._vector_store,
            vector.MaskedLoadOp: self._masked_load,
            vector.MaskedStoreOp: self._masked_store,
            loop.StridedLoadOp: self._strided_load,
            loop.StridedStoreOp: self._strided_store,
            loop.TransposeOp: self._transpose,
        }

    def write_block(self, block: Block, targets: Sequence[str]) -> None:
        """The block's operations; what it yields is assigned to `targets`."""
        with self.indented():
            start = len(self.lines)
            for op in block.ops:
                if isinstance(op, scf.YieldOp | task.YieldOp | loop.YieldOp):
                    self.assign(targets, [self.names[v] for v in op.operands])
                else:
                    self._write(op)
            if len(self.lines) == start:
                self.line("pass")

    def _write(self, op: Operation) -> None:
        handler = self._handlers.get(type(op))
        if handler is not None:
            handler(op)
            return
        operands = [self.names[v] for v in op.operands]
        known = folded(op, operands)
        if known is not None:
            self.names[op.results[0]] = known
            return
        text = vector_expression(op)
        if text is None and is_arithmetic(op):
            text = expression(op) or self._call(op, len(operands))
        if text is None:
            raise TreadleError(f"{op.name} has no meaning in a kernel", f"kernel '{self.kernel}'", _ACCEPTED)
        self.line(f"{self.define(op.results[0])} = {text.format(*operands)}")

    def _call(self, op: Operation, operands: int) -> str:
        name = self.bind(function(op))
        return f"{name}({', '.join(f'{{{n}}}' for n in range(operands))})"

    def _constant(self, op: arith.ConstantOp) -> None:
        value = constant(op)
        self.names[op.result] = f"({value})" if isinstance(value, int) else self.bind(value)

    def _for(self, op: scf.ForOp) -> None:
        counter, *carried = (self.define(arg) for arg in op.body.block.args)
        self.assign(carried, [self.names[v] for v in op.iter_args])
        rounds = unrolled(op, self.names)
        if rounds is not None:
            self._write_rounds(op.body.block, rounds, carried)
        else:
            low, high, step = (self.names[v] for v in (op.lb, op.ub, op.step))
            self.line(f"for {counter} in range({low}, {high}, {step}):")
            self.write_block(op.body.block, carried)
        self.names.update(zip(op.results, carried, strict=True))

    def _write_rounds(self, block: Block, rounds: Sequence[Sequence[int]], carried: Sequence[str] = ()) -> None:
        """A loop's body once for each round, whose coordinates are constants: what they index is known now."""
        self.line("if True:")
        for coordinates in rounds:
            self.names.update((arg, f"({at})") for arg, at in zip(block.args, coordinates, strict=False))
            self.write_block(block, carried)
        if not rounds:
            self.line("  pass")

    def _if(self, op: scf.IfOp) -> None:
        results = [self.define(result) for result in op.results]
        self.line(f"if {self.names[op.cond]}:")
        self.write_block(op.true_region.block, results)
        if op.false_region.blocks:
            self.line("else:")
            self.write_block(op.false_region.block, results)

    def _task_for(self, op: task.ForOp) -> None:
        worker = "(0)" if op.worker is None else self.names[op.worker]
        mapping = op.mapping.data
        rounds = unrolled(op, self.names)
        if rounds is not None:
            self._write_rounds(op.body.block, rounds)
            return
        self.line(f"if not 0 <= {worker} < {mapping.workers}: fault({self.number_of(op)}, {worker})")
        coordinates = [self.define(arg) for arg in op.body.block.args]
        self.line(f"for {', '.join(coordinates)}, in {self.bind(cache(mapping))}({worker}):")
        self.write_block(op.body.block, [])

    def _loop_load(self, op: loop.LoadOp) -> None:
        if op.predicate is None or op.otherwise is None:
            self._load(op, op.buffer, op.indices)
            return
        self.line(f"if {self.names[op.predicate]}:")
        with self.indented():
            self._load(op, op.buffer, op.indices)
        self.line(f"else: {self.names[op.result]} = {self.names[op.otherwise]}")

    def _loop_store(self, op: loop.StoreOp) -> None:
        if op.predicate is None:
            self._store(op, op.value, op.buffer, op.indices)
            return
        self.line(f"if {self.names[op.predicate]}:")
        with self.indented():
            self._store(op, op.value, op.buffer, op.indices)

    def _load(self, op: Operation, buffer: SSAValue, indices: Sequence[SSAValue]) -> None:
        offset = self.checked(op, buffer, indices)
        result = self.define(op.results[0])
        self.line(f"{result} = {self.names[buffer]}[{offset}]")
        if buffer not in self.read_only:
            self.line(f"if {result} is None: unset({self.arguments(op, indices)})")

    def _store(self, op: Operation, value: SSAValue, buffer: SSAValue, indices: Sequence[SSAValue]) -> None:
        self.check_writable(op, buffer)
        offset = self.checked(op, buffer, indices)
        self.line(f"{self.names[buffer]}[{offset}] = {self.names[value]}")

    def _vector_load(self, op: vector.LoadOp) -> None:
        shape = loaded_shape(op)
        offset = self.checked(op, op.base, op.indices, str(shape[-1]))
        kind = dtype_name(op.result.type)
        where = f"{self.names[op.base]}, {offset}, {shape}, {kind}"
        self.line(f"{self.define(op.result)} = load_lanes({where})")
        self.line(f"if {self.names[op.result]} is None: unset({self.arguments(op, op.indices)})")

    def _vector_store(self, op: vector.StoreOp) -> None:
        self.check_writable(op, op.base)
        offset = self.checked(op, op.base, op.indices, str(lanes_of(op.vector.type)))
        self.line(f"store_lanes({self.names[op.base]}, {offset}, {self.names[op.vector]})")

    def _masked_load(self, op: vector.MaskedLoadOp) -> None:
        active, offset = self._active(op, op.base, op.indices, op.mask)
        where = f"{self.names[op.base]}, {offset}, {active}, {self.names[op.pass_thru]}"
        self.line(f"{self.define(op.result)} = load_active({where})")
        self.line(f"if {self.names[op.result]} is None: unset({self.arguments(op, op.indices)})")

    def _masked_store(self, op: vector.MaskedStoreOp) -> None:
        self.check_writable(op, op.base)
        active, offset = self._active(op, op.base, op.indices, op.mask)
        self.line(f"store_active({self.names[op.base]}, {offset}, {active}, {self.names[op.value_to_store]})")

    def _active(self, op: Operation, buffer: SSAValue, indices: Sequence[SSAValue], mask: SSAValue) -> tuple[str, str]:
        """The name of the list of active lanes, and the offset of lane 0, after checking those lanes only."""
        active = self.fresh_name()
        self.line(f"{active} = np.flatnonzero({self.names[mask]}).tolist()")
        return active, self.checked_lanes(op, buffer, indices, active)

    def _strided_load(self, op: loop.StridedLoadOp) -> None:
        active, offset = self._strided(op, op.buffer, op.indices, op.mask, lanes_of(op.result.type))
        otherwise = f"np.empty({lanes_of(op.result.type)}, {dtype_name(op.result.type)})"
        otherwise = otherwise if op.otherwise is None else self.names[op.otherwise]
        where = f"{self.names[op.buffer]}, {offset}, {active}, {otherwise}, {op.stride.value.data}"
        self.line(f"{self.define(op.result)} = load_active({where})")
        self.line(f"if {self.names[op.result]} is None: unset({self.arguments(op, op.indices)})")

    def _strided_store(self, op: loop.StridedStoreOp) -> None:
        self.check_writable(op, op.buffer)
        active, offset = self._strided(op, op.buffer, op.indices, op.mask, lanes_of(op.value.type))
        where = f"{self.names[op.buffer]}, {offset}, {active}, {self.names[op.value]}, {op.stride.value.data}"
        self.line(f"store_active({where})")

    def _transpose(self, op: loop.TransposeOp) -> None:
        offset = self.checked(op, op.buffer, op.indices, str(op.lanes))
        where = f"{self.names[op.buffer]}, {offset}, {op.lanes}"
        self.line(f"if not transpose({where}): unset({self.arguments(op, op.indices)})")

    def _strided(
        self,
        op: loop.StridedLoadOp | loop.StridedStoreOp,
        buffer: SSAValue,
        indices: Sequence[SSAValue],
        mask: SSAValue | None,
        lanes: int,
    ) -> tuple[str, str]:
        """As `_active`, for lanes `stride` elements apart."""
        active = self.fresh_name()
        every = f"range({lanes})" if mask is None else f"np.flatnonzero({self.names[mask]}).tolist()"
        self.line(f"{active} = {every}")
        return active, self.checked_lanes(op, buffer, indices, active, op.stride.value.data)

    def _alloc(self, op: loop.AllocOp | memref.AllocaOp) -> None:
        buffer = op.results[0]
        type = cast("MemRefType[Attribute]", buffer.type)
        # As text, since each iteration of a loop allocates new registers.
        made = f"[{initial(type)}] * {prod(self.shape(op, type))}"
        name, space = self.define(buffer), space_of(type)
        if space in (None, loop.Space.REGISTER):
            self.line(f"{name} = {made}")
            return
        key, home = self.number_of(op), "shared" if space is loop.Space.SHARED else f"shared[{LAUNCH!r}]"
        self.of_launch |= {key: type} if space is not loop.Space.SHARED else {}
        self.line(f"if {key} not in {home}: {home}[{key}] = {made}")
        self.line(f"{name} = {home}[{key}]")

    def _barrier(self, op: loop.BarrierOp) -> None:
        self.cooperates = True
        self.line(f"yield {self.number_of(op)}")

    def _arrive(self, op: loop.ArriveOp) -> None:
        self.cooperates = True
        number, index = self.number_of(op), self.checked(op, op.counters, [op.index])
        self.line(f"yield {number}")
        arguments = f"shared, {number}, {self.names[op.counters]}, {index}, {op.count}"
        self.line(f"{self.define(op.result)} = arrive({arguments})")
        self.line(f"yield {number}")
        self.line(f"shared.pop({number}, None)")

    def _warp_reduce(self, op: loop.WarpReduceOp) -> None:
        self._of_warp(op, folder(op), self.names[op.value])

    def _shuffle(self, op: loop.ShuffleOp) -> None:
        self._of_warp(op, shuffled, f"{self.names[op.value]}, {self.names[op.lane]}")

    def _copy(self, op: loop.CopyOp) -> None:
        buffer, value = self.names[op.buffer], self.fresh_name()
        self.checked(op, op.buffer, op.indices, str(op.count))
        self.line(f"for {self.define(op.element)} in range({op.count}):")
        self.write_block(op.body.block, [value])
        offset = f"{self.offset_of(op.buffer, op.indices)} + {self.names[op.element]}"
        landed = f"{buffer}[{offset}] = {value}"
        self.line("  " + (landed if op.is_async is None else f"start(flight, {buffer}, {offset}, {value})"))

    def _async_copy(self, op: loop.AsyncCopyOp) -> None:
        target = self.checked(op, op.buffer, op.indices, str(op.count))
        lane, values = self.fresh_name(), self.fresh_name()
        zero = self.bind(scalar_dtype(cast("MemRefType[Attribute]", op.source.type).element_type).type(0))
        self.line(f"{values} = [{zero}] * {op.count}")
        self.line(f"if {'True' if op.predicate is None else self.names[op.predicate]}:")
        with self.indented():
            source = self.checked(op, op.source, op.source_indices, str(op.count))
            self.line(f"{values} = {self.names[op.source]}[{source} : {source} + {op.count}]")
        self.line(f"for {lane} in range({op.count}):")
        self.line(f"  start(flight, {self.names[op.buffer]}, {target} + {lane}, {values}[{lane}])")

    def _load_matrix(self, op: loop.LoadMatrixOp) -> None:
        row = 4 * op.fragment.type.get_shape()[-1]
        offset = self.checked(op, op.buffer, op.indices, str(row))
        number = self.number_of(op)
        self._of_warp(op, matrix_loader(op, partial(self.unset, number)), f"{self.names[op.buffer]}, {offset}")

    def _multiply(self, op: loop.MmaOp) -> None:
        self._of_warp(op, multiply, ", ".join(self.names[operand] for operand in op.operands))

    def _multiply_tiles(self, op: loop.MultiplyTilesOp) -> None:
        buffers: list[str] = []
        for buffer, indices in ((op.acc, op.acc_indices), (op.a, op.a_indices), (op.b, op.b_indices)):
            buffers += [self.names[buffer], self.checked(op, buffer, indices)]
        product = self.bind(unit_product(op, partial(self.unset, self.number_of(op))))
        self.line(f"{product}({', '.join(buffers)})")

    def _of_warp(self, op: Operation, function: WarpFunction, brought: str) -> None:
        self.cooperates = True
        number = self.number_of(op)
        self.warp[number] = function
        self.line(f"{self.define(op.results[0])} = yield {number}, ({brought},)")
