"""Random weights for the onnx package's light models, whose own are constant and make every output the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, numpy_helper

Array = NDArray[Any]

_NORM_ROLES = ("", "scale", "shift", "mean", "variance")
"""What each input of BatchNormalization is; the first is the activation."""


def with_random_weights(source: Path, destination: Path, seed: int = 0) -> Path:
    """Writes the model `source` with weights drawn from `seed` in place of each `ConstantOfShape`; its new path.

    Filters keep the size of what they are applied to (He et al., "Delving deep into rectifiers", 2015). A batch norm's
    variance lies about 1, its shift and mean about 0; its scale is below 1, as after training with residuals, so that
    sums of many branches do not drive a softmax to 0 and 1.
    """
    model = onnx.load(source)
    rng = np.random.default_rng(seed)
    shapes = _constants(model.graph)
    roles = _norm_roles(model.graph)
    kept: list[NodeProto] = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in shapes:
            kept.append(node)
            continue
        name = node.output[0]
        weights = _draw(rng, tuple(map(int, shapes[node.input[0]])), roles.get(name, ""))
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    del model.graph.node[:]
    model.graph.node.extend(kept)
    onnx.save(model, destination)
    return destination


def _constants(graph: onnx.GraphProto) -> Mapping[str, Array]:
    found = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return found


def _norm_roles(graph: onnx.GraphProto) -> dict[str, str]:
    norms = (node for node in graph.node if node.op_type == "BatchNormalization")
    return {name: role for node in norms for name, role in zip(node.input, _NORM_ROLES, strict=True) if role}


def _draw(rng: np.random.Generator, shape: tuple[int, ...], role: str) -> Array:
    if role == "variance":
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    if role == "scale":
        return rng.uniform(0.1, 0.5, shape).astype(np.float32)
    if len(shape) <= 1:
        return rng.normal(0.0, 0.1, shape).astype(np.float32)
    deviation = math.sqrt(2 / math.prod(shape[1:]))
    return rng.normal(0.0, deviation, shape).astype(np.float32)
