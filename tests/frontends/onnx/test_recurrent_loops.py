"""RNN, GRU and LSTM over more steps than are written out, as compiled C and on the emulator, beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

import treadle
from tests.frontends.onnx.models import model, node
from treadle.backends.cuda.emulator import CHECKS
from treadle.backends.reference.bound_module import bound_module
from treadle.frontends.onnx import import_model

Array = NDArray[Any]
STEPS, BATCH, WIDTH, SIZE = 11, 2, 5, 6
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _case(
    operator: str, direction: str, *, known: bool = True, lengths: bool = False, **attributes: Any
) -> tuple[ModelProto, dict[str, Array]]:
    """A model and its inputs; with `known` weights, biases and peepholes are constants."""
    rng, count = np.random.default_rng(3), 2 if direction == "bidirectional" else 1
    rows = GATES[operator] * SIZE
    weights: dict[str, Array] = {
        name: rng.uniform(-0.5, 0.5, (count, *shape)).astype(np.float32)
        for name, shape in {"w": (rows, WIDTH), "r": (rows, SIZE), "b": (2 * rows,)}.items()
    }
    given = ["x", "w", "r", "b"]
    inputs: dict[str, Array] = {"x": rng.standard_normal((STEPS, BATCH, WIDTH)).astype(np.float32)}
    if operator == "LSTM":
        states = {name: rng.standard_normal((count, BATCH, SIZE)).astype(np.float32) for name in ("h", "c")}
        weights["p"] = rng.uniform(-0.5, 0.5, (count, 3 * SIZE)).astype(np.float32)
        inputs |= states
        given += ["ends" if lengths else "", "h", "c", "p"]
    elif lengths:
        given.append("ends")
    if lengths:
        weights["ends"] = np.array([4, STEPS], np.int32)
    outputs = "y last cell" if operator == "LSTM" else "y last"
    operation = node(operator, " ".join(given), outputs, hidden_size=SIZE, direction=direction, **attributes)
    operation.input[:] = given
    if not known:
        inputs |= {name: weights.pop(name) for name in ("w", "r", "b")}
    sizes = {name: array.shape for name, array in inputs.items()}
    return model([operation], sizes, outputs.split(), weights=weights), inputs


CASES = {
    "RNN": _case("RNN", "forward"),
    "RNN, other activations": _case("RNN", "reverse", activations=["Relu"]),
    "GRU backward": _case("GRU", "reverse", linear_before_reset=1),
    "GRU, reset before": _case("GRU", "forward", lengths=True),
    "LSTM in both directions": _case("LSTM", "bidirectional", lengths=True),
    "LSTM of weights that are data": _case("LSTM", "forward", known=False),
}


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
@pytest.mark.parametrize("name", CASES)
def test_many_steps(name: str, target: str) -> None:
    proto, inputs = CASES[name]
    module = import_model(proto.SerializeToString())
    assert "graph.loop" in {op.name for op in module.walk()}
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    expected = [np.asarray(each) for each in session.run(None, dict(inputs))]
    settings: dict[str, Any] = {} if target == "cpu" else {"device": "emulator", "checks": tuple(CHECKS)}
    with treadle.compile(proto, target, threads=2 if target == "cpu" else None, **settings) as compiled:
        results = compiled.run(inputs).values()
    limits = bound_module(module, list(inputs.values()))
    for result, wanted, limit in zip(results, expected, limits, strict=True):
        assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype)
        # Both results round: each may be off by the limit.
        assert np.all(np.abs(result.astype(np.float64) - wanted) <= 2 * limit.full_error)
