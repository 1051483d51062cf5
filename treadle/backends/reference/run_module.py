"""Runs modules with NumPy: graph operators, kernels, and launches over planned buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ArrayAttr, MemRefType, ModuleOp, StringAttr, SymbolRefAttr, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from treadle.artifact.manifest import Tensor
from treadle.backends.program import (
    BufferRef,
    TensorSpec,
    buffer_reference,
    dense_tensors,
    numbered_constants,
    planned_main,
    read_program,
)
from treadle.backends.reference.bounded import Bounded
from treadle.backends.reference.kernel_operations import is_of_launch
from treadle.backends.reference.kernels import Kernel
from treadle.dialects import host, loop
from treadle.dialects.graph import FusedOp, IfOp, LoopOp, YieldOp
from treadle.dialects.graph.append import states_of
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.dialects.graph.evaluate import evaluate_results, run_arrays
from treadle.errors import TreadleError
from treadle.passes.graph.definition_analysis import shape_of
from treadle.passes.loop.loop_dense_arguments import Part, parts_of
from treadle.shapes.decision_tree import kernel_for
from treadle.shapes.dynamic import OutputExtents

# Inputs and outputs that hold the elements of a call alone, beside the largest shapes that callers know.

Array = NDArray[Any]

UNSET = 0xFF
"""Every byte of memory where nothing was stored yet: NaN as a float, -1 as an integer."""


class DenseTensors:
    """The `inputs` or `outputs` of @main in a call with some extents, which the last of its arguments are."""

    def __init__(self, main: FuncOp, which: str, shapes: Sequence[Sequence[int]], extents: Sequence[Array]):
        self._extents = [int(extent) for extent in extents]
        numbers, parts = dense_tensors(main, which), parts_of(main, f"{which[:-1]}_extents", shapes)
        self._parts = {n: each for n, each in parts.items() if n in numbers}

    def packed(self, arrays: Sequence[Array]) -> list[Array]:
        """Tensors of the largest shapes, with the elements of the call first where the program has them so."""
        return [self._packed(array, self._parts[n]) if n in self._parts else array for n, array in enumerate(arrays)]

    def spread(self, arrays: Sequence[Array]) -> list[Array]:
        """The opposite."""
        return [self._spread(array, self._parts[n]) if n in self._parts else array for n, array in enumerate(arrays)]

    def _packed(self, array: Array, parts: Sequence[Part]) -> Array:
        result, inside = _unset(array), self._inside(array, parts).reshape(-1)
        result.reshape(-1)[: inside.size] = inside
        return result

    def _spread(self, array: Array, parts: Sequence[Part]) -> Array:
        result = _unset(array)
        inside = self._inside(result, parts)
        inside[...] = array.reshape(-1)[: prod(inside.shape)].reshape(inside.shape)
        return result

    def _inside(self, array: Array, parts: Sequence[Part]) -> Array:
        """What lies within the extents."""
        sizes = [part.bound if part.extent is None else self._extents[part.extent] for part in parts]
        return array.reshape([part.bound for part in parts])[tuple(map(slice, sizes))]


def _unset(array: Array) -> Array:
    """An array like another whose elements were never stored: every byte is 255."""
    return np.full(array.nbytes, UNSET, np.uint8).view(array.dtype).reshape(array.shape)


# Results of a module's @main without what lies beyond extents that depend on data (docs/adr/0047).


def within_extents(main: FuncOp, results: Sequence[Array]) -> list[Array]:
    """The results but the last ones, which are the extents, each cut to its own.

    A module without such extents has its results as they are.
    """
    found = texts(main.attributes.get("found"))
    if not found:
        return list(results)
    count = len(results) - len(found)
    values = {name: int(array.item()) for name, array in zip(found, results[count:], strict=True)}
    given = main.attributes["output_extents"]
    assert isinstance(given, ArrayAttr)
    pairs = zip(given.data[:count], results[:count], strict=True)
    return [_cropped(texts(extents), array, values) for extents, array in pairs]


def bounded_within_extents(main: FuncOp, results: Sequence[Bounded]) -> list[Bounded]:
    """As `within_extents`, of values with limits; the extents are taken as they are."""
    if not texts(main.attributes.get("found")):
        return list(results)
    values = within_extents(main, [each.value for each in results])
    count = len(values)
    numbers = [each.value for each in results[count:]]
    errors = within_extents(main, [*(each.full_error for each in results[:count]), *numbers])
    return [Bounded(value, error) for value, error in zip(values, errors, strict=True)]


def _cropped(extents: Sequence[str], array: Array, values: Mapping[str, int]) -> Array:
    tensor = Tensor("", array.shape, array.dtype.name, tuple(extents))
    return OutputExtents(tensor, list(values)).cropped(array, values)


def texts(attribute: object) -> tuple[str, ...]:
    """The strings of an attribute that lists some; none without it."""
    listed = attribute.data if isinstance(attribute, ArrayAttr) else ()
    return tuple(each.data for each in listed if isinstance(each, StringAttr))


# Runs a module of graph operators with NumPy, operator by operator.


def evaluate_module(module: ModuleOp, inputs: Sequence[Array], function: str = "main") -> tuple[Array, ...]:
    """The results of `function` for `inputs`, one array an argument, in order.

    TreadleError if the function is missing, an input has another shape or dtype than its argument, or an
    operation is none of the graph dialect's. Arrays are dropped after their last use.
    """
    block = find_function(module, function).body.block
    env = arguments(block, inputs)
    dying = last_uses(block)
    for op in block.ops:
        if isinstance(op, ReturnOp):
            return tuple(np.ascontiguousarray(env[v]).reshape(env[v].shape) for v in op.operands)
        env.update(zip(op.results, evaluate_results(op, env), strict=True))
        for value in dying.get(op, ()):
            del env[value]
    raise TreadleError(f"@{function} does not return", accepted="a func.return at its end")


def find_function(module: ModuleOp, name: str) -> FuncOp:
    """The function called `name`; TreadleError if the module has none with a body."""
    functions = [op for op in module.body.block.ops if isinstance(op, FuncOp) and op.body.blocks]
    for function in functions:
        if function.sym_name.data == name:
            return function
    raise TreadleError(f"the module has no function @{name}", accepted=[f"@{f.sym_name.data}" for f in functions])


def arguments(block: Block, inputs: Sequence[Array]) -> dict[SSAValue, Array]:
    """The arrays of a function's arguments; TreadleError for one of another shape or type."""
    if len(inputs) != len(block.args):
        raise TreadleError(f"{len(inputs)} inputs for {len(block.args)} arguments")
    env: dict[SSAValue, Array] = {}
    for n, (arg, array) in enumerate(zip(block.args, inputs, strict=True)):
        assert isinstance(arg.type, TensorType)
        shape, dtype = arg.type.get_shape(), numpy_dtype(arg.type.get_element_type())
        if array.shape != shape or array.dtype != dtype:
            name = arg.name_hint or str(n)
            raise TreadleError(f"input {name} is {array.dtype}{list(array.shape)}", accepted=f"{dtype}{list(shape)}")
        env[arg] = array
    return env


