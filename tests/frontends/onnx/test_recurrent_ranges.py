"""RNN, GRU and LSTM over ranges of steps and of batches, at every length of the range, beside ONNX Runtime."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, helper, numpy_helper

import treadle
from tests.frontends.onnx.models import node
from treadle.backends.cuda.emulator import CHECKS

Array = NDArray[Any]
STEPS, BATCH, WIDTH, SIZE = 6, 2, 5, 6
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4, "DynamicQuantizeLSTM": 4}
RANGES = {"steps": treadle.Dim("steps", 1, STEPS), "batch": treadle.Dim("batch", 1, BATCH)}
RNG = np.random.default_rng(5)


def _weights(operator: str, count: int) -> dict[str, Array]:
    rows = GATES[operator] * SIZE
    if operator == "DynamicQuantizeLSTM":
        # Below 64, so that no sum of two products leaves 16 bits, where processors without VNNI end it.
        shapes = {"w": (count, WIDTH, rows), "r": (count, SIZE, rows)}
        found: dict[str, Array] = {name: RNG.integers(-63, 64, shape).astype(np.int8) for name, shape in shapes.items()}
        found |= {f"{name}_scale": np.full(count, 0.01, np.float32) for name in "wr"}
        found |= {f"{name}_zero": np.zeros(count, np.int8) for name in "wr"}
    else:
        shapes = {"w": (count, rows, WIDTH), "r": (count, rows, SIZE)}
        found = {name: RNG.uniform(-0.5, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    return found | {"b": RNG.uniform(-0.5, 0.5, (count, 2 * rows)).astype(np.float32)}


def _case(
    operator: str, direction: str, *, lengths: bool = False, initial: bool = False, **attributes: Any
) -> ModelProto:
    """A model whose inputs are `x`, and, where asked for, lengths and initial states; weights are constants."""
    count = 2 if direction == "bidirectional" else 1
    is_lstm = operator.endswith("LSTM")
    inputs = {"x": (1, ["steps", "batch", WIDTH])} | ({"ends": (6, ["batch"])} if lengths else {})
    states = ["h", "c"] if is_lstm else ["h"]
    inputs |= {name: (1, [count, "batch", SIZE]) for name in states} if initial else {}
    given = ["x", "w", "r", "b", "ends" if lengths else "", *(states if initial else [""] * len(states))]
    if operator == "DynamicQuantizeLSTM":
        given += ["", "w_scale", "w_zero", "r_scale", "r_zero"]
        attributes["domain"] = "com.microsoft"
    outputs = ["y", "last", "cell"] if is_lstm else ["y", "last"]
    operation = node(operator, "", " ".join(outputs), hidden_size=SIZE, direction=direction, **attributes)
    operation.input[:] = given
    entries = [helper.make_tensor_value_info(name, *each) for name, each in inputs.items()]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    weights = [numpy_helper.from_array(array, name) for name, array in _weights(operator, count).items()]
    graph = helper.make_graph([operation], "recurrent", entries, results, weights)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


CASES = {
    "RNN": _case("RNN", "bidirectional", initial=True),
    "GRU backward, of sequences that end": _case("GRU", "reverse", lengths=True, linear_before_reset=1),
    "GRU": _case("GRU", "forward", lengths=True, initial=True),
    "LSTM": _case("LSTM", "forward"),
    "LSTM in both directions, of sequences that end": _case("LSTM", "bidirectional", lengths=True, initial=True),
    "LSTM that multiplies bytes": _case("DynamicQuantizeLSTM", "bidirectional", initial=True),
}


def _inputs(proto: ModelProto, steps: int, batch: int) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for entry in proto.graph.input:
        named = {"steps": steps, "batch": batch}
        shape = [d.dim_value or named[d.dim_param] for d in entry.type.tensor_type.shape.dim]
        is_length = entry.name == "ends"
        found[entry.name] = RNG.integers(1, steps + 1, shape) if is_length else RNG.standard_normal(shape)
        found[entry.name] = found[entry.name].astype(np.int32 if is_length else np.float32)
    return found


def _poison(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """A call of the largest shape leaves these in all buffers."""
    return {name: x if x.dtype == np.int32 else np.full_like(x, np.nan) for name, x in inputs.items()}


def _calls() -> Iterator[tuple[int, int]]:
    return itertools.product(range(1, STEPS + 1), range(1, BATCH + 1))


def _check(
    proto: ModelProto, model: treadle.CompiledModel, calls: Iterable[tuple[int, int]], largest: tuple[int, int]
) -> None:
    """Calls, each after one of the largest shape."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # a batch that is divided among threads is quantised by other ranges
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    for steps, batch in calls:
        model.run(_poison(_inputs(proto, *largest)))
        inputs = _inputs(proto, steps, batch)
        expected = session.run(None, dict(inputs))
        for result, wanted in zip(model(**inputs), map(np.asarray, expected), strict=True):
            assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(result, wanted, atol=2e-6, rtol=2e-6, err_msg=f"{steps} steps of {batch}")


SLOW = ("RNN", "GRU", "LSTM")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in CASES])
def test_every_length(name: str) -> None:
    with treadle.compile(CASES[name], shapes=RANGES, threads=2) as model:
        _check(CASES[name], model, _calls(), (STEPS, BATCH))


@pytest.mark.parametrize(("time", "batch"), [(0, 1), (1, 0)])
def test_reversed_sequences(time: int, batch: int) -> None:
    shape = ["batch", "batch", WIDTH]
    shape[time] = "steps"
    entries = [helper.make_tensor_value_info("x", 1, shape), helper.make_tensor_value_info("ends", 7, ["batch"])]
    reverse = node("ReverseSequence", "x ends", "y", time_axis=time, batch_axis=batch)
    graph = helper.make_graph([reverse], "reverse", entries, [helper.make_empty_tensor_value_info("y")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    with treadle.compile(proto, shapes=RANGES) as model:
        for steps, count in ((STEPS, BATCH), (1, 1), (4, 2), (5, 1)):
            inputs = _inputs(proto, steps, count)
            inputs["ends"] = inputs["ends"].astype(np.int64)
            np.testing.assert_array_equal(model(**inputs)[0], np.asarray(session.run(None, dict(inputs))[0]))


def test_lengths_as_cuda() -> None:
    """On the emulator, with all checks, where the largest number of steps is written out."""
    proto = _case("RNN", "reverse", lengths=True)
    ranges = {"steps": treadle.Dim("steps", 1, 2), "batch": treadle.Dim("batch", 1, 2)}
    with treadle.compile(proto, "sm_80", shapes=ranges, device="emulator", checks=tuple(CHECKS)) as model:
        _check(proto, model, [(1, 1), (1, 2)], (2, 2))
        assert [str(finding) for report in model.reports for finding in report.findings] == []
