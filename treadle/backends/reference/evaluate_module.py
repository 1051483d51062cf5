"""Runs a module of graph operators with NumPy, operator by operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.dialects.graph.evaluate import evaluate_results
from treadle.errors import TreadleError

Array = NDArray[Any]


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


__all__ = ["arguments", "evaluate_module", "find_function", "last_uses"]
