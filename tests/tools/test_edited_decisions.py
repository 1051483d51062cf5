"""A decision edited in the text of stage `schedule` runs: on the CPU, on the emulator, and from Python."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import treadle
from treadle import ir
from treadle.errors import TreadleError
from treadle.tools.treadle_cli import main

X, W = (np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in ((24, 16), (16, 40)))
EXACT = np.maximum(X.astype(np.float64) @ W, 0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """relu(x w)."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [24, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [24, 40])
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(W, "w")])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def scheduled(model: Path, folder: Path, target: str = "cpu") -> Path:
    """The text after stage `schedule`."""
    assert main(["compile", str(model), "--target", target, "--to", "schedule", "-o", str(folder)]) == 0
    return folder / "schedule.mlir"


def edit(path: Path, pattern: str, replacement: str) -> None:
    text = path.read_text()
    edited = re.sub(pattern, replacement, text)
    assert edited != text
    path.write_text(edited)


def test_on_the_cpu(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = scheduled(model, tmp_path / "text")
    edit(path, r"rows = \d+, (vectors = \d), chunk = \d+, pack = false", r"rows = 3, \1, chunk = 6, pack = true")
    assert main(["run", str(path), "--from", "schedule", "--check"]) == 0
    out = capsys.readouterr().out
    assert "agrees" in out
    assert "ONNX Runtime" not in out
    assert main(["compile", str(path), "--from", "schedule", "-o", str(tmp_path / "out")]) == 0
    (kernel,) = (tmp_path / "out" / "kernels").glob("*matmul_relu.c")
    assert "panel[" in kernel.read_text()
    with treadle.compile(path, after="schedule") as compiled:
        np.testing.assert_allclose(compiled(X)[0], EXACT, rtol=1e-5, atol=1e-5)


def test_on_the_emulator(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = scheduled(model, tmp_path / "text", "sm_80")
    edit(path, r"block_k = \d+", "block_k = 16")
    arguments = ["--target", "sm_80", "--device", "emulator", "--check", "--sanitize"]
    assert main(["run", str(path), "--from", "schedule", *arguments]) == 0
    out = capsys.readouterr().out
    assert "agrees" in out
    assert "findings: 0" in out


def test_a_module_goes_on_after_a_stage(model: Path, tmp_path: Path) -> None:
    module = ir.parse(scheduled(model, tmp_path / "text").read_text())
    for after in ("schedule", "kernels", "plan", "loops"):
        with treadle.compile(module, after=after) as compiled:
            np.testing.assert_allclose(compiled(X)[0], EXACT, rtol=1e-5, atol=1e-5)
        if after != "loops":
            following = ir.STAGES[ir.STAGES.index(after) + 1]
            ir.lower(module, "cpu", after=after, to=following)


def test_a_file_of_operators_needs_no_stage(model: Path, tmp_path: Path) -> None:
    assert main(["compile", str(model), "--to", "import", "-o", str(tmp_path / "text")]) == 0
    with treadle.compile(tmp_path / "text" / "import.mlir") as compiled:
        np.testing.assert_allclose(compiled(X)[0], EXACT, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("edits", "arguments", "says"),
    [
        ((r"rows = \d+", "rows = 15"), [], "rows"),
        ((r"matmul_cpu", "matmul_gpu"), [], "unknown template 'matmul_gpu'"),
        ((r"pack = false", "pack = 2"), [], "pack"),
        ((r"graph\.fused", "graph.fuzed"), [], "schedule.mlir:"),
        (None, ["--from", "loops"], "stage 'schedule' left the module, not 'loops'"),
        ((r"treadle\.stage = .*?}", "}"), ["--from", "loops"], "may not remain after stage 'loops'"),
        (None, ["--from", "nowhere"], "unknown stage 'nowhere'; accepted: import, graph"),
        (None, ["--shape", "x=1,2"], "shapes are given for a module, whose tensors have theirs"),
    ],
)
def test_what_cannot_go_on_is_one_line(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    edits: tuple[str, str] | None,
    arguments: list[str],
    says: str,
) -> None:
    path = scheduled(model, tmp_path / "text")
    if edits is not None:
        edit(path, *edits)
    assert main(["run", str(path), "--from", "schedule", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_stages_of_onnx_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(TreadleError, match="the model is ONNX, which stage 'schedule' does not give"):
        treadle.compile(model, after="schedule")
    with pytest.raises(TreadleError, match=r"none\.mlir: cannot read"):
        treadle.compile(tmp_path / "none.mlir")
    (tmp_path / "bytes.mlir").write_bytes(b"\xff\xfe")
    with pytest.raises(TreadleError, match=r"bytes\.mlir: cannot read: .*; accepted: IR text in UTF-8"):
        treadle.compile(tmp_path / "bytes.mlir")


def test_kernels_have_no_definition_to_check(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(model), "--to", "loops", "-o", str(tmp_path / "text")]) == 0
    path = tmp_path / "text" / "loops.mlir"
    assert main(["run", str(path), "--from", "loops"]) == 0
    assert main(["run", str(path), "--from", "loops", "--check"]) == 2
    assert "loop.func has no definition to compare with" in capsys.readouterr().err
