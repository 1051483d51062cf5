"""Helpers for tests of graph passes: parse, run passes, evaluate a function with NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects.arith import Arith
from xdsl.dialects.builtin import Builtin, ModuleOp, TensorType
from xdsl.dialects.func import Func, FuncOp, ReturnOp
from xdsl.dialects.math import Math
from xdsl.ir import SSAValue
from xdsl.parser import Parser
from xdsl.passes import ModulePass

from treadle.dialects.graph import GRAPH, FusedOp
from treadle.dialects.graph.dtypes import is_float, numpy_dtype
from treadle.dialects.graph.evaluate import evaluate_results


def context() -> Context:
    """A context with the dialects of the graph stage."""
    ctx = Context()
    for dialect in (Builtin, Func, Arith, Math, GRAPH):
        ctx.load_dialect(dialect)
    return ctx


def parse(text: str) -> ModuleOp:
    """A verified module."""
    module = Parser(context(), text).parse_module()
    module.verify()
    return module


def run(module: ModuleOp, *passes: ModulePass) -> ModuleOp:
    """Applies passes in place, verifying after each."""
    for each in passes:
        each.apply(context(), module)
        module.verify()
    return module


def main_of(module: ModuleOp) -> FuncOp:
    """The module's first function."""
    return next(op for op in module.body.block.ops if isinstance(op, FuncOp))


def groups(module: ModuleOp) -> list[FusedOp]:
    """The fused groups in order."""
    return [op for op in main_of(module).body.block.ops if isinstance(op, FusedOp)]


def random_inputs(module: ModuleOp, seed: int = 0) -> list[NDArray[Any]]:
    """An array for each argument: small floats, integers from 0 to 3."""
    rng = np.random.default_rng(seed)
    arrays: list[NDArray[Any]] = []
    for arg in main_of(module).body.block.args:
        assert isinstance(arg.type, TensorType)
        element, shape = arg.type.get_element_type(), arg.type.get_shape()
        values = rng.standard_normal(shape) if is_float(element) else rng.integers(0, 4, shape)
        arrays.append(np.asarray(values).astype(numpy_dtype(element)))
    return arrays


def outputs(module: ModuleOp, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """What the first function returns, by the reference evaluator."""
    block = main_of(module).body.block
    env: dict[SSAValue, NDArray[Any]] = dict(zip(block.args, inputs, strict=True))
    for op in block.ops:
        if isinstance(op, ReturnOp):
            return [env[value] for value in op.operands]
        env.update(zip(op.results, evaluate_results(op, env), strict=True))
    raise AssertionError("the function returns nothing")


def check_same(text: str, *passes: ModulePass) -> ModuleOp:
    """Runs passes on `text` and asserts that the function computes the same; the result of the passes."""
    before, after = parse(text), run(parse(text), *passes)
    inputs = random_inputs(before)
    for expected, actual in zip(outputs(before, inputs), outputs(after, inputs), strict=True):
        assert expected.shape == actual.shape and expected.dtype == actual.dtype
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    return after
