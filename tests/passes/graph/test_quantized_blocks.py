"""A statically quantised network of convolutions, a residual sum, pools and a product, beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto

from tests.frontends.onnx.models import model, node
from tests.helpers.program_batch import compile_programs, print_program
from treadle.frontends.onnx import import_model

Array = NDArray[Any]
TARGETS = ("cpu{matrix_unit=amx}", "cpu{matrix_unit=vnni}")
CHANNELS = 16


class Writer:
    """Nodes and constants of a model in the format of `onnxruntime.quantization.quantize_static`."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(8)
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, Array] = {}

    def quantised(self, x: str, scale: float, zero: int) -> str:
        """A tensor rounded to bytes and back."""
        self.weights |= {f"{x}_s": np.array(scale, np.float32), f"{x}_z": np.array(zero, np.uint8)}
        self.nodes += [
            node("QuantizeLinear", f"{x} {x}_s {x}_z", f"{x}_q"),
            node("DequantizeLinear", f"{x}_q {x}_s {x}_z", f"{x}_d"),
        ]
        return f"{x}_d"

    def constant(self, name: str, shape: tuple[int, ...], axis: int = 0) -> str:
        """Weights with a scale for each index along an axis."""
        count = shape[axis]
        self.weights |= {
            f"{name}_q": self.rng.integers(-127, 127, shape, np.int8, endpoint=True),
            f"{name}_s": self.rng.uniform(1e-3, 3e-3, count).astype(np.float32),
            f"{name}_z": np.zeros(count, np.int8),
        }
        self.nodes.append(node("DequantizeLinear", f"{name}_q {name}_s {name}_z", name, axis=axis))
        return name

    def conv(self, x: str, y: str, kernel: int, scale: float, zero: int, **more: Any) -> str:
        """A convolution with a bias, quantised."""
        w = self.constant(f"{y}_w", (CHANNELS, CHANNELS // more.get("group", 1), kernel, kernel))
        self.weights[f"{y}_b"] = self.rng.standard_normal(CHANNELS).astype(np.float32)
        pads = [kernel // 2] * 4
        self.nodes.append(node("Conv", f"{x} {w} {y}_b", y, kernel_shape=[kernel, kernel], pads=pads, **more))
        return self.quantised(y, scale, zero)


@pytest.fixture(scope="module")
def network() -> ModelProto:
    w = Writer()
    x = w.quantised("x", 0.02, 128)
    first = w.conv(x, "first", 3, 0.03, 0)
    second = w.conv(first, "second", 1, 0.05, 121)
    side = w.conv(x, "side", 1, 0.04, 130)
    w.nodes += [node("Add", f"{second} {side}", "sum"), node("Relu", "sum", "above")]
    total = w.quantised("above", 0.03, 0)
    depthwise = w.conv(total, "depthwise", 3, 0.02, 110, group=CHANNELS)
    pool: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    w.nodes.append(node("MaxPool", depthwise, "pooled", **pool))
    pooled = w.quantised("pooled", 0.02, 110)
    w.nodes += [node("ReduceMean", pooled, "mean", axes=[2, 3], keepdims=0)]
    mean = w.quantised("mean", 0.01, 100)
    matrix = w.constant("matrix", (10, CHANNELS))
    w.nodes.append(node("Gemm", f"{mean} {matrix}", "scores", transB=1))
    y = w.quantised("scores", 0.02, 128)
    w.nodes.append(node("Identity", y, "y"))
    return model(w.nodes, {"x": [1, CHANNELS, 12, 12]}, ["y", "above_q", "pooled_q"], weights=w.weights)


@pytest.mark.parametrize("target", TARGETS)
def test_all_but_roundings_agrees(network: ModelProto, target: str) -> None:
    """A sum at a tie may be rounded to either side, and what is computed of it then moves by a quantum or two."""
    x = np.random.default_rng(2).standard_normal((1, CHANNELS, 12, 12)).astype(np.float32)
    printed = print_program("network", import_model(network.SerializeToString()), target, after="import")
    found = compile_programs([printed], target)["network"].run([x])
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(network.SerializeToString(), options)
    wanted = [np.asarray(each) for each in session.run(None, {"x": x})]
    scores, above, pooled = (np.abs(a.astype(np.float64) - b) for a, b in zip(found, wanted, strict=True))
    assert np.std(wanted[1]) > 10 and np.std(wanted[2]) > 10, "hardly anything to compare"
    assert scores.max() <= 2 * 0.02 + 1e-6
    for difference in (above, pooled):
        assert difference.max() <= 2 and np.mean(difference > 0) < 0.01


@pytest.mark.parametrize("target", TARGETS)
def test_layers_store_bytes(network: ModelProto, target: str) -> None:
    """Products are of bytes, and no kernel before the mean writes anything else."""
    printed = print_program("network", import_model(network.SerializeToString()), target, after="import")
    texts = [unit.text for unit in printed.kernels]
    assert sum("treadle_tiles_ui8i8(" in text for text in texts) == 4
    results = [
        line.split(" *restrict")[0].split()[-1] for text in texts for line in text.splitlines() if " C = args" in line
    ]
    assert results.count("float") + results.count("int") <= 1, results
