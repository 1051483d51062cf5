"""The pipeline as a whole, on tiny models: stages, targets, compile, call, save, load, cache."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from pathlib import Path

import numpy as np
import onnx
import pytest
from xdsl.dialects.builtin import ModuleOp

import treadle
from tests.helpers.onnx_models import WEIGHTS, external_model, linear_model
from treadle.artifact.artifact import MODULE
from treadle.artifact.manifest import MANIFEST
from treadle.compiler.pipeline import PASSES, STAGE_NAMES, STAGES, lower, passes_of, stages_between
from treadle.compiler.request import CompileRequest, lowered_module
from treadle.dialects.location import LocatedParser
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.frontends.onnx import import_model
from treadle.passes.graph.graph_inline import GraphInlinePass
from treadle.passes.instruments import LEGAL, ir_text
from treadle.target import Target

X = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
Y = np.maximum(X @ WEIGHTS, 0)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    return linear_model(tmp_path / "m.onnx")


@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90"])
def test_every_stage_has_passes_and_a_border(target: str) -> None:
    chosen = Target.parse(target)
    for stage in STAGES:
        assert passes_of(stage, chosen) or stage.name == "import"
        assert stage.name in LEGAL or f"{stage.name} {chosen.kind}" in LEGAL
        assert stage.purpose and all(step.why for step in PASSES[chosen.kind][stage.name])


def test_stages_are_chosen_by_name() -> None:
    assert [stage.name for stage in stages_between("define", "schedule")] == ["fuse", "schedule"]
    assert [stage.name for stage in stages_between(None, None)] == list(STAGE_NAMES)
    with pytest.raises(TreadleError, match="unknown stage 'fused'; accepted: import, graph, define, fuse"):
        stages_between(None, "fused")
    with pytest.raises(TreadleError, match="stage 'graph' comes before 'plan'; accepted: loops, lower"):
        stages_between("plan", "graph")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The model's text for each target behind the last stage, verified after each pass on the way."""
    path = linear_model(tmp_path_factory.mktemp("straight") / "m.onnx")
    return {
        target: ir_text(lowered_module(CompileRequest(path, Target.parse(target), check=True)))
        for target in ("cpu", "sm_80")
    }


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
@pytest.mark.parametrize("stage", STAGE_NAMES)
def test_a_stage_saved_as_text_resumes(stage: str, target: str, model_path: Path, straight: dict[str, str]) -> None:
    saved = ir_text(lowered_module(CompileRequest(model_path, Target.parse(target)), stage))
    context = treadle_context()
    module = LocatedParser(context, saved, "saved").parse_module()
    lower(context, module, Target.parse(target), after=stage)
    assert ir_text(module) == straight[target]


