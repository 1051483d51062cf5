"""A kernel's body as Python text: what `kernels.py` runs.

Every thread of a block is a call; it yields at barriers, and where its warp acts together. A buffer is a flat list of
scalars, in which None is an element that nobody has stored; a swizzle changes nothing here, since indices name elements
without it. Every access checks its indices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from typing import Any, NoReturn, cast

import numpy as np
from xdsl.dialects import arith, memref, scf, vector
from xdsl.dialects.builtin import MemRefType, NoneAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue

from treadle.backends.reference import kernel_tiles, kernel_vectors
from treadle.backends.reference.kernel_folds import folder
from treadle.backends.reference.kernel_launch import LAUNCH, arrive, initial, is_of_launch, space_of
from treadle.backends.reference.kernel_scalars import constant, expression, function
from treadle.backends.reference.kernel_tiles import WarpFunction, matrix_loader, multiply
from treadle.backends.reference.kernel_vectors import lanes_of
from treadle.dialects import loop, task
from treadle.dialects.graph.numpy_scalars import scalar_dtype
from treadle.dialects.scalar import is_arithmetic
from treadle.errors import TreadleError

_ACCEPTED = "task.for, scf.for, scf.if, arith, math, memref.load/store/alloca, vector, the loop dialect's accesses"


@dataclass(frozen=True)
class KernelSource:
    """`run(block, thread, shared, *buffers)`: one thread's work, a generator if threads meet (`cooperates`).

    `shared` is a dictionary of the block, in which threads find the buffers they share; under `LAUNCH` it holds one of
    the launch for those of `of_launch`, by their operations' numbers; both are empty at first. A generator yields at
    each barrier the number of the operation, which `describe` names; for an operation of its warp a pair of the number
    and what the lane brings, and is sent what `warp` of that number gives the lane.
    """

    run: Callable[..., Any]
    cooperates: bool
    warp: Mapping[int, WarpFunction]
    of_launch: Mapping[int, MemRefType[Attribute]]
    text: str
    describe: Callable[[int], str]


def kernel_source(name: str, body: Block, outputs: int = 1) -> KernelSource:
    """Compiles a kernel's body, whose arguments are buffers (the last `outputs` of them written), block and thread.

    TreadleError naming an operation that kernels do not hold, and a store to a buffer that is only read.
    """
    writer = _Writer(name, body, outputs)
    writer.write_block(body, [])
    *buffers, block, thread = (writer.names[arg] for arg in body.args)
    head = f"def run({', '.join([block, thread, 'shared', *buffers])}):"
    text = "\n".join([head, "  flight = [[]]", *writer.lines, ""])
    exec(compile(text, f"<kernel {name}>", "exec"), writer.namespace)
    run = cast("Callable[..., Any]", writer.namespace["run"])
    return KernelSource(run, writer.cooperates, writer.warp, writer.of_launch, text, writer.describe)


class _Writer:
    """Writes statements for operations. All names in the text are made here; none comes from the IR."""

    def __init__(self, name: str, body: Block, outputs: int):
        self.kernel = name
        self.lines: list[str] = []
        self.names: dict[SSAValue, str] = {arg: f"v{n}" for n, arg in enumerate(body.args)}
        self.read_only = {arg for arg in body.args[: -2 - outputs] if not is_of_launch(arg.type)}
        self.namespace: dict[str, object] = {"np": np, "fault": self._fault, "unset": self._unset}
        self.namespace |= {"arrive": arrive} | kernel_vectors.NAMESPACE | kernel_tiles.NAMESPACE
        self.ops: list[Operation] = []
        self.cooperates = False
        self.warp: dict[int, WarpFunction] = {}
        self.of_launch: dict[int, MemRefType[Attribute]] = {}
        self._indent = 1
        self._serial = len(self.names)
        self._handlers: dict[type[Operation], Callable[[Any], None]] = {
            arith.ConstantOp: self._constant,
            scf.ForOp: self._for,
            scf.IfOp: self._if,
            task.ForOp: self._task_for,
            loop.LoadOp: self._loop_load,
            loop.StoreOp: self._loop_store,
            loop.AllocOp: self._alloc,
            loop.BarrierOp: self._barrier,
            loop.ArriveOp: self._arrive,
            loop.WarpReduceOp: self._warp_reduce,
            loop.CopyOp: self._copy,
            loop.AsyncCopyOp: self._async_copy,
            loop.CommitOp: lambda op: self._line("flight.append([])"),
            loop.WaitOp: lambda op: self._line(f"land(flight, {op.groups})"),
            loop.LoadMatrixOp: self._load_matrix,
            loop.MmaOp: self._multiply,
            memref.LoadOp: lambda op: self._load(op, op.memref, op.indices),
            memref.StoreOp: lambda op: self._store(op, op.value, op.memref, op.indices),
            memref.AllocaOp: self._alloc,
            vector.LoadOp: self._vector_load,
            vector.StoreOp: self._vector_store,
            vector.MaskedLoadOp: self._masked_load,
            vector.MaskedStoreOp: self._masked_store,
            loop.StridedLoadOp: self._strided_load,
            loop.StridedStoreOp: self._strided_store,
        }

    def describe(self, number: int) -> str:
        """An operation and the buffer that it touches, for messages."""
        op = self.ops[number]
        buffers = [v for v in (*op.operands, *op.results) if isinstance(v.type, MemRefType)]
        return " ".join([op.name, *(f"of %{b.name_hint or '?'}: {b.type}" for b in buffers)])

    def write_block(self, block: Block, targets: Sequence[str]) -> None:
        """The block's operations; what it yields is assigned to `targets`."""
        self._indent += 1
        start = len(self.lines)
        for op in block.ops:
            if isinstance(op, scf.YieldOp | task.YieldOp | loop.YieldOp):
                self._assign(targets, [self.names[v] for v in op.operands])
            else:
                self._write(op)
        if len(self.lines) == start:
            self._line("pass")
        self._indent -= 1

    def _write(self, op: Operation) -> None:
        handler = self._handlers.get(type(op))
        if handler is not None:
            handler(op)
            return
        operands = [self.names[v] for v in op.operands]
        text = kernel_vectors.expression(op)
        if text is None and is_arithmetic(op):
            text = expression(op) or self._call(op, len(operands))
        if text is None:
            raise TreadleError(f"{op.name} has no meaning in a kernel", f"kernel '{self.kernel}'", _ACCEPTED)
        self._line(f"{self._name(op.results[0])} = {text.format(*operands)}")

    def _call(self, op: Operation, operands: int) -> str:
        name = self._global(function(op))
        return f"{name}({', '.join(f'{{{n}}}' for n in range(operands))})"

    def _constant(self, op: arith.ConstantOp) -> None:
        value = constant(op)
        self.names[op.result] = f"({value})" if isinstance(value, int) else self._global(value)

    def _for(self, op: scf.ForOp) -> None:
        counter, *carried = (self._name(arg) for arg in op.body.block.args)
        self._assign(carried, [self.names[v] for v in op.iter_args])
        low, high, step = (self.names[v] for v in (op.lb, op.ub, op.step))
        self._line(f"for {counter} in range({low}, {high}, {step}):")
        self.write_block(op.body.block, carried)
        self.names.update(zip(op.results, carried, strict=True))

    def _if(self, op: scf.IfOp) -> None:
        results = [self._name(result) for result in op.results]
        self._line(f"if {self.names[op.cond]}:")
        self.write_block(op.true_region.block, results)
        if op.false_region.blocks:
            self._line("else:")
            self.write_block(op.false_region.block, results)

    def _task_for(self, op: task.ForOp) -> None:
        worker = "0" if op.worker is None else self.names[op.worker]
        mapping = op.mapping.data
        self._line(f"if not 0 <= {worker} < {mapping.workers}: fault({self._number(op)}, {worker})")
        coordinates = [self._name(arg) for arg in op.body.block.args]
        self._line(f"for {', '.join(coordinates)}, in {self._global(cache(mapping))}({worker}):")
        self.write_block(op.body.block, [])

    def _loop_load(self, op: loop.LoadOp) -> None:
        if op.predicate is None or op.otherwise is None:
            self._load(op, op.buffer, op.indices)
            return
        self._line(f"if {self.names[op.predicate]}:")
        self._indent += 1
        self._load(op, op.buffer, op.indices)
        self._indent -= 1
        self._line(f"else: {self.names[op.result]} = {self.names[op.otherwise]}")

    def _loop_store(self, op: loop.StoreOp) -> None:
        if op.predicate is None:
            self._store(op, op.value, op.buffer, op.indices)
            return
        self._line(f"if {self.names[op.predicate]}:")
        self._indent += 1
        self._store(op, op.value, op.buffer, op.indices)
        self._indent -= 1

    def _load(self, op: Operation, buffer: SSAValue, indices: Sequence[SSAValue]) -> None:
        offset = self._checked(op, buffer, indices)
        result = self._name(op.results[0])
        self._line(f"{result} = {self.names[buffer]}[{offset}]")
        if buffer not in self.read_only:
            self._line(f"if {result} is None: unset({self._arguments(op, indices)})")

    def _store(self, op: Operation, value: SSAValue, buffer: SSAValue, indices: Sequence[SSAValue]) -> None:
        self._check_writable(op, buffer)
        offset = self._checked(op, buffer, indices)
        self._line(f"{self.names[buffer]}[{offset}] = {self.names[value]}")

    def _vector_load(self, op: vector.LoadOp) -> None:
        shape = kernel_vectors.loaded_shape(op)
        offset = self._checked(op, op.base, op.indices, str(shape[-1]))
        kind = kernel_vectors.dtype_name(op.result.type)
        where = f"{self.names[op.base]}, {offset}, {shape}, {kind}"
        self._line(f"{self._name(op.result)} = load_lanes({where})")
        self._line(f"if {self.names[op.result]} is None: unset({self._arguments(op, op.indices)})")

    def _vector_store(self, op: vector.StoreOp) -> None:
        self._check_writable(op, op.base)
        offset = self._checked(op, op.base, op.indices, str(lanes_of(op.vector.type)))
        self._line(f"store_lanes({self.names[op.base]}, {offset}, {self.names[op.vector]})")

    def _masked_load(self, op: vector.MaskedLoadOp) -> None:
        active, offset = self._active(op, op.base, op.indices, op.mask)
        where = f"{self.names[op.base]}, {offset}, {active}, {self.names[op.pass_thru]}"
        self._line(f"{self._name(op.result)} = load_active({where})")
        self._line(f"if {self.names[op.result]} is None: unset({self._arguments(op, op.indices)})")

    def _masked_store(self, op: vector.MaskedStoreOp) -> None:
        self._check_writable(op, op.base)
        active, offset = self._active(op, op.base, op.indices, op.mask)
        self._line(f"store_active({self.names[op.base]}, {offset}, {active}, {self.names[op.value_to_store]})")

    def _active(self, op: Operation, buffer: SSAValue, indices: Sequence[SSAValue], mask: SSAValue) -> tuple[str, str]:
        """The name of the list of active lanes, and the offset of lane 0, after checking those lanes only."""
        active = self._fresh()
        self._line(f"{active} = np.flatnonzero({self.names[mask]}).tolist()")
        return active, self._checked_lanes(op, buffer, indices, active)

    def _strided_load(self, op: loop.StridedLoadOp) -> None:
        active, offset = self._strided(op, op.buffer, op.indices, op.mask, lanes_of(op.result.type))
        otherwise = f"np.empty({lanes_of(op.result.type)}, {kernel_vectors.dtype_name(op.result.type)})"
        otherwise = otherwise if op.otherwise is None else self.names[op.otherwise]
        where = f"{self.names[op.buffer]}, {offset}, {active}, {otherwise}, {op.stride.value.data}"
        self._line(f"{self._name(op.result)} = load_active({where})")
        self._line(f"if {self.names[op.result]} is None: unset({self._arguments(op, op.indices)})")

    def _strided_store(self, op: loop.StridedStoreOp) -> None:
        self._check_writable(op, op.buffer)
        active, offset = self._strided(op, op.buffer, op.indices, op.mask, lanes_of(op.value.type))
        where = f"{self.names[op.buffer]}, {offset}, {active}, {self.names[op.value]}, {op.stride.value.data}"
        self._line(f"store_active({where})")

    def _strided(
        self,
        op: loop.StridedLoadOp | loop.StridedStoreOp,
        buffer: SSAValue,
        indices: Sequence[SSAValue],
        mask: SSAValue | None,
        lanes: int,
    ) -> tuple[str, str]:
        """As `_active`, for lanes `stride` elements apart."""
        active = self._fresh()
        every = f"range({lanes})" if mask is None else f"np.flatnonzero({self.names[mask]}).tolist()"
        self._line(f"{active} = {every}")
        return active, self._checked_lanes(op, buffer, indices, active, op.stride.value.data)

    def _checked_lanes(
        self, op: Operation, buffer: SSAValue, indices: Sequence[SSAValue], active: str, stride: int = 1
    ) -> str:
        """Writes the check of the active lanes, none of which may be; gives the flat offset of lane 0."""
        shape = self._shape(op, cast("MemRefType[Attribute]", buffer.type))
        names = [self.names[i] for i in indices]
        checks = [f"0 <= {i} < {extent}" for i, extent in zip(names[:-1], shape[:-1], strict=True)]
        checks += [f"0 <= {names[-1]} + {active}[{end}] * {stride} < {shape[-1]}" for end in (0, -1)]
        self._line(f"if {active} and not ({' and '.join(checks)}): fault({self._arguments(op, indices)})")
        return _offset(names, shape)

    def _alloc(self, op: loop.AllocOp | memref.AllocaOp) -> None:
        buffer = op.results[0]
        type = cast("MemRefType[Attribute]", buffer.type)
        # As text of its own: threads make their registers anew in each round of a loop.
        made = f"[{initial(type)}] * {prod(self._shape(op, type))}"
        name, space = self._name(buffer), space_of(type)
        if space in (None, loop.Space.REGISTER):
            self._line(f"{name} = {made}")
            return
        key, home = self._number(op), "shared" if space is loop.Space.SHARED else f"shared[{LAUNCH!r}]"
        self.of_launch |= {key: type} if space is not loop.Space.SHARED else {}
        self._line(f"if {key} not in {home}: {home}[{key}] = {made}")
        self._line(f"{name} = {home}[{key}]")

    def _barrier(self, op: loop.BarrierOp) -> None:
        self.cooperates = True
        self._line(f"yield {self._number(op)}")

    def _arrive(self, op: loop.ArriveOp) -> None:
        self.cooperates = True
        number, index = self._number(op), self._checked(op, op.counters, [op.index])
        self._line(f"yield {number}")
        arguments = f"shared, {number}, {self.names[op.counters]}, {index}, {op.count}"
        self._line(f"{self._name(op.result)} = arrive({arguments})")
        self._line(f"yield {number}")
        self._line(f"shared.pop({number}, None)")

    def _warp_reduce(self, op: loop.WarpReduceOp) -> None:
        self._of_warp(op, folder(op), self.names[op.value])

    def _copy(self, op: loop.CopyOp) -> None:
        buffer, value = self.names[op.buffer], self._fresh()
        self._checked(op, op.buffer, op.indices, str(op.count))
        self._line(f"for {self._name(op.element)} in range({op.count}):")
        self.write_block(op.body.block, [value])
        offset = f"{self._offset_of(op.buffer, op.indices)} + {self.names[op.element]}"
        landed = f"{buffer}[{offset}] = {value}"
        self._line("  " + (landed if op.is_async is None else f"start(flight, {buffer}, {offset}, {value})"))

    def _async_copy(self, op: loop.AsyncCopyOp) -> None:
        target = self._checked(op, op.buffer, op.indices, str(op.count))
        lane, values = self._fresh(), self._fresh()
        zero = self._global(scalar_dtype(cast("MemRefType[Attribute]", op.source.type).element_type).type(0))
        self._line(f"{values} = [{zero}] * {op.count}")
        self._line(f"if {'True' if op.predicate is None else self.names[op.predicate]}:")
        self._indent += 1
        source = self._checked(op, op.source, op.source_indices, str(op.count))
        self._line(f"{values} = {self.names[op.source]}[{source} : {source} + {op.count}]")
        self._indent -= 1
        self._line(f"for {lane} in range({op.count}):")
        self._line(f"  start(flight, {self.names[op.buffer]}, {target} + {lane}, {values}[{lane}])")

    def _load_matrix(self, op: loop.LoadMatrixOp) -> None:
        row = 4 * op.fragment.type.get_shape()[-1]
        offset = self._checked(op, op.buffer, op.indices, str(row))
        number = self._number(op)
        self._of_warp(op, matrix_loader(op, partial(self._unset, number)), f"{self.names[op.buffer]}, {offset}")

    def _multiply(self, op: loop.MmaOp) -> None:
        self._of_warp(op, multiply, ", ".join(self.names[operand] for operand in op.operands))

    def _of_warp(self, op: Operation, function: WarpFunction, brought: str) -> None:
        self.cooperates = True
        number = self._number(op)
        self.warp[number] = function
        self._line(f"{self._name(op.results[0])} = yield {number}, ({brought},)")

    def _check_writable(self, op: Operation, buffer: SSAValue) -> None:
        if buffer in self.read_only:
            raise TreadleError(f"{op.name} to %{buffer.name_hint or '?'}, an input", f"kernel '{self.kernel}'")

    def _checked(self, op: Operation, buffer: SSAValue, indices: Sequence[SSAValue], lanes: str = "1") -> str:
        """Writes the check of an access to `lanes` elements of the last dimension; gives its flat offset."""
        shape = self._shape(op, cast("MemRefType[Attribute]", buffer.type))
        names = [self.names[i] for i in indices]
        checks = [f"0 <= {i} < {extent}" for i, extent in zip(names, shape, strict=True)]
        if lanes != "1":
            checks.append(f"{names[-1]} + {lanes} <= {shape[-1]}")
        if checks:
            self._line(f"if not ({' and '.join(checks)}): fault({self._arguments(op, indices)})")
        return _offset(names, shape)

    def _offset_of(self, buffer: SSAValue, indices: Sequence[SSAValue]) -> str:
        """The flat offset of an element that was checked before."""
        return _offset([self.names[i] for i in indices], cast("MemRefType[Attribute]", buffer.type).get_shape())

    def _shape(self, op: Operation, type: MemRefType[Attribute]) -> tuple[int, ...]:
        if not type.has_static_shape() or not isinstance(type.layout, NoneAttr | loop.SwizzleAttr):
            where = f"kernel '{self.kernel}'"
            raise TreadleError(f"{op.name} of {type}", where, "row-major buffers of static extents")
        return type.get_shape()

    def _arguments(self, op: Operation, indices: Sequence[SSAValue]) -> str:
        return ", ".join([str(self._number(op)), *(self.names[i] for i in indices)])

    def _fault(self, number: int, *indices: int) -> NoReturn:
        op = self.ops[number]
        accepted = "indices inside the buffer"
        if isinstance(op, task.ForOp):
            accepted = f"a worker of {op.mapping.data}: 0 to {op.mapping.data.workers - 1}"
        raise TreadleError(f"{self.describe(number)} at {list(indices)}", f"kernel '{self.kernel}'", accepted)

    def _unset(self, number: int, *indices: int) -> NoReturn:
        message = f"{self.describe(number)} at {list(indices)} reads what nobody has stored"
        raise TreadleError(message, f"kernel '{self.kernel}'", "a store, and a barrier if another thread makes it")

    def _number(self, op: Operation) -> int:
        if not self.ops or self.ops[-1] is not op:
            self.ops.append(op)
        return len(self.ops) - 1

    def _assign(self, targets: Sequence[str], values: Sequence[str]) -> None:
        if targets:
            self._line(f"{', '.join(targets)} = {', '.join(values)}")

    def _global(self, value: object) -> str:
        name = f"g{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def _name(self, value: SSAValue) -> str:
        self.names[value] = self._fresh()
        return self.names[value]

    def _fresh(self) -> str:
        self._serial += 1
        return f"v{self._serial}"

    def _line(self, text: str) -> None:
        self.lines.append("  " * (self._indent - 1) + text)


def _offset(names: Sequence[str], shape: Sequence[int]) -> str:
    """The flat offset of an element of a row-major buffer."""
    strides = [prod(shape[n + 1 :]) for n in range(len(shape))]
    return " + ".join(f"{i} * {s}" for i, s in zip(names, strides, strict=True)) or "0"


__all__ = ["KernelSource", "kernel_source"]
