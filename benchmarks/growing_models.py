"""Models of any number of nodes, for how compilation time grows with it, each with what it computes in NumPy.

Every model has one input `x` of 4 x 8 floats, or 16 x 32, and operators on tensors as small, so that what is measured
is the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
_SMALL = (4, 8)
_ROWS, _WIDTH = 16, 32


@dataclass
class GrowingModel:
    """A model while it is built: nodes, weights, and the values in float64 for one input."""

    x: Array
    nodes: list[onnx.NodeProto] = field(default_factory=list[onnx.NodeProto])
    weights: dict[str, Array] = field(default_factory=dict[str, Array])
    outputs: dict[str, Array] = field(default_factory=dict[str, Array])
    """What the model returns, by name."""
    _values: dict[str, Array] = field(default_factory=dict[str, Array])

    def __post_init__(self) -> None:
        self._values["x"] = self.x.astype(np.float64)

    def weight(self, array: Array) -> str:
        """Adds a constant; its name."""
        name = f"w{len(self.weights)}"
        self.weights[name] = array.astype(np.float32)
        self._values[name] = self.weights[name].astype(np.float64)
        return name

    def add(self, operator: str, *inputs: str) -> str:
        """Adds a node; the name of its result."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=f"n{len(self.nodes)}"))
        self._values[name] = _OPERATORS[operator](*(self._values[each] for each in inputs))
        return name

    def finish(self, *outputs: str) -> GrowingModel:
        """Ends the model, which returns these."""
        self.outputs = {name: self._values[name] for name in outputs}
        return self

    def proto(self) -> onnx.ModelProto:
        """The ONNX model."""
        graph = helper.make_graph(
            self.nodes,
            "growing",
            [_value("x", self.x.shape)],
            [_value(name, array.shape) for name, array in self.outputs.items()],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _chain(nodes: int) -> GrowingModel:
    model = _start(_SMALL)
    row, last = model.weight(np.linspace(-1, 1, _SMALL[1])), "x"
    for n in range(nodes):
        # No two factors are equal, so that no two kernels are.
        factor = (model.weight(np.array(1 + n / nodes)),) if n % 4 == 2 else ()
        last = model.add(*(("Add", last, row), ("Relu", last), ("Mul", last, *factor), ("Tanh", last))[n % 4])
    return model.finish(last)


def _wide(nodes: int) -> GrowingModel:
    model = _start(_SMALL)
    return model.finish(*(model.add("Mul", "x", model.weight(np.array(n + 1.0))) for n in range(nodes)))


def _diamonds(nodes: int) -> GrowingModel:
    model, last = _start(_SMALL), "x"
    half = model.weight(np.array(0.5))
    for _ in range(nodes // 3):
        last = model.add("Mul", model.add("Add", last, model.add("Tanh", last)), half)
    return model.finish(last)


def _tree(nodes: int) -> GrowingModel:
    model, leaves = _start(_SMALL), (nodes + 1) // 2
    level = [model.add("Mul", "x", model.weight(np.array((n + 1) / leaves))) for n in range(leaves)]
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [model.add("Add", a, b) for a, b in pairs] + level[len(level) // 2 * 2 :]
    return model.finish(*level)


def _softmax(nodes: int) -> GrowingModel:
    model, last = _start(_SMALL), "x"
    for n in range(nodes):
        last = model.add("Exp" if n % 2 else "Softmax", last)
    return model.finish(last)


def _blocks(nodes: int) -> GrowingModel:
    """Residual blocks of seven nodes, as of a transformer: norm, two products with bias, relu between them."""
    model, last = _start((_ROWS, _WIDTH)), "x"
    rng = np.random.default_rng(0)
    for _ in range(nodes // 7):
        scale, shift = model.weight(np.ones(_WIDTH)), model.weight(np.zeros(_WIDTH))
        up, down = (model.weight(rng.standard_normal(s) / 8) for s in ((_WIDTH, 2 * _WIDTH), (2 * _WIDTH, _WIDTH)))
        biases = [model.weight(rng.standard_normal(n)) for n in (2 * _WIDTH, _WIDTH)]
        norm = model.add("LayerNormalization", last, scale, shift)
        hidden = model.add("Relu", model.add("Add", model.add("MatMul", norm, up), biases[0]))
        last = model.add("Add", model.add("Add", model.add("MatMul", hidden, down), biases[1]), last)
    return model.finish(last)


GROWING: Mapping[str, Callable[[int], GrowingModel]] = {
    "chain": _chain,
    "wide": _wide,
    "diamonds": _diamonds,
    "tree": _tree,
    "softmax": _softmax,
    "blocks": _blocks,
}
"""Makes a model of about so many nodes.

chain: elementwise nodes, one after the other; wide: independent nodes of one input; diamonds: results that the next
node and the one after it read; tree: many results that are summed up pairwise; softmax: softmax and exp in turn;
blocks: residual blocks
"""


def _start(shape: Sequence[int]) -> GrowingModel:
    return GrowingModel(np.random.default_rng(1).standard_normal(shape).astype(np.float32))


def _value(name: str, shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def _softmax_of(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _layer_norm(x: Array, scale: Array, shift: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift


_OPERATORS: Mapping[str, Callable[..., Array]] = {
    "Add": np.add,
    "Mul": np.multiply,
    "MatMul": np.matmul,
    "Tanh": np.tanh,
    "Exp": np.exp,
    "Relu": lambda x: np.maximum(x, 0),
    "Softmax": _softmax_of,
    "LayerNormalization": _layer_norm,
}

__all__ = ["GROWING", "GrowingModel"]
