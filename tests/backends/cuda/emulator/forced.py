"""Programs of anchors that are scheduled by one template, whatever would be chosen by default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Block, Region, SSAValue

from tests.helpers.graphs import Graph, random
from tests.schedules import attention_cases
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import AttentionOp, ComputeOp, FusedOp, YieldOp
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import UseAttr
from treadle.schedules.template import Anchor
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

Array = NDArray[Any]


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
