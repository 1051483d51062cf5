"""--precision, --convolution and --explain-fusion, on the tools and in `compile`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import treadle
from tests.helpers.onnx_models import WEIGHTS, linear_model
from treadle.artifact.cache import artifact_key
from treadle.errors import TreadleError
from treadle.shapes.dim import Dim
from treadle.target.options import CONVOLUTIONS, EPSILON, PRECISIONS, CompileOptions, Precision
from treadle.tools.arguments import parse_shapes
from treadle.tools.oracle import Definition
from treadle.tools.treadle_cli import main
from treadle.tools.treadle_opt import main as opt

X = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
REMARK = "remark: %m (matmul of MatMul 'product') -> %y (relu of Relu 'clamp'): fused, as an epilogue"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(linear_model(tmp_path / "m.onnx"))


def test_every_tool_explains_fusion(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tools = [
        ["compile", model, "-o", str(tmp_path / "whole")],
        ["compile", model, "-o", str(tmp_path / "stage"), "--to", "schedule"],
        ["run", model],
        ["run", model],  # explained again, although the model is in the cache
        ["check", model],
        ["check", model, "--target", "sm_80"],
    ]
    for arguments in tools:
        assert main([*arguments, "--explain-fusion"]) == 0
        assert REMARK in capsys.readouterr().err
        assert main(arguments) == 0
        assert "remark" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["--to", "fuse"], ["--pipeline", "sm_80"], ["-p", "graph-define,graph-inline,graph-fuse"]]
)
def test_the_optimiser_explains_fusion(
    arguments: list[str], model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ["-o", str(tmp_path / "out.mlir")]
    assert opt([model, *arguments, *output, "--explain-fusion"]) == 0
    assert REMARK in capsys.readouterr().err


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_precision_is_compiled_recorded_and_cached(precision: str, model: str, tmp_path: Path) -> None:
    compiled = treadle.compile(model, precision=precision)
    compiled.save(tmp_path / "saved")
    assert compiled.manifest.precision == treadle.load(tmp_path / "saved").manifest.precision == precision
    # Weights of 16 bits take half the bytes.
    stored = {tensor.dtype for tensor in compiled.manifest.constants}
    assert stored == {{"f16": "float16", "bf16": "bfloat16"}.get(precision, "float32")}
    exact = np.maximum(X @ WEIGHTS, 0)
    unit = {"f16": 2.0**-10, "bf16": 2.0**-7}.get(precision, 2.0**-22)
    np.testing.assert_allclose(compiled(X)[0], exact, rtol=0, atol=8 * unit * np.abs(exact).max())
    other = treadle.compile(model, precision="f16" if precision == "f32" else "f32")
    assert other.manifest.precision != precision, "precisions are cached apart"


@pytest.mark.parametrize("precision", ["f16", "bf16", "tf32"])
def test_check_takes_the_limits_of_the_precision(
    precision: Precision, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    assert main(["run", model, "--precision", precision, "--check"]) == 0
    assert "agrees" in capsys.readouterr().out
    plain, lowered = (
        Definition.of_file(Path(model), {"x": X}, each).outputs()["y"][0].full_error for each in ("f32", precision)
    )
    ratio = EPSILON[precision] / EPSILON["f32"]
    active = plain > 0
    assert active.any() and np.all(lowered[active] < ratio * plain[active])
    assert np.all(lowered[active] > 0.1 * ratio * plain[active])


def test_an_unknown_precision_is_named(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TreadleError, match=r"unknown precision 'f8'; accepted: f32, f16, bf16, tf32"):
        treadle.compile(model, precision="f8")
    assert main(["run", model, "--precision", "f8"]) == 2
    assert "f8" in capsys.readouterr().err


def test_a_compiled_folder_has_its_precision_already(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    treadle.compile(model).save(tmp_path / "saved")
    assert main(["run", str(tmp_path / "saved"), "--precision", "f16"]) == 2
    assert "--precision needs the model itself" in capsys.readouterr().err


def test_an_unknown_convolution_is_named(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TreadleError, match=r"unknown convolution 'fft'; accepted: direct, winograd2, winograd4"):
        treadle.compile(model, convolution="fft")
    with pytest.raises(TreadleError, match=r"convolution 'winograd2' for a cuda target; accepted: direct"):
        treadle.compile(model, "sm_80", convolution="winograd2", device="emulator")
    assert main(["run", model, "--convolution", "fft"]) == 2
    assert "fft" in capsys.readouterr().err


def test_convolutions_are_cached_apart() -> None:
    keys = {artifact_key(b"model", {}, "cpu", "gcc", "f32", way) for way in CONVOLUTIONS}
    assert len(keys) == len(CONVOLUTIONS)


def test_settings_name_what_the_pipeline_replaces() -> None:
    words = {"PRECISION": "bf16", "EXPLAIN": "true", "DATABASE": '"/tuned"', "CONVOLUTION": "direct"}
    words |= {"CONSTRUCT": "walk", "WEIGHTS": "int4"}
    assert CompileOptions("bf16", True, "/tuned", "direct", "walk", "int4").words() == words


def test_ranges_without_names() -> None:
    """Each is a dimension of its own, which its input and its position name."""
    shapes = parse_shapes(["x=1..8,3,32..640:32", "a.1=2,1..4", "w=2..5", "z=n:1..3,n:1..3"])
    assert shapes == {
        "x": (Dim("x_0", 1, 8), 3, Dim("x_2", 32, 640, 32)),
        "a.1": (2, Dim("a_1_1", 1, 4)),
        "w": (Dim("w", 2, 5),),
        "z": (Dim("n", 1, 3), Dim("n", 1, 3)),
    }
    with pytest.raises(
        TreadleError, match=r"cannot read the shape 'x=1,y'; accepted: .* or ranges, such as x=1..8,3,48"
    ):
        parse_shapes(["x=1,y"])
