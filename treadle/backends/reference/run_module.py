"""Runs modules whose @main contains kernels, beside graph operators or as launches over planned buffers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from treadle.backends.program import TensorSpec, planned_main, read_program
from treadle.backends.reference.dense_tensors import UNSET, DenseTensors
from treadle.backends.reference.kernels import Kernel
from treadle.backends.reference.launches import LaunchRun
from treadle.decision_tree import kernel_for
from treadle.dialects import host, loop
from treadle.dialects.graph import FusedOp, IfOp, LoopOp, YieldOp
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.dialects.graph.evaluate import evaluate_results
from treadle.dialects.graph.run_control import run_arrays
from treadle.errors import TreadleError
from treadle.passes.graph.definition_analysis import shape_of

Array = NDArray[Any]


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


def _run_launches(module: ModuleOp, inputs: Sequence[Array], reverse: bool) -> tuple[Array, ...]:
    """Runs a planned module in real memory, so that buffers that share bytes in the plan share them here."""
    program = read_program(module)
    _check(program.inputs, inputs)
    given, taken = _dense(planned_main(module), program.inputs, program.outputs, inputs)
    outputs = tuple(np.empty(spec.shape, spec.dtype) for spec in program.outputs)
    arena = np.full(program.arena_bytes, UNSET, np.uint8)
    constants = [constant.array() for constant in program.constants]
    LaunchRun(module, constants, reverse).run(planned_main(module), given.packed(inputs), outputs, arena)
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


__all__ = ["run_module"]
