"""Runs an imported module with the reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from treadle.backends.reference.run_module import within_extents
from treadle.dialects.graph.evaluate import evaluate

Array = NDArray[Any]


def main_of(module: ModuleOp) -> FuncOp:
    """The module's function @main, beside which there may be bodies of loops."""
    (func,) = [op for op in module.ops if isinstance(op, FuncOp) and op.sym_name.data == "main"]
    return func


def operators(module: ModuleOp) -> list[Operation]:
    """What `@main` computes, without its return."""
    return [op for op in main_of(module).body.block.ops if not isinstance(op, ReturnOp)]


def names_of(module: ModuleOp, attribute: str) -> list[str]:
    """`input_names` or `output_names`."""
    names = main_of(module).attributes[attribute]
    assert isinstance(names, ArrayAttr)
    texts: list[str] = []
    for name in names:
        assert isinstance(name, StringAttr)
        texts.append(name.data)
    return texts


def run(module: ModuleOp, inputs: Mapping[str, Array] | Sequence[Array]) -> list[Array]:
    """The outputs of `@main`, in order, within extents that depend on data."""
    block = main_of(module).body.block
    names = names_of(module, "input_names")
    arrays = [inputs[name] for name in names] if isinstance(inputs, Mapping) else inputs
    env: dict[SSAValue, Array] = {}
    for argument, array in zip(block.args, arrays, strict=True):
        env[argument] = np.asarray(array)
    for op in block.ops:
        if isinstance(op, ReturnOp):
            return within_extents(main_of(module), [env[value] for value in op.operands])
        env[op.results[0]] = evaluate(op, env)
    raise AssertionError("@main has no return")
