"""treadle compile, run and check on models that work."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import treadle
from tests.helpers.onnx_models import WEIGHTS, linear_model, save_model, value
from treadle.tools import oracle, run_command
from treadle.tools.treadle_cli import main

X = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(linear_model(tmp_path / "m.onnx"))


def test_compile_writes_a_folder_that_load_reads(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "output"
    for _ in range(2):  # the second replaces the first
        assert main(["compile", model, "-o", str(output)]) == 0
    captured = capsys.readouterr()
    assert "units of cpu code" in captured.out and captured.err == ""
    np.testing.assert_allclose(treadle.load(output)(X)[0], np.maximum(X @ WEIGHTS, 0), rtol=1e-5, atol=1e-6)
    assert [path.name for path in output.parent.iterdir()] == ["output"]


def test_compile_for_a_gpu_writes_text_and_cubin(model: str, tmp_path: Path) -> None:
    output = tmp_path / "output"
    assert main(["compile", model, "--target", "sm_90", "-o", str(output)]) == 0
    texts = {path.stem for path in output.glob("kernels/*.cu")}
    assert texts and texts == {path.stem for path in output.glob("kernels/*.cubin")}


def test_compile_to_a_stage_writes_ir(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, trace = tmp_path / "output", tmp_path / "trace"
    assert main(["compile", model, "--to", "fuse", "--trace", str(trace), "-o", str(output)]) == 0
    written = (output / "fuse.mlir").read_text()
    assert "graph.fused" in written
    assert written.replace(' attributes {treadle.stage = "fuse"}', "", 1) == max(trace.iterdir()).read_text()


def test_run_prints_the_outputs(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", X)
    assert main(["run", model, "--input", f"x={tmp_path / 'x.npy'}", "--threads", "1"]) == 0
    largest = np.maximum(X @ WEIGHTS, 0).max()
    assert f"y: float32[2, 4] from 0 to {largest:.4f}"[:-1] in capsys.readouterr().out


def test_an_array_gives_dynamic_dimensions_their_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(linear_model(tmp_path / "m.onnx", rows="batch"))
    np.save(tmp_path / "x.npy", X)
    assert main(["run", model, "--input", f"x={tmp_path / 'x.npy'}"]) == 0


def test_a_range_of_extents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(linear_model(tmp_path / "m.onnx", rows="batch"))
    for rows in (1, 2):
        np.save(tmp_path / f"{rows}.npy", X[:rows])
    assert main(["check", model, "--shape", "batch=1..9"]) == 0
    assert main(["compile", model, "--shape", "x=n:1..9,8", "-o", str(tmp_path / "saved")]) == 0
    assert main(["run", model, "--shape", "batch=1..9", "--input", f"x={tmp_path / '1.npy'}", "--check"]) == 0
    capsys.readouterr()
    for rows in (1, 2):
        assert main(["run", str(tmp_path / "saved"), "--input", f"x={tmp_path / f'{rows}.npy'}"]) == 0
        largest = np.maximum(X[:rows] @ WEIGHTS, 0).max()
        assert f"y: float32[{rows}, 4] from 0 to {largest:.4g}"[:-1] in capsys.readouterr().out
    assert main(["compile", model, "--shape", "x=n:9..1,8", "-o", str(tmp_path / "none")]) == 2
    assert "accepted: a range that is not empty" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["gpu_0/data_0", "a=b", "x y", "données:0"])
def test_names_that_are_no_identifiers(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(linear_model(tmp_path / "m.onnx", rows="batch", name=name))
    np.save(tmp_path / "x.npy", X)
    assert main(["check", model, "--shape", f"{name}=2,8"]) == 0
    assert main(["compile", model, "--shape", f"{name}=2,8", "-o", str(tmp_path / "saved")]) == 0
    capsys.readouterr()
    assert main(["run", str(tmp_path / "saved"), "--input", f"{name}={tmp_path / 'x.npy'}"]) == 0
    largest = np.maximum(X @ WEIGHTS, 0).max()
    assert f"y: float32[2, 4] from 0 to {largest:.4f}"[:-1] in capsys.readouterr().out


def test_run_takes_a_compiled_folder(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    treadle.compile(model).save(tmp_path / "saved")
    assert main(["run", str(tmp_path / "saved")]) == 0
    assert "y: float32[2, 4]" in capsys.readouterr().out


def test_run_takes_only_the_text_of_a_compiled_folder(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    treadle.compile(model).save(tmp_path / "saved")
    (tmp_path / "saved" / "model.so").unlink()
    assert main(["run", str(tmp_path / "saved"), "--rebuild"]) == 0
    assert "y: float32[2, 4]" in capsys.readouterr().out
    assert main(["run", model, "--rebuild"]) == 2
    assert "--rebuild is for a compiled model; accepted: a folder" in capsys.readouterr().err


@pytest.mark.parametrize("element", [TensorProto.INT4, TensorProto.FLOAT8E4M3FN])
def test_check_of_types_that_onnx_runtime_does_not_take(
    element: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "cast.onnx"
    given, result = (helper.make_tensor_value_info(n, t, [2, 4]) for n, t in (("x", element), ("y", TensorProto.FLOAT)))
    graph = helper.make_graph([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], "g", [given], [result])
    opset = helper.make_opsetid("", 21)
    path.write_bytes(helper.make_model(graph, opset_imports=[opset], ir_version=10).SerializeToString())
    assert main(["run", str(path), "--check"]) == 0
    last = capsys.readouterr().out.splitlines()[-2:]
    assert last[0].endswith("agrees") and last[1].startswith("ONNX Runtime does not run the model: ")
    monkeypatch.setattr(treadle.CompiledModel, "run", lambda self, inputs: FAR)
    assert main(["run", str(path), "--check"]) == 1


FAR = {"y": np.full((2, 4), 3.0, np.float32)}


def test_check_says_which_side_is_off(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")

    def verdicts(status: int) -> list[tuple[bool, bool]]:
        assert main(["run", model, "--check"]) == status
        lines = capsys.readouterr().out.splitlines()[-2:]
        return [(line.startswith("ONNX Runtime: y: "), line.endswith(": agrees")) for line in lines]

    assert verdicts(0) == [(False, True), (True, True)]
    with monkeypatch.context() as patch:
        patch.setattr(oracle, "reference_outputs", lambda path, inputs, names: FAR)
        assert verdicts(1) == [(False, True), (True, False)]
    monkeypatch.setattr(treadle.CompiledModel, "run", lambda self, inputs: FAR)
    assert verdicts(1) == [(False, False), (True, True)]


@pytest.mark.parametrize("nodes", [[], ["--nodes"]])
def test_check_lists_what_is_supported(nodes: list[str], model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", model, *nodes]) == 0
    text = capsys.readouterr().out
    assert "MatMul" in text and "2 of 2 nodes are supported" in text
    assert ("product" in text) == bool(nodes)


def test_check_prints_the_memory_of_a_call(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", model, "--memory"]) == 0
    assert f"peak memory of a call: {treadle.compile(model).memory}\n" in capsys.readouterr().out
    assert main(["check", model]) == 0
    assert "peak memory" not in capsys.readouterr().out


def test_the_cache_is_listed_and_cleared(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    treadle.compile(model)
    for option, models in ([], "1"), (["--clear"], "0"):
        assert main(["cache", *option]) == 0
        first, *lines = capsys.readouterr().out.splitlines()
        assert first.endswith("cache: at most 20000.0 MB (TREADLE_CACHE_LIMIT)")
        assert dict(line.split()[:2] for line in lines)["models"] == models


def test_ctrl_c(model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_command, "compile", interrupt)
    assert main(["run", model]) == 130
    assert capsys.readouterr().err == "treadle: interrupted\n"


def test_without_arguments_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("usage: treadle")


def test_run_saves_outputs_and_times_more_calls(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", X)
    folder = tmp_path / "new" / "outputs"
    command = ["run", model, "--input", f"x={tmp_path / 'x.npy'}", "--repeat", "5", "--save", str(folder)]
    assert main(command) == 0
    assert "ms (median of 5 more calls; quartiles" in capsys.readouterr().out
    np.testing.assert_allclose(np.load(folder / "y.npy"), np.maximum(X @ WEIGHTS, 0), rtol=1e-5, atol=1e-6)
    (tmp_path / "file").touch()
    assert main(["run", model, "--save", str(tmp_path / "file")]) == 2
    assert "cannot write: File exists; accepted: a folder that can be written" in capsys.readouterr().err
    assert main(["run", model, "--repeat", "-1"]) == 2
    assert "--repeat: -1 calls; accepted: 0 upwards" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["int4", "uint2", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
def test_arrays_of_types_that_numpy_lacks_are_written_and_read(name: str, tmp_path: Path) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    element = helper.np_dtype_to_tensor_dtype(dtype)
    transpose = [helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])]
    path = save_model(tmp_path / "t.onnx", transpose, [value("x", (2, 3), element)], [value("y", (3, 2), element)])
    x = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    np.save(tmp_path / "x.npy", x.view(f"V{dtype.itemsize}"))
    assert main(["run", str(path), "--input", f"x={tmp_path / 'x.npy'}", "--save", str(tmp_path)]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy").view(dtype), x.T)


def test_check_looks_operators_up_where_shapes_are_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(linear_model(tmp_path / "m.onnx", rows="batch"))
    assert main(["check", model]) == 0
    text = capsys.readouterr().out
    assert "MatMul" in text and "2 of 2 nodes are supported" in text
    assert "operators only, no shapes: input 'x': dimension 0 ('batch') without a value; accepted: --shape" in text
    assert main(["check", model, "--shape", "batch=2"]) == 0
    assert "operators only" not in capsys.readouterr().out


def test_check_lists_the_operators(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--operators"]) == 0
    assert {"Conv", "MatMul", "Softmax"} <= set(capsys.readouterr().out.split())
    assert main(["check"]) == 2
    assert "no model is given; accepted: treadle check MODEL" in capsys.readouterr().err
