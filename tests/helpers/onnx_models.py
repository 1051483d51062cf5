"""Tiny ONNX models for tests of the road as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
_IR_VERSION = 9
WEIGHTS: NDArray[Any] = np.random.default_rng(7).standard_normal((8, 4)).astype(np.float32)


def save_model(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initialisers: Sequence[onnx.TensorProto] = (),
    opset: int = OPSET,
) -> Path:
    """Writes a model of the given parts, unchecked, and returns its path."""
    graph = helper.make_graph(list(nodes), "tiny", list(inputs), list(outputs), list(initialisers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=_IR_VERSION)
    path.write_bytes(model.SerializeToString())
    return path


def value(name: str, shape: Sequence[int | str], dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """An input or output; a string is a dynamic extent."""
    return helper.make_tensor_value_info(name, dtype, list(shape))


def convolutions(path: Path, images: int) -> Path:
    """1 x 1, 3 x 3 and 3 x 3 with stride 2, with relu, of images of 14 x 14 pixels with 256 channels, in f16."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[TensorProto] = []
    x = "x"
    for n, (kernel, stride) in enumerate([(1, 1), (3, 1), (3, 2)]):
        w = rng.standard_normal((256, 256, kernel, kernel)) / (16 * kernel)
        weights.append(numpy_helper.from_array(w.astype(np.float16), f"w{n}"))
        pads, strides = [kernel // 2] * 4, [stride] * 2
        nodes.append(helper.make_node("Conv", [x, f"w{n}"], [f"c{n}"], f"conv{n}", pads=pads, strides=strides))
        nodes.append(helper.make_node("Relu", [f"c{n}"], [f"r{n}"], f"relu{n}"))
        x = f"r{n}"
    ends = (value(name, (images, 256, size, size), TensorProto.FLOAT16) for name, size in (("x", 14), (x, 7)))
    return save_model(path, nodes, [next(ends)], [next(ends)], weights)


def two_products(path: Path, a: NDArray[np.float32], b: NDArray[np.float32], first: str) -> Path:
    """softmax(relu(x a) b + x), over any number of rows, whose first node has a name of its own."""
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"], first),
        helper.make_node("Relu", ["p"], ["q"], "clamp"),
        helper.make_node("MatMul", ["q", "b"], ["r"], "down"),
        helper.make_node("Add", ["r", "x"], ["s"], "skip"),
        helper.make_node("Softmax", ["s"], ["y"], "norm"),
    ]
    weights = [numpy_helper.from_array(a, "a"), numpy_helper.from_array(b, "b")]
    columns = a.shape[0]
    return save_model(path, nodes, [value("x", ("n", columns))], [value("y", ("n", columns))], weights)


def residual_layers(path: Path, layers: int, width: int = 16) -> Path:
    """tanh(relu(x w + b) + x), again and again: five nodes a layer, with names and weights of their own."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[TensorProto] = []
    x = "x"
    for n in range(layers):
        w, b = rng.standard_normal((width, width)) / 8, rng.standard_normal(width) / 8
        weights += [
            numpy_helper.from_array(each.astype(np.float32), f"{word}{n}") for word, each in (("w", w), ("b", b))
        ]
        y = f"x{n}" if n < layers - 1 else "y"
        nodes += [
            helper.make_node("MatMul", [x, f"w{n}"], [f"p{n}"], f"layer{n}/product"),
            helper.make_node("Add", [f"p{n}", f"b{n}"], [f"a{n}"], f"layer{n}/bias"),
            helper.make_node("Relu", [f"a{n}"], [f"r{n}"], f"layer{n}/clamp"),
            helper.make_node("Add", [f"r{n}", x], [f"s{n}"], f"layer{n}/skip"),
            helper.make_node("Tanh", [f"s{n}"], [y], f"layer{n}/tanh"),
        ]
        x = y
    return save_model(path, nodes, [value("x", (4, width))], [value("y", (4, width))], weights)


def encoder_layer(path: Path, batch: int, words: int, width: int = 768, heads: int = 12) -> Path:
    """A layer of BERT in f16: attention, then two products with GELU between them, each with a residual and a norm."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def constant(array: NDArray[Any]) -> str:
        constants.append(numpy_helper.from_array(array, f"c{len(constants)}"))
        return constants[-1].name

    def weights(*shape: int) -> str:
        return constant((0.02 * rng.standard_normal(shape)).astype(np.float16))

    def node(operator: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, list(inputs), [f"v{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def linear(x: str, terms: int, columns: int) -> str:
        return node("Add", node("MatMul", x, weights(terms, columns)), weights(columns))

    def by_heads(x: str) -> str:
        parts = node("Reshape", x, constant(np.array([batch, words, heads, width // heads])))
        return node("Transpose", parts, perm=[0, 2, 1, 3])

    def norm(x: str) -> str:
        return node("LayerNormalization", x, weights(width), weights(width), axis=-1)

    queries, keys, values = (by_heads(linear("x", width, width)) for _ in range(3))
    scores = node("MatMul", queries, node("Transpose", keys, perm=[0, 1, 3, 2]))
    scaled = node("Mul", scores, constant(np.array((width // heads) ** -0.5, np.float16)))
    seen = node("Transpose", node("MatMul", node("Softmax", scaled, axis=-1), values), perm=[0, 2, 1, 3])
    whole = node("Reshape", seen, constant(np.array([batch, words, width])))
    first = norm(node("Add", linear(whole, width, width), "x"))
    second = linear(node("Gelu", linear(first, width, 4 * width)), 4 * width, width)
    y = norm(node("Add", second, first))
    type, shape = TensorProto.FLOAT16, (batch, words, width)
    return save_model(path, nodes, [value("x", shape, type)], [value(y, shape, type)], constants, opset=20)


def linear_model(
    path: Path, rows: int | str = 2, name: str = "x", opset: int = OPSET, weights: NDArray[Any] = WEIGHTS
) -> Path:
    """relu(x @ weights) for x of shape [rows, weights' rows]."""
    nodes = [
        helper.make_node("MatMul", [name, "w"], ["m"], name="product"),
        helper.make_node("Relu", ["m"], ["y"], name="clamp"),
    ]
    rows_in, columns = weights.shape
    inputs, outputs = [value(name, (rows, rows_in))], [value("y", (rows, columns))]
    return save_model(path, nodes, inputs, outputs, [numpy_helper.from_array(weights, "w")], opset)


def single_node_model(path: Path, operator: str) -> Path:
    """y = operator(x) for x of shape [2, 8]."""
    node = helper.make_node(operator, ["x"], ["y"], name="only")
    return save_model(path, [node], [value("x", (2, 8))], [value("y", (2, 8))])


def external_model(path: Path, location: str) -> Path:
    """As `linear_model`, with the weights in the file `location`, which is not written."""
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=WEIGHTS.shape)
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value=location)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    return save_model(path, [node], [value("x", (2, 8))], [value("y", (2, 4))], [weights])