def test_a_model_is_called_by_position_and_by_name(model_path: Path) -> None:
    model = treadle.compile(model_path, threads=2)
    (by_position,) = model(X)
    (by_name,) = model(x=X)
    np.testing.assert_allclose(by_position, Y, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(by_position, by_name)
    assert str(model.inputs[0]) == "x: float32[2, 8]" and model.outputs[0].name == "y"


def test_names_that_are_no_identifiers(tmp_path: Path) -> None:
    model = treadle.compile(linear_model(tmp_path / "m.onnx", name="gpu_0/data:0"))
    np.testing.assert_allclose(model(X)[0], Y, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(model.run({"gpu_0/data:0": X})["y"], model(X)[0])


def test_shapes_fix_dynamic_dimensions(tmp_path: Path) -> None:
    path = linear_model(tmp_path / "m.onnx", rows="batch")
    model = treadle.compile(path, shapes={"x": (3, 8)})
    assert model(np.zeros((3, 8), np.float32))[0].shape == (3, 4)


def test_a_module_is_compiled_and_stays_as_it_is(model_path: Path) -> None:
    module = import_model(model_path)
    before = ir_text(module)
    np.testing.assert_allclose(treadle.compile(module)(X)[0], Y, rtol=1e-5, atol=1e-6)
    assert isinstance(module, ModuleOp) and ir_text(module) == before


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Generator[treadle.CompiledModel]:
    with treadle.compile(linear_model(tmp_path_factory.mktemp("compiled") / "m.onnx")) as model:
        yield model


@pytest.mark.parametrize(
    ("arrays", "named", "message"),
    [
        ((), {}, r"input 'x': the input is missing; accepted: x: float32\[2, 8\]"),
        ((X, X), {}, r"2 inputs given, 1 needed; accepted: x: float32\[2, 8\]"),
        ((X,), {"x": X}, r"input 'x' is given by position and by name"),
        ((), {"z": X}, r"there is no input 'z'; accepted: x"),
        ((X.T,), {}, r"input 'x': float32\[8, 2\] given; accepted: x: float32\[2, 8\]"),
        ((X.astype(np.float64),), {}, r"input 'x': float64\[2, 8\] given; accepted: x: float32\[2, 8\]"),
    ],
)
def test_wrong_inputs_are_named(
    arrays: tuple[np.ndarray, ...], named: dict[str, np.ndarray], message: str, compiled: treadle.CompiledModel
) -> None:
    with pytest.raises(TreadleError, match=message):
        compiled(*arrays, **named)


def test_save_and_load(model_path: Path, tmp_path: Path, own_cache: Path) -> None:
    treadle.compile(model_path).save(tmp_path / "saved")
    shutil.rmtree(own_cache)
    loaded = treadle.load(tmp_path / "saved", threads=1)
    np.testing.assert_allclose(loaded(X)[0], Y, rtol=1e-5, atol=1e-6)
    names = {path.relative_to(tmp_path / "saved").as_posix() for path in (tmp_path / "saved").rglob("*")}
    assert {MANIFEST, MODULE, "weights", "model.so", "kernels/treadle_run.c"} <= names


def test_the_second_compilation_comes_from_the_cache(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = treadle.compile(model_path)
    monkeypatch.setattr(
        "treadle.compiler.artifact_writer.write_artifact", lambda request, folder: pytest.fail("compiled twice")
    )
    second = treadle.compile(model_path)
    assert first.folder == second.folder
    np.testing.assert_array_equal(first(X)[0], second(X)[0])


def test_a_damaged_cache_entry_is_compiled_anew(model_path: Path) -> None:
    folder = treadle.compile(model_path).folder
    (folder / "model.so").write_bytes(b"")
    again = treadle.compile(model_path)
    assert again.folder == folder
    np.testing.assert_allclose(again(X)[0], Y, rtol=1e-5, atol=1e-6)


def test_changed_external_data_is_noticed(tmp_path: Path) -> None:
    path = external_model(tmp_path / "m.onnx", "w.bin")
    for factor in (1.0, 2.0):
        (tmp_path / "w.bin").write_bytes((WEIGHTS * np.float32(factor)).tobytes())
        (actual,) = treadle.compile(path)(X)
        np.testing.assert_allclose(actual, X @ WEIGHTS * factor, rtol=1e-4, atol=1e-5)


def test_a_gpu_target_gives_cuda_text_and_cubins(model_path: Path) -> None:
    model = treadle.compile(model_path, target="sm_80")
    kinds = {Path(name).suffix for name in model.manifest.files if name.startswith("kernels/")}
    assert {".cu", ".cubin", ".h"} == kinds
    launch = model.manifest.launches[0]
    assert (model.folder / launch.image).read_bytes()[:4] == b"\x7fELF"
    assert launch.kernel in (model.folder / launch.image).with_suffix(".cu").read_text()


def test_a_model_in_memory_compiles_as_its_file_does(tmp_path: Path) -> None:
    path = linear_model(tmp_path / "m.onnx", rows="batch")
    with treadle.compile(onnx.load(path), shapes={"batch": 2}) as model:
        np.testing.assert_allclose(model(X)[0], Y, rtol=1e-5, atol=1e-6)
        assert repr(model).startswith("CompiledModel(cpu: x: float32[2, 8] -> y: float32[2, 4]; ")
        program = model.open()
    with pytest.raises(TreadleError, match=r"run\(\) after close\(\)"):
        program.run([X])
    assert treadle.compile(onnx.load(path), shapes={"batch": 2}).folder == model.folder  # from the cache


def test_what_is_no_model_is_named() -> None:
    with pytest.raises(TreadleError, match=r"compile: the model is a dict; accepted: the path of an \.onnx file, an"):
        treadle.compile({})  # pyright: ignore[reportArgumentType]


def test_a_crash_in_a_pass_names_it(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(GraphInlinePass, "apply", crash)
    with pytest.raises(ZeroDivisionError, match="a bug") as caught:
        treadle.compile(model_path)
    assert caught.value.__notes__ == ["in pass 'graph-inline' of stage 'define'"]
