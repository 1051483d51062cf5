"""`treadle run --check`: of a model for a range at its corners and between, beside the model itself; without ONNX
Runtime; of IR without names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import treadle
from tests.helpers.onnx_models import linear_model, value
from treadle.artifact.manifest import Tensor
from treadle.runtime.inputs import inputs_at, points_of
from treadle.shapes.dim import Dim
from treadle.tools import oracle
from treadle.tools.treadle_cli import main

RANGE = ["--shape", "batch=1..6", "--check"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(linear_model(tmp_path / "m.onnx", rows="batch"))


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_a_range_is_checked_at_its_corners_and_between(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    assert main(["run", model, *RANGE]) == 0
    found = lines(capsys)
    for extent in (1, 6):
        for who in ("", "ONNX Runtime: "):
            assert any(line.startswith(f"batch = {extent}: {who}y: ") and line.endswith("agrees") for line in found)
    said = "points of batch:1..6: compared with the definition for each point's shapes, and ONNX Runtime on the model"
    assert said in found[-1]


def test_what_is_wrong_in_smaller_calls_is_found(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = treadle.CompiledModel.run

    def wrong(self: treadle.CompiledModel, inputs: Any) -> dict[str, np.ndarray]:
        outputs = run(self, inputs)
        return {name: array if len(array) == 6 else array + 1 for name, array in outputs.items()}

    monkeypatch.setattr(treadle.CompiledModel, "run", wrong)
    assert main(["run", model, *RANGE]) == 1
    found = lines(capsys)
    assert any(line.startswith("batch = 1: y: ") and line.endswith("DIFFERS") for line in found)
    assert any(line.startswith("batch = 6: y: ") and line.endswith("agrees") for line in found)


def test_a_given_call_is_checked_as_well(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.ones((3, 8), np.float32))
    assert main(["run", model, "--input", f"x={tmp_path / 'x.npy'}", *RANGE]) == 0
    assert any(line.startswith("y: max abs error") for line in lines(capsys))


def test_without_onnx_runtime_the_definition_is_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["run", str(linear_model(tmp_path / "m.onnx")), "--check"]) == 0
    *_, own, last = lines(capsys)
    assert own.startswith("y: ") and own.endswith("agrees")
    assert last == "ONNX Runtime is not installed; the definition alone was compared with"


def test_without_onnx_runtime_ranges_are_checked_by_the_reference_evaluator(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["run", model, *RANGE]) == 0
    *found, refusal, last = lines(capsys)
    assert any(line.startswith("batch = 1: ONNX's reference evaluator: y: ") for line in found)
    assert refusal == "ONNX Runtime is not installed" and last.endswith(
        "and ONNX's reference evaluator on the model itself"
    )
    monkeypatch.setattr(oracle, "evaluator_outputs", lambda path, inputs, names: {"y": np.zeros((6, 4), np.float32)})
    assert main(["run", model, *RANGE]) == 1


def test_operators_that_the_reference_evaluator_lacks(tmp_path: Path) -> None:
    node = helper.make_node("QuickGelu", ["x"], ["y"], domain="com.microsoft")
    given, result = (value(name, (2,), TensorProto.FLOAT) for name in ("x", "y"))
    graph = helper.make_graph([node], "g", [given], [result])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    path = tmp_path / "gelu.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    with pytest.raises(oracle.NoReferenceError, match="ONNX's reference evaluator does not run the model: "):
        oracle.evaluator_outputs(path, {"x": np.ones(2, np.float32)}, ["y"])


TEXT = """
func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %y = graph.unary "relu" %x : (tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}
"""


def test_ir_without_names_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "f.mlir").write_text(TEXT)
    assert main(["run", str(tmp_path / "f.mlir"), "--check"]) == 0
    assert lines(capsys)[-1].startswith("output0: max abs error 0")


def test_ir_of_a_range_is_no_definition(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", model, "--shape", "batch=1..6", "--to", "import", "-o", str(tmp_path / "text")]) == 0
    assert main(["run", str(tmp_path / "text" / "import.mlir"), "--from", "import", "--check"]) == 2
    assert "is no definition of a call; accepted: the .onnx file, with --shape" in capsys.readouterr().err


def test_points_are_all_corners_of_few_symbols_and_the_outer_ones_of_many() -> None:
    n, w = Dim("n", 1, 4), Dim("w", 32, 96, 32)
    points = points_of([n, w], 0)
    assert points[:4] == [{"n": a, "w": b} for a in (1, 4) for b in (32, 96)] and 4 <= len(points) <= 6
    assert all(point["n"] in n and point["w"] in w for point in points)
    many = points_of([Dim(name, 1, 9) for name in "abcd"], 0)
    assert len(many) == 12 and many[0] == dict.fromkeys("abcd", 1) and dict.fromkeys("abcd", 9) in many
    assert points_of([Dim("n", 3, 3)], 0) == [{"n": 3}]


def test_given_inputs_are_cut_and_repeated() -> None:
    tensors = [Tensor("ids", (1, 4), "int64", ("1", "n")), Tensor("x", (2,), "float32")]
    ids = np.array([[7, 8, 9]])
    for extent, wanted in ((2, [7, 8]), (3, [7, 8, 9]), (4, [7, 8, 9, 7])):
        found = inputs_at(tensors, {"n": extent}, {"ids": ids}, 0)
        np.testing.assert_array_equal(found["ids"], [wanted])
        assert found["x"].shape == (2,) and found["x"].dtype == np.float32
