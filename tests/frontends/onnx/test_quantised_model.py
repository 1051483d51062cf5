"""A product of weights of 4 bits in blocks, quantised to 8-bit floats and back, as compiled C and on the emulator."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

import treadle
from tests.frontends.onnx.models import model, node

RNG = np.random.default_rng(11)
X = RNG.standard_normal((3, 64)).astype(np.float32)
WEIGHTS = RNG.integers(-8, 8, (64, 24)).astype(ml_dtypes.int4)
PARAMETERS: dict[str, NDArray[Any]] = {
    "s": RNG.uniform(0.01, 0.1, (4, 24)).astype(np.float32),
    "z": RNG.integers(-8, 8, (4, 24)).astype(ml_dtypes.int4),
    "t": np.array(0.02, np.float32),
    "u": np.zeros((), ml_dtypes.float8_e4m3fn),
}


def _model(weights: dict[str, NDArray[Any]]) -> ModelProto:
    nodes = [
        node("DequantizeLinear", "w s z", "wide", axis=0, block_size=16),
        node("MatMul", "x wide", "product"),
        node("Relu", "product", "positive"),
        node("QuantizeLinear", "positive t u", "q"),
        node("DequantizeLinear", "q t u", "rounded"),
        node("Sub", "rounded product", "y"),
    ]
    proto = model(nodes, {"x": X.shape}, ["y", "q"], {**PARAMETERS, **weights}, 21)
    proto.ir_version = 10
    return proto


def _expected() -> NDArray[Any]:
    """ONNX Runtime's, which drops a Relu before a quantisation to 8-bit floats if it may optimise."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(_model({"w": WEIGHTS}).SerializeToString(), options)
    return np.asarray(session.run(["y"], {"x": X})[0])


@pytest.mark.parametrize("given", [False, True], ids=["constant weights", "weights as an input"])
@pytest.mark.parametrize("target", ["cpu", "sm_80"])
def test_quantised_product(target: str, given: bool) -> None:
    proto = _model({} if given else {"w": WEIGHTS})
    if given:
        entry = proto.graph.input.add(name="w")
        entry.type.tensor_type.elem_type = TensorProto.INT4
        for extent in WEIGHTS.shape:
            entry.type.tensor_type.shape.dim.add(dim_value=extent)
    compiled = treadle.compile(proto, target, device=None if target == "cpu" else "emulator")
    outputs = compiled.run({"x": X, **({"w": WEIGHTS} if given else {})})
    assert outputs["q"].dtype == PARAMETERS["u"].dtype
    # A product next to a tie may round to the neighbour, a sixteenth of it away.
    far = ~np.isclose(outputs["y"], _expected(), rtol=1e-4, atol=1e-4)
    assert far.mean() < 0.005
