"""Programs of anchors that are scheduled by one template, whatever would be chosen by default."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Block, Region, SSAValue

from tests.helpers.graphs import Graph, random
from tests.schedules import attention_cases
from treadle.compiler import lower
from treadle.dialects.graph import AttentionOp, ComputeOp, FusedOp, MatmulOp, ReduceOp, YieldOp
from treadle.dialects.graph.dtypes import epsilon, is_float, numpy_dtype
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import UseAttr
from treadle.schedules.template import Anchor
from treadle.schedules.templates import TEMPLATES
from treadle.settings import EPSILON
from treadle.target import Target

Array = NDArray[Any]

_SAFETY, _NARROW_SAFETY = 16.0, 4.0
"""Times the square root of the roundings: of a fold's terms, and of values that are rounded to a lower precision."""


def operands_of(anchor: Anchor) -> list[SSAValue]:
    """The tensors that an anchor reads."""
    return list(anchor.tensors() if isinstance(anchor, ComputeOp) else dict.fromkeys(anchor.operands))


def values_of(anchor: Anchor) -> list[Array]:
    """Random numbers for each of `operands_of(anchor)`; masks of attention hide some keys."""
    if isinstance(anchor, AttentionOp):
        return list(attention_cases.environment(anchor).values())
    return [_random_of(operand, n) for n, operand in enumerate(operands_of(anchor))]


def _random_of(tensor: SSAValue, seed: int) -> Array:
    """Random numbers of a tensor's type: floats normally distributed, integers below 10, truths one of two."""
    type = tensor.type
    assert isinstance(type, TensorType)
    shape, dtype = type.get_shape(), numpy_dtype(type.get_element_type())
    if dtype.kind == "b":
        return random(*shape, seed=seed) > 0
    if dtype.kind == "i":
        return np.random.default_rng([seed, *shape]).integers(-9, 9, shape).astype(dtype)
    return random(*shape, seed=seed).astype(dtype)


def accepted_units(template: str, anchor: Anchor, given: Sequence[Array], expected: Array) -> float:
    """The accepted error in units of the epsilon of the anchor's type, by the rules of `treadle/tools/oracle.py`.

    Each operation and each term rounds once; folds of 16-bit floats are carried in f32, and rounded once at the end.
    Attention on tensor cores rounds its weights, too.
    """
    if template == "attention_mma":
        keys, values = given[2].shape[-2], given[2]
        return accepted_units("attention_cuda", anchor, given, expected) + attention_cases.weights_units(
            values, keys, expected
        )
    element = anchor.type.get_element_type()
    if not is_float(element):
        return 0.0
    own = epsilon(numpy_dtype(element))
    folded, operations = _roundings(anchor)
    if own > EPSILON["f32"]:
        return _SAFETY * sqrt(folded) * EPSILON["f32"] / own + _NARROW_SAFETY * sqrt(operations)
    coarse = EPSILON["tf32"] / own if TEMPLATES[template].precision == "tf32" else 0.0
    return _SAFETY * sqrt(folded + operations) + _NARROW_SAFETY * sqrt(2) * coarse


def _roundings(anchor: Anchor) -> tuple[int, int]:
    """Terms of all folds, and operations of each element."""
    if isinstance(anchor, MatmulOp):
        return anchor.reduction_extent, 1
    if isinstance(anchor, AttentionOp):
        return attention_cases.terms(anchor), 1
    assert isinstance(anchor, ComputeOp)
    folded = sum(prod(op.shape) for op in anchor.walk() if isinstance(op, ReduceOp))
    operations = [op for op in anchor.walk() if op.dialect_name() in ("arith", "math") or isinstance(op, ReduceOp)]
    rounding = [op for op in operations if not isinstance(op, arith.ConstantOp | arith.ExtFOp | arith.NegfOp)]
    return folded, sum(is_float(op.results[0].type) for op in rounding)


def forced(template: str, anchors: Sequence[tuple[Anchor, Sequence[Array]]], target: Target) -> tuple[ModuleOp, Graph]:
    """A module lowered for a GPU with a kernel for each anchor, whose operands have the values beside it; and its
    graph, whose inputs are all of these values."""
    graph = Graph(*(value for _, values in anchors for value in values))
    results: list[SSAValue] = []
    first = 0
    for n, (anchor, _) in enumerate(anchors):
        use = UseAttr.get(template, TEMPLATES[template].default(anchor, target))
        for operand in operands_of(anchor):
            operand.replace_all_uses_with(graph[first])
            first += 1
        group = FusedOp(f"case_{n}", Region(Block([anchor, YieldOp(anchor.result)])), use)
        results.append(graph.add(group))
    module = graph.module(*results)
    lower(treadle_context(), module, target, after="schedule")
    return module, graph
