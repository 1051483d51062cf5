"""Models that are a little wrong: what a compiler could do to one by mistake, done to its ONNX file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Change = Callable[[ModelProto], None]


def weights_in_f16(model: ModelProto) -> None:
    """Weights of two and more dimensions, rounded to f16."""
    _round(model, np.float16)


def weights_in_bf16(model: ModelProto) -> None:
    """The same to bf16."""
    _round(model, ml_dtypes.bfloat16)


def last_product_drops_a_term(model: ModelProto) -> None:
    """One weight of the last product is zero: a sum loses one of its terms."""
    node = [each for each in model.graph.node if each.op_type in ("Gemm", "MatMul", "Conv")][-1]
    weights = _constants(model)[node.input[1]]
    values = numpy_helper.to_array(weights).copy()
    typical = np.argsort(np.abs(values), axis=None)[values.size // 2]
    values.reshape(-1)[typical] = 0
    weights.CopyFrom(numpy_helper.from_array(values, weights.name))


def a_window_is_one_off(model: ModelProto) -> None:
    """One convolution in the middle reads one row and one column too far."""
    windows = [node for node in model.graph.node if node.op_type == "Conv" and _pads(node) == [1, 1, 1, 1]]
    node = windows[len(windows) // 2]
    del next(each for each in node.attribute if each.name == "pads").ints[:]
    next(each for each in node.attribute if each.name == "pads").ints.extend([0, 0, 2, 2])


def two_channels_are_swapped(model: ModelProto) -> None:
    """Two filters of a convolution in the middle have each other's place."""
    nodes = [node for node in model.graph.node if node.op_type == "Conv"]
    weights = _constants(model)[nodes[len(nodes) // 2].input[1]]
    values = numpy_helper.to_array(weights).copy()
    values[[0, 1]] = values[[1, 0]]
    weights.CopyFrom(numpy_helper.from_array(values, weights.name))


def a_sigmoid_is_hard(model: ModelProto) -> None:
    """The last sigmoid is the piecewise linear one."""
    node = [each for each in model.graph.node if each.op_type == "Sigmoid"][-1]
    node.op_type = "HardSigmoid"
    node.attribute.extend([helper.make_attribute("alpha", 0.25), helper.make_attribute("beta", 0.5)])


CASES: list[tuple[str, Change]] = [
    ("light_resnet50", weights_in_f16),
    ("light_squeezenet", weights_in_f16),
    ("ppocr_cls", weights_in_f16),
    ("light_resnet50", last_product_drops_a_term),
    ("ppocrv4_rec", last_product_drops_a_term),
    ("light_squeezenet", a_window_is_one_off),
    ("ppocr_cls", two_channels_are_swapped),
    ("light_resnet50", two_channels_are_swapped),
    ("ppocrv4_det", a_sigmoid_is_hard),
]
"""Models (ResNet, SqueezeNet, MobileNet, OCR) and what is wrong with them; none may pass as f32."""


def changed(source: Path, destination: Path, change: Change) -> Path:
    """Writes the model with a change; `destination`."""
    model = onnx.load(source)
    change(model)
    onnx.save(model, destination)
    return destination


def _round(model: ModelProto, dtype: DTypeLike) -> None:
    for tensor in _constants(model).values():
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.ndim >= 2:
            tensor.CopyFrom(numpy_helper.from_array(values.astype(dtype).astype(np.float32), tensor.name))


def _constants(model: ModelProto) -> dict[str, TensorProto]:
    """The constant tensors of a model, by the name under which nodes read them."""
    found = {each.name: each for each in model.graph.initializer}
    return found | dict(_constant_nodes(model))


def _constant_nodes(model: ModelProto) -> Iterator[tuple[str, TensorProto]]:
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            yield node.output[0], node.attribute[0].t


def _pads(node: NodeProto) -> list[int]:
    return [n for each in node.attribute if each.name == "pads" for n in each.ints]