def last_uses(block: Block) -> dict[Operation, list[SSAValue]]:
    """For each operation, the function's tensors (its own result included) that nothing reads after it."""
    last: dict[SSAValue, Operation] = {}
    for op in block.ops:
        last.update((result, op) for result in op.results)
        for inner in op.walk():
            last.update((v, op) for v in inner.operands if v.owner is block or v.owner.parent is block)
    dying: dict[Operation, list[SSAValue]] = {}
    for value, op in last.items():
        dying.setdefault(op, []).append(value)
    return dying


# Runs functions of launches in real memory, so that buffers that share bytes in the plan share them here.


class LaunchRun:
    """One call of a planned module, whose program has `constants`; with `reverse`, blocks and threads run in the
    opposite order.

    written: gets what launches write into each buffer, the last of them where there are several
    """

    def __init__(
        self,
        module: ModuleOp,
        constants: Sequence[Array],
        reverse: bool,
        written: dict[SSAValue, Array] | None = None,
    ):
        self._reverse, self._written = reverse, written
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
        for buffer, result in zip(written, kernel.results(read, reverse=self._reverse, before=written), strict=True):
            buffer[...] = result
        if self._written is not None:
            made = list(launch.buffers)[-kernel.num_outputs :]
            self._written.update((value, memory.of(value).copy()) for value in made)


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


def run_module(module: ModuleOp, inputs: Sequence[Array], *, reverse: bool = False) -> tuple[Array, ...]:
    """The results of @main for `inputs`, at any stage from the graph to planned kernels. Of what has the call's shape
    in a program (`loop-dense-arguments`), inputs and results have the largest all the same.

    With `reverse`, each kernel's blocks and threads run in the opposite order, as in `Kernel.results`.
    TreadleError if an input has another shape or type than @main says, for what `evaluate` and `Kernel.results`
    reject, and for an operation that is neither a graph operator nor a kernel.
    """
    main = planned_main(module)
    if isinstance(main.body.block.last_op, host.ReturnOp):
        return _run_launches(module, inputs, reverse)
    specs = [_spec(n, arg) for n, arg in enumerate(main.body.block.args)]
    _check(specs, inputs)
    given, taken = _dense(main, specs, _result_specs(main), inputs)
    env: dict[SSAValue, Array] = dict(zip(main.body.block.args, given.packed(inputs), strict=True))
    return tuple(taken.spread(_run_tensors(main, env, reverse)))


def module_values(module: ModuleOp, inputs: Sequence[Array]) -> dict[SSAValue, Array]:
    """The values of all tensors of @main and of its groups in a call, or what launches write into its buffers; as
    `run_module`, which gives the results alone."""
    main = planned_main(module)
    if isinstance(main.body.block.last_op, host.ReturnOp):
        written = dict[SSAValue, Array]()
        _run_launches(module, inputs, False, written)
        return written
    specs = [_spec(n, arg) for n, arg in enumerate(main.body.block.args)]
    _check(specs, inputs)
    given, _ = _dense(main, specs, _result_specs(main), inputs)
    env: dict[SSAValue, Array] = dict(zip(main.body.block.args, given.packed(inputs), strict=True))
    _evaluate_block(main.body.block, env, False)
    return env


