"""Models that are made from those of the catalog, or after a paper's table, for what no file of the catalog shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnxruntime import quantization

from tests.helpers.onnx_models import save_model, value
from tests.models.catalog import pixels, require_model, text_line

Array = NDArray[Any]
Made = tuple[Path, dict[str, Array]]
"""A file, and inputs for it."""

_SECOND_LAYER = "/model/model.0/auto_model/encoder/layer.1/output/LayerNorm/LayerNormalization_output_0"


def two_layers_of_bert(folder: Path) -> Made:
    """MiniLM's embeddings and its first two layers, of 16 words, the last quarter padding."""
    model = require_model("minilm").with_shapes({"input_ids": (1, 16), "attention_mask": (1, 16)})
    path, inputs = folder / "two_layers.onnx", model.sample_inputs()
    proto = onnx.load(model.path())
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_empty_tensor_value_info(_SECOND_LAYER))
    onnx.save(proto, path)
    return path, inputs


def recogniser_with_lstm(folder: Path) -> Made:
    """ddddocr's recogniser of characters, of a picture of four columns of its LSTM."""
    del folder
    model = require_model("ddddocr_ocr").with_shapes({"input1": (1, 1, 64, 32)})
    return model.path(), model.sample_inputs()


def quantised_classifier(folder: Path) -> Made:
    """PP-OCR's classifier of orientations, half its width, its convolutions and products quantised to 8 bits."""
    model = require_model("ppocr_cls").with_shapes({"x": (1, 3, 48, 96)})
    path, samples = folder / "quantised.onnx", _Samples()
    quantization.quantize_static(
        str(model.path()), str(path), samples, per_channel=True, op_types_to_quantize=["Conv", "MatMul", "Add", "Mul"]
    )
    return path, model.sample_inputs()


def dynamically_quantised_recogniser(folder: Path) -> Made:
    """ddddocr's recogniser, whose weights have 8 bits, and whose activations are quantised when it runs."""
    whole, inputs = recogniser_with_lstm(folder)
    path = folder / "quantised.onnx"
    quantization.quantize_dynamic(whole, path, weight_type=quantization.QuantType.QInt8)
    return path, inputs


class _Samples(quantization.CalibrationDataReader):
    """Lines of text by which ranges of activations are measured."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        line = text_line(rng, (1, 3, 48, 96))
        self._left = [line * scale for scale in (1.0, 0.7, 0.4)]

    def get_next(self) -> dict[str, Array]:
        """The next input; none at the end."""
        return {"x": self._left.pop()} if self._left else {}


_BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, repetitions and stride. Source: Sandler et al., "MobileNetV2", CVPR 2018, table 2."""


class _Network:
    """Nodes and their random weights, a layer at a time."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self._rng = np.random.default_rng(0)

    def constant(self, array: Array) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def conv(self, x: str, channels: tuple[int, int], size: int, stride: int = 1, group: int = 1) -> str:
        """A convolution and its batch norm, whose weights keep the size of what they are applied to."""
        before, after = channels
        fan_in = before // group * size * size
        shape = (after, before // group, size, size)
        w = self.constant(self._rng.normal(0, (2 / fan_in) ** 0.5, shape))
        pads = [size // 2] * 4
        y = self.node("Conv", x, w, strides=[stride] * 2, pads=pads, group=group)
        near_one = [self._rng.uniform(0.8, 1.2, after) for _ in range(2)]
        near_zero = [self._rng.normal(0, 0.1, after) for _ in range(2)]
        scale, shift, mean, variance = near_one[0], near_zero[0], near_zero[1], near_one[1]
        return self.node("BatchNormalization", y, *map(self.constant, (scale, shift, mean, variance)))

    def clipped(self, x: str) -> str:
        """ReLU6."""
        return self.node("Clip", x, self.constant(np.array(0.0)), self.constant(np.array(6.0)))


def mobilenet_v2(folder: Path) -> Made:
    """MobileNet-V2 with random weights, of a picture of 32 pixels a side, without softmax."""
    n = _Network()
    x, channels = n.clipped(n.conv("x", (3, 32), 3, 2)), 32
    for expansion, after, repetitions, stride in _BLOCKS:
        for repetition in range(repetitions):
            wide, step = channels * expansion, stride if repetition == 0 else 1
            y = x if expansion == 1 else n.clipped(n.conv(x, (channels, wide), 1))
            y = n.conv(n.clipped(n.conv(y, (wide, wide), 3, step, wide)), (wide, after), 1)
            x = n.node("Add", x, y) if step == 1 and channels == after else y
            channels = after
    x = n.node("Flatten", n.node("GlobalAveragePool", n.clipped(n.conv(x, (channels, 1280), 1))))
    n.node("Gemm", x, n.constant(np.random.default_rng(1).normal(0, 1280**-0.5, (1280, 100))))
    n.nodes[-1].output[0] = "y"
    inputs, outputs = [value("x", (1, 3, 32, 32))], [value("y", (1, 100))]
    path = save_model(folder / "mobilenet_v2.onnx", n.nodes, inputs, outputs, n.weights)
    return path, {"x": pixels(np.random.default_rng(2), (1, 3, 32, 32))}


MAKERS = {
    "a BERT of two layers": two_layers_of_bert,
    "MobileNet-V2": mobilenet_v2,
    "a quantised classifier": quantised_classifier,
    "a recogniser with an LSTM": recogniser_with_lstm,
    "a recogniser quantised when it runs": dynamically_quantised_recogniser,
}
