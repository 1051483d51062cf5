"""Small ONNX models for the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Dims = Sequence[int | str]


def node(op_type: str, inputs: str, outputs: str, label: str = "", **attributes: Any) -> NodeProto:
    """A node whose operands are words; `_` leaves one out."""
    words = [["" if w == "_" else w for w in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op_type, *words, name=label, **attributes)


def model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Dims],
    outputs: Sequence[str] = ("y",),
    weights: Mapping[str, ArrayLike] | None = None,
    opset: int = 17,
    element: int = TensorProto.FLOAT,
) -> ModelProto:
    """A model whose inputs have one element type; outputs carry no shape."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, element, list(dims)) for name, dims in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