def _dense(
    main: FuncOp, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], arrays: Sequence[Array]
) -> tuple[DenseTensors, DenseTensors]:
    """The inputs and the outputs, where they are of the call's shape."""
    names = main.attributes.get("extents")
    count = len(names.data) if isinstance(names, ArrayAttr) else 0
    extents = arrays[len(arrays) - count :]
    shapes = [spec.shape for spec in inputs[: len(inputs) - count]], [spec.shape for spec in outputs]
    given, taken = zip(("inputs", "outputs"), shapes, strict=True)
    return DenseTensors(main, *given, extents), DenseTensors(main, *taken, extents)


def _result_specs(main: FuncOp) -> list[TensorSpec]:
    end = main.body.block.last_op
    return [_spec(n, value) for n, value in enumerate(end.operands)] if isinstance(end, ReturnOp) else []


def _run_tensors(main: FuncOp, env: dict[SSAValue, Array], reverse: bool) -> tuple[Array, ...]:
    _evaluate_block(main.body.block, env, reverse)
    end = main.body.block.last_op
    if not isinstance(end, ReturnOp):
        raise TreadleError("@main does not return", accepted="a func.return at its end")
    return tuple(np.ascontiguousarray(env[v]).reshape(env[v].shape) for v in end.operands)


def _called(function: FuncOp, operands: Sequence[Array], reverse: bool) -> tuple[Array, ...]:
    return _run_tensors(function, dict(zip(function.body.block.args, operands, strict=True)), reverse)


def _evaluate_block(block: Block, env: dict[SSAValue, Array], reverse: bool) -> None:
    """Adds the value of every operation of the block to `env`."""
    for op in block.ops:
        _evaluate(op, env, reverse)


def _evaluate(op: Operation, env: dict[SSAValue, Array], reverse: bool) -> None:
    if isinstance(op, loop.KernelOp):
        kernel = Kernel(op)
        given = [env[v].reshape(type.get_shape()) for v, type in zip(op.inputs, kernel.types, strict=False)]
        results = zip(op.outputs, kernel.results(given, reverse=reverse), strict=True)
        env.update((value, array.reshape(shape_of(value))) for value, array in results)
    elif isinstance(op, loop.DispatchOp):
        chosen = op.alternatives[kernel_for(op.tree.data, [int(env[extent]) for extent in op.extents])]
        _evaluate(chosen, env, reverse)
        env.update((result, env[value]) for result, value in zip(op.outputs, chosen.results, strict=True))
    elif isinstance(op, FusedOp):
        _evaluate_block(op.body.block, env, reverse)
        end = op.body.block.last_op
        assert isinstance(end, YieldOp)
        env.update((result, env[value]) for result, value in zip(op.outputs, end.values, strict=True))
    elif isinstance(op, LoopOp | IfOp):
        call = partial(_called, reverse=reverse)
        env.update(zip(op.results, run_arrays(op, [env[v] for v in op.operands], call), strict=True))
    elif not isinstance(op, ReturnOp | YieldOp):
        env.update(zip(op.results, evaluate_results(op, env), strict=True))


def _run_launches(
    module: ModuleOp, inputs: Sequence[Array], reverse: bool, written: dict[SSAValue, Array] | None = None
) -> tuple[Array, ...]:
    """Runs a planned module in real memory, so that buffers that share bytes in the plan share them here."""
    program = read_program(module)
    _check(program.inputs, inputs)
    given, taken = _dense(planned_main(module), program.inputs, program.outputs, inputs)
    outputs = [np.empty(spec.shape, spec.dtype) for spec in program.outputs]
    for state in states_of(planned_main(module)):
        if state.in_place.value.data:
            outputs[state.result.data] = inputs[state.argument.data].copy()
    arena = np.full(program.arena_bytes, UNSET, np.uint8)
    constants = [constant.array() for constant in program.constants]
    LaunchRun(module, constants, reverse, written).run(planned_main(module), given.packed(inputs), outputs, arena)
    return tuple(taken.spread(outputs))


def _spec(position: int, arg: SSAValue[Attribute]) -> TensorSpec:
    assert isinstance(arg.type, TensorType)
    dtype = numpy_dtype(arg.type.get_element_type())
    return TensorSpec(arg.name_hint or f"input{position}", arg.type.get_shape(), dtype)


def _check(specs: Sequence[TensorSpec], inputs: Sequence[Array]) -> None:
    if len(specs) != len(inputs):
        raise TreadleError(f"{len(inputs)} inputs given", "run_module", f"{len(specs)} inputs")
    for spec, array in zip(specs, inputs, strict=True):
        if array.shape != spec.shape or array.dtype != spec.dtype:
            raise TreadleError(f"{array.dtype}{list(array.shape)} given", f"input '{spec.name}'", str(spec))
