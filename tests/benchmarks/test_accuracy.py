"""The benchmark of errors against float64: its reference, its numbers, and a whole run on a small model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks import accuracy
from benchmarks.accuracy import PEER, WAYS, Errors, is_worse, main, outputs_in_float64
from benchmarks.paper_models import PaperModel
from treadle.backends.reference.bounded import Bounded

SHAPE = (1, 64, 28, 28)
"""Of an image large enough for tiles to be chosen."""
THIRD = np.float32(1) / np.float32(3)


def write_model(path: Path) -> None:
    """A convolution of 3x3, and a third of what it gives, which is no f32."""
    random = np.random.default_rng(1)
    weights = (random.standard_normal((64, 64, 3, 3)) / 24).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Constant", [], ["third"], value=numpy_helper.from_array(np.array(THIRD))),
        helper.make_node("Mul", ["c", "third"], ["m"]),
        helper.make_node("Cast", ["m"], ["y"], to=TensorProto.FLOAT),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in ("x", "y"))
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weights, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


def test_errors_are_parts_of_the_root_mean_square_and_of_limits() -> None:
    exact = np.array([3.0, -4.0, 0.0, 5.0])  # of root mean square 12.5 ** 0.5
    bounded = Bounded(exact, np.array([1.0, 0.1, 1.0, 1.0]))
    near, far = exact + np.array([0, 0.2, 0, 0]), exact + 1.0
    limits = {name: (bounded, np.dtype(np.float64)) for name in ("near", "far")}
    first = {"near": limits["near"]}
    found = Errors.of({"near": near}, {"near": exact}, first)
    assert found.largest == pytest.approx(0.2 / 12.5**0.5, rel=1e-2)
    assert found.mean == pytest.approx(0.1 / 12.5**0.5, rel=1e-2)
    assert found.of_limit == pytest.approx(2.0, rel=1e-2)
    worst = Errors.of({"near": near, "far": far}, {"near": exact, "far": exact}, limits)
    assert worst.mean == pytest.approx(1 / 12.5**0.5, rel=1e-2)
    assert worst.of_limit == pytest.approx(10.0, rel=1e-2)


@pytest.mark.parametrize(
    ("largest", "of_limit", "most", "worse"),
    [(2e-6, 0.1, np.inf, False), (2e-6, 0.1, 1.5, True), (2e-6, 0.1, 2.5, False), (1e-7, 1.1, np.inf, True)],
)
def test_what_is_worse_than_it_may_be(largest: float, of_limit: float, most: float, worse: bool) -> None:
    sides = {"direct": Errors(1e-7, 1e-8, 0.1), "winograd4": Errors(largest, 1e-8, of_limit)}
    assert is_worse({**sides, PEER: Errors(1e-6, 1e-8, 2.0)}, most) is worse


def test_the_reference_computes_in_float64(tmp_path: Path) -> None:
    """Initializers, constants and casts: no value is rounded to f32."""
    write_model(tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    model = onnx.load(tmp_path / "m.onnx")
    weights = numpy_helper.to_array(model.graph.initializer[0]).astype(np.float64)
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    expected = np.einsum("nchwij,ocij->nohw", windows, weights) * np.float64(THIRD)
    (found,) = outputs_in_float64(model, {"x": x})
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


def test_all_ways_and_onnx_runtime_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    monkeypatch.setattr(accuracy, "PAPER_MODELS", {"small": PaperModel(lambda: None, "x", example)})
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))
    write_model(tmp_path / "small.onnx")
    arguments = ["--models", "small", "--onnx", str(tmp_path), "--output", str(tmp_path / "results")]
    assert main([*arguments, "--most", "1e-9"]) == 1
    (path,) = (tmp_path / "results").iterdir()
    (row,) = json.loads(path.read_text())["results"]
    for side in (*WAYS, PEER):
        assert 1e-8 < row[side]["mean"] < row[side]["largest"] < 1e-5
        assert 0 < row[side]["of_limit"] < 1
    assert row["winograd4"] != row["direct"]
    assert "small" in capsys.readouterr().out
