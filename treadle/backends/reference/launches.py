"""Runs functions of launches in real memory, so that buffers that share bytes in the plan share them here."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import MemRefType, ModuleOp, SymbolRefAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from treadle.backends.program import BufferRef, buffer_reference, numbered_constants
from treadle.backends.reference.dense_tensors import UNSET
from treadle.backends.reference.kernel_launch import is_of_launch
from treadle.backends.reference.kernels import Kernel
from treadle.decision_tree import kernel_for
from treadle.dialects import host, loop
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.errors import TreadleError

Array = NDArray[Any]


class LaunchRun:
    """One call of a planned module, whose program has `constants`; with `reverse`, blocks and threads run in the
    opposite order."""

    def __init__(self, module: ModuleOp, constants: Sequence[Array], reverse: bool):
        self._reverse = reverse
        self._kernels = {f.sym_name.data: Kernel(f) for f in module.body.block.ops if isinstance(f, loop.FuncOp)}
        self._functions = {f.sym_name.data: f for f in module.body.block.ops if isinstance(f, FuncOp)}
        self._constants = {value: constants[number] for value, number in numbered_constants(module).items()}

    def run(self, function: FuncOp, inputs: Sequence[Array], outputs: Sequence[Array], arena: Array) -> None:
        """Runs a function, which writes into `outputs` and into the bytes of `arena`."""
        memory = _Memory(self._constants, {"input": inputs, "output": outputs}, arena)
        for op in function.body.block.ops:
            if isinstance(op, host.BufferOp):
                memory.add(op)
            elif isinstance(op, host.LaunchOp):
                self._launch(op, memory)
            elif isinstance(op, host.DispatchOp):
                extents = [int(memory.of(extent).item()) for extent in op.extents]
                launch = list(op.launches.block.ops)[kernel_for(op.tree.data, extents)]
                assert isinstance(launch, host.LaunchOp)
                self._launch(launch, memory)
            elif isinstance(op, host.LoopOp):
                self._loop(op, memory)
            elif isinstance(op, host.IfOp):
                branch = op.then if memory.of(op.condition).any() else op.otherwise
                given, made = (list(map(memory.of, values)) for values in (op.read, op.final))
                self._call(branch, given, made, memory.of(op.arena))

    def _call(self, symbol: SymbolRefAttr, inputs: Sequence[Array], outputs: Sequence[Array], arena: Array) -> None:
        name = symbol.string_value()
        if name not in self._functions:
            raise TreadleError(f"there is no function @{name}", "@main", [f"@{each}" for each in self._functions])
        self.run(self._functions[name], inputs, outputs, arena.view(np.uint8))

    def _loop(self, op: host.LoopOp, memory: _Memory) -> None:
        now, after, spare = (list(map(memory.of, values)) for values in (op.initial, op.final, op.spare))
        read, rows, again = (list(map(memory.of, values)) for values in (op.read, op.rows, op.again))
        counter, final = memory.of(op.counter), after
        times = () if op.times is None else (op.times.value.data,)
        limits = [int(memory.of(each).item()) for each in op.tests[:1]]
        for condition in again:
            condition[...] = memory.of(op.tests[1]).reshape(())
        counter[...] = 0
        while counter < min((*limits, *times)) and all(condition.any() for condition in again):
            made = [*again, *after, *(each.reshape(*times, -1)[int(counter.item())] for each in rows)]
            self._call(op.body, [counter, *now, *read], made, memory.of(op.arena))
            now, after, spare = after, spare, after
            counter += 1
        for wanted, found in zip(final, now, strict=True):
            wanted[...] = found.reshape(wanted.shape)

    def _launch(self, launch: host.LaunchOp, memory: _Memory) -> None:
        name = launch.kernel.string_value()
        if name not in self._kernels:
            raise TreadleError(f"there is no kernel @{name}", "@main", [f"@{each}" for each in self._kernels])
        kernel = self._kernels[name]
        buffers: list[Array] = []
        for value, type in zip(launch.buffers, kernel.types, strict=True):
            # loop-flatten leaves the kernels' buffers one-dimensional; all are contiguous, so this is a view.
            if not is_of_launch(type):
                buffers.append(memory.of(value).reshape(type.get_shape()))
            elif memory.is_in_arena(value):
                # A live value that shares bytes with the launch's scratch memory is overwritten, as it would be on a
                # GPU.
                memory.of(value).reshape(-1).view(np.uint8)[...] = UNSET
        read, written = buffers[: -kernel.num_outputs], buffers[-kernel.num_outputs :]
        for buffer, result in zip(written, kernel.results(read, reverse=self._reverse), strict=True):
            buffer[...] = result


class _Memory:
    """The arrays of a function's buffers, as views."""

    def __init__(self, constants: dict[SSAValue, Any], arrays: dict[str, Sequence[Array]], arena: Array):
        self._arrays, self._arena = arrays, arena
        self._known: dict[SSAValue, Array] = dict(constants)
        self._in_arena: set[SSAValue] = set()

    def add(self, op: host.BufferOp) -> None:
        if op.value is None:
            self._known[op.buffer] = self._view(buffer_reference(op), op.type)
        if op.kind.data == "arena":
            self._in_arena.add(op.buffer)

    def of(self, value: SSAValue) -> Array:
        return self._known[value]

    def is_in_arena(self, value: SSAValue) -> bool:
        return value in self._in_arena

    def _view(self, reference: BufferRef, type: MemRefType) -> Array:
        if reference.kind in self._arrays:
            return self._arrays[reference.kind][reference.index]
        dtype, shape = numpy_dtype(type.get_element_type()), type.get_shape()
        if reference.kind == "zeroed":
            return np.zeros(shape, dtype)
        region = self._arena[reference.index : reference.index + prod(shape) * dtype.itemsize]
        return region.view(dtype).reshape(shape)


__all__ = ["LaunchRun"]
