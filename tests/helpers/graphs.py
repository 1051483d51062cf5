"""Small modules of graph operators for numeric tests, and the comparison before and after passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from treadle.backends.reference import evaluate_module
from treadle.dialects.graph import ConstantOp
from treadle.dialects.graph.constant import constant_attribute
from treadle.dialects.graph.dtypes import element_type

Array = NDArray[Any]


class Graph:
    """Builds @main: `graph[n]` is its n-th argument, whose value in tests is the n-th input."""

    def __init__(self, *inputs: Array):
        self.inputs = inputs
        self.block = Block(arg_types=[TensorType(element_type(a.dtype), a.shape) for a in inputs])

    def __getitem__(self, n: int) -> SSAValue:
        return self.block.args[n]

    def add(self, op: Operation) -> SSAValue:
        """Appends an operation; its result."""
        self.block.add_op(op)
        return op.results[0]

    def constant(self, array: Any) -> SSAValue:
        """Appends a `graph.constant`."""
        values = np.asarray(array)
        return self.add(ConstantOp(constant_attribute(values), TensorType(element_type(values.dtype), values.shape)))

    def module(self, *results: SSAValue) -> ModuleOp:
        """Ends the function with its results."""
        self.block.add_op(ReturnOp(*results))
        types = [a.type for a in self.block.args], [r.type for r in results]
        module = ModuleOp([FuncOp("main", types, Region(self.block))])
        module.verify()
        return module


def run_passes(module: ModuleOp, passes: Sequence[ModulePass]) -> ModuleOp:
    """Runs passes in place, verifying after each."""
    for each in passes:
        each.apply(Context(), module)
        module.verify()
    return module


def assert_same_values(
    graph: Graph, results: Sequence[SSAValue], passes: Sequence[ModulePass], tolerance: float = 2e-6
) -> ModuleOp:
    """The module after `passes`, which must keep what @main computes up to `tolerance` of the largest."""
    module = graph.module(*results)
    before = evaluate_module(module, graph.inputs)
    after = evaluate_module(run_passes(module, passes), graph.inputs)
    for old, new in zip(before, after, strict=True):
        assert (old.shape, old.dtype) == (new.shape, new.dtype)
        np.testing.assert_allclose(new, old, rtol=0, atol=tolerance * float(np.abs(old).max()))
    return module


def name_arguments(module: ModuleOp, inputs: int, outputs: int) -> None:
    """Gives @main the names that a compiled model's inputs and outputs have: `i0`, ..., `o0`, ..."""
    function = next(op for op in module.body.block.ops if isinstance(op, FuncOp))
    function.attributes["input_names"] = ArrayAttr([StringAttr(f"i{n}") for n in range(inputs)])
    function.attributes["output_names"] = ArrayAttr([StringAttr(f"o{n}") for n in range(outputs)])


def operators(module: ModuleOp) -> list[str]:
    """The names of the operations in @main, without dialect prefix, in order."""
    function = next(op for op in module.body.block.ops if isinstance(op, FuncOp))
    return [op.name.removeprefix("graph.") for op in function.body.block.ops if not isinstance(op, ReturnOp)]


def random(*shape: int, seed: int = 0) -> Array:
    """Normally distributed float32."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)
