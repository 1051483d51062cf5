"""RNN, GRU and LSTM over more steps than are written out, as compiled C and on the emulator, beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from tests.frontends.onnx.models import model, node
from tests.helpers import emulated_batch
from tests.helpers.emulated_batch import EmulatedProgram
from tests.helpers.program_batch import CompiledProgram, compile_programs, print_program
from treadle.backends.reference.bound_module import bound_module
from treadle.frontends.onnx import import_model

Array = NDArray[Any]
STEPS, BATCH, WIDTH, SIZE = 6, 2, 5, 6
"""Steps that are more than an import writes out."""
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
        weights["ends"] = np.array([3, STEPS], np.int32)
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


@cache
def programs(target: str) -> Mapping[str, CompiledProgram | EmulatedProgram]:
    """All cases, from one call of a compiler; on the emulator with every check."""
    modules = {name: import_model(proto.SerializeToString()) for name, (proto, _) in CASES.items()}
    assert all("graph.loop" in {op.name for op in module.walk()} for module in modules.values())
    if target == "cpu":
        return compile_programs([print_program(*each, after="import") for each in modules.items()])
    printed = [emulated_batch.print_program(*each, after="import") for each in modules.items()]
    return emulated_batch.compile_programs(printed)


@cache
def wanted(name: str) -> tuple[list[Array], list[Array]]:
    """The results of ONNX Runtime, and how far from them the definition may be."""
    proto, inputs = CASES[name]
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, dict(inputs))
    bounds = bound_module(import_model(proto.SerializeToString()), list(inputs.values()))
    return [np.asarray(each) for each in expected], [bound.full_error for bound in bounds]


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
@pytest.mark.parametrize("name", CASES)
def test_many_steps(name: str, target: str) -> None:
    results = programs(target)[name].run(list(CASES[name][1].values()))
    for result, expected, limit in zip(results, *wanted(name), strict=True):
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        # Both results round: each may be off by the limit.
        assert np.all(np.abs(result.astype(np.float64) - expected) <= 2 * limit)
