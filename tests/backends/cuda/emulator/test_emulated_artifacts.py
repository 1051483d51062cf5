"""Compiled models on the emulator: called, saved, loaded and run from the command line."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import treadle
from tests.backends.cuda.gpu_graphs import CASES
from tests.helpers.emulator_cache import cache_with_emulator
from tests.helpers.graphs import Array, Graph, random
from tests.helpers.onnx_models import WEIGHTS, linear_model, save_model, value
from treadle.artifact.artifact import Artifact, file_digest
from treadle.artifact.manifest import KernelLaunch
from treadle.backends.cuda import compiler
from treadle.backends.cuda.emulator import CHECKS, Finding
from treadle.backends.cuda.open_artifact import text_of
from treadle.backends.interface import KERNEL_SPECIFIERS, c_definition, kernel_interface
from treadle.backends.reference import evaluate_module
from treadle.dialects.graph import ConvOp, MatmulOp, SoftmaxOp, TransposeOp
from treadle.errors import TreadleError, TreadleWarning
from treadle.target.tensor_map import PixelBox
from treadle.tools.treadle_cli import main

X = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
Y = np.maximum(X @ WEIGHTS, 0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return linear_model(tmp_path / "m.onnx")


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    treadle.compile(model, "sm_80").save(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.parametrize(("target", "name"), [("cuda", "sm_80"), ("sm_90", "sm_90")])
def test_a_compiled_model_runs_again_and_again(target: str, name: str, model: Path) -> None:
    compiled = treadle.compile(model, target, device="emulator")
    assert compiled.target == name and compiled.reports == ()
    for factor in (1, 2):
        np.testing.assert_allclose(compiled(X * factor)[0], Y * factor, rtol=1e-5, atol=1e-6)
    assert [report.checks for report in compiled.reports] == [()] * len(compiled.manifest.launches)
    compiled.close()
    np.testing.assert_allclose(compiled(X)[0], Y, rtol=1e-5, atol=1e-6)


@pytest.fixture
def without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which NVRTC is not installed."""
    cached = (compiler._nvrtc, compiler.nvrtc_version)  # pyright: ignore[reportPrivateUsage]
    for function in cached:
        function.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    yield
    for function in cached:
        function.cache_clear()


@pytest.mark.usefixtures("without_nvrtc")
def test_the_emulator_needs_no_nvrtc(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(cache_with_emulator(tmp_path / "cache")))
    with pytest.warns(
        TreadleWarning, match=r"NVRTC.* is not installed.*without cubins.*; pip install 'treadle\[nvrtc\]'"
    ):
        treadle.compile(model, "sm_80").save(tmp_path / "text")
    assert [path.suffix for path in (tmp_path / "text" / "kernels").glob("*.c*")] == [".cu"]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["compile", str(model), "--target", "sm_80", "-o", str(tmp_path / "again")]) == 0
    printed = capsys.readouterr()
    assert printed.out.endswith("MB\n") and printed.err.startswith("treadle: warning: NVRTC, the compiler of CUDA text")
    assert main(["run", str(model), "--device", "emulator", "--sanitize"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "findings: 0; launches: 1; kernels: 1"
    treadle.compile(model, "sm_80", device="emulator").save(tmp_path / "saved")
    assert not list((tmp_path / "saved").rglob("*.cubin"))
    np.testing.assert_allclose(treadle.load(tmp_path / "saved", device="emulator")(X)[0], Y, rtol=1e-5, atol=1e-6)
    with pytest.raises(TreadleError, match=r"CUDA text but no cubins; accepted: treadle\.load\(folder, rebuild=True\)"):
        treadle.load(tmp_path / "saved")(X)


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", CASES)
def test_an_artifact_computes_what_its_graph_says(name: str, target: str, tmp_path: Path) -> None:
    graph = Graph(random(*CASES[name].large))
    module = graph.module(CASES[name].build(graph))
    (expected,) = evaluate_module(module, graph.inputs)
    treadle.compile(module, target).save(tmp_path / "saved")
    loaded = treadle.load(tmp_path / "saved", device="emulator", checks=tuple(CHECKS))
    (actual,) = loaded(*graph.inputs)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5 * float(np.abs(expected).max()))
    assert not [str(report) for report in loaded.reports if report.findings]
    buffers = [buffer for launch in loaded.manifest.launches for buffer in launch.buffers]
    # Temporaries lie as allocations do, so that vectors of every width are aligned.
    assert all(offset % 256 == 0 for kind, offset in buffers if kind == "arena")


@pytest.fixture
def convolution(tmp_path: Path) -> tuple[Path, Graph]:
    """A saved convolution by copies of pixels, and its graph."""
    graph = Graph(random(1, 28, 28, 128).astype(np.float16))
    image = graph.add(TransposeOp(graph[0], [0, 3, 1, 2]))
    filters = graph.constant(random(128, 128, 3, 3, seed=1).astype(np.float16) / 32)
    product = graph.add(ConvOp(image, filters, [1, 1], [1] * 4, [1, 1], 1))
    module = graph.module(graph.add(TransposeOp(product, [0, 2, 3, 1])))
    treadle.compile(module, "sm_90a").save(tmp_path / "saved")
    return tmp_path / "saved", graph


def test_an_artifact_knows_the_walk_over_pixels(convolution: tuple[Path, Graph]) -> None:
    folder, graph = convolution
    loaded = treadle.load(folder, device="emulator", checks=tuple(CHECKS))
    (launch,) = loaded.manifest.launches
    assert PixelBox((-1, -1), (-1, -1), (1, 1)) in [each.map.pixels for each in launch.maps]
    (found,) = loaded(*graph.inputs)
    padded = np.pad(graph.inputs[0].astype(np.float64), [(0, 0), (1, 1), (1, 1), (0, 0)])
    filters = (random(128, 128, 3, 3, seed=1).astype(np.float16) / 32).astype(np.float64)
    expected = np.zeros((1, 28, 28, 128))
    for r, s in np.ndindex(3, 3):
        expected += padded[:, r : r + 28, s : s + 28] @ filters[:, :, r, s].T
    # Sums of 1152 terms in f32, rounded to 11 bits.
    np.testing.assert_allclose(found, expected, rtol=2**-10, atol=2**-10)
    assert not [str(report) for report in loaded.reports if report.findings]


@pytest.mark.parametrize(
    ("pixels", "says"),
    [
        ({"lower": [-1], "upper": [-1, -1], "steps": [1, 1]}, "1 and 2 corners and 2 steps"),
        ({"lower": [-1, -1], "upper": [-1, -1], "steps": [1, 0]}, "a step of 0"),
        ({"lower": [-1, "x"], "upper": [-1, -1], "steps": [1, 1]}, r"pixels.lower is 'x'; accepted: a whole number"),
        ({"lower": [-1, -1], "upper": [-1, -1]}, r"pixels.steps is missing"),
        ([1], r"pixels is no object"),
    ],
    ids=str,
)
def test_a_damaged_walk(pixels: object, says: str, convolution: tuple[Path, Graph]) -> None:
    folder, _ = convolution

    def damage(content: dict[str, Any]) -> None:
        (walk,) = (each["map"] for each in content["launches"][0]["maps"] if each["map"]["pixels"])
        walk["pixels"] = pixels

    _edit_manifest(folder, damage)
    with pytest.raises(TreadleError, match=says):
        treadle.load(folder, device="emulator")


def test_what_lies_beyond_extents_is_no_finding(tmp_path: Path) -> None:
    """Tiles of the second product compute values of rows that the first one left out, and nobody needs."""
    wide, back = random(16, 24), random(24, 16)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    ends = [value("x", ("n", 16))], [value("y", ("n", 16))]
    weights = [numpy_helper.from_array(wide, "w"), numpy_helper.from_array(back, "v")]
    model = save_model(tmp_path / "m.onnx", nodes, *ends, weights)
    shapes = {"n": treadle.Dim("n", 1, 120)}
    compiled = treadle.compile(model, "sm_80", device="emulator", checks=tuple(CHECKS), shapes=shapes)
    for rows in (120, 1, 9):
        x = random(rows, 16)
        np.testing.assert_allclose(compiled(x)[0], np.maximum(x @ wide, 0) @ back, rtol=1e-4, atol=1e-4)
        assert len(compiled.reports) == 2
        assert not [str(report) for report in compiled.reports if report.findings]


def test_an_artifact_knows_the_memory_that_has_to_be_zero(tmp_path: Path) -> None:
    graph = Graph(random(*CASES["slices"].large))
    module = graph.module(CASES["slices"].build(graph))
    treadle.compile(module, "sm_80").save(tmp_path / "saved")
    loaded = treadle.load(tmp_path / "saved", device="emulator", checks=tuple(CHECKS))
    kinds = [kind for launch in loaded.manifest.launches for kind, _ in launch.buffers]
    assert loaded.manifest.zeroed_bytes > 0 and "zeroed" in kinds
    first, second = (loaded(*graph.inputs)[0] for _ in range(2))
    assert first.tobytes() == second.tobytes()
    assert not [str(report) for report in loaded.reports if report.findings]


def test_a_kernel_that_leaves_zeroed_memory_otherwise_is_named(tmp_path: Path) -> None:
    graph = Graph(random(*CASES["slices"].large))
    folder = tmp_path / "saved"
    treadle.compile(graph.module(CASES["slices"].build(graph)), "sm_80").save(folder)
    (text,) = (folder / "kernels").glob("*.cu")
    text.write_text(text.read_text().replace("treadle_arrive(&", "atomicAdd(&"))
    _edit_manifest(folder, lambda content: content["files"].update({f"kernels/{text.name}": file_digest(text)}))
    with pytest.raises(TreadleError, match=r"kernel '.*': zeroed memory is not zero after the launch"):
        treadle.load(folder, device="emulator")(*graph.inputs)


def test_a_saved_model_is_checked(folder: Path) -> None:
    loaded = treadle.load(folder, device="emulator", checks=["bounds", "races"])
    np.testing.assert_allclose(loaded(X)[0], Y, rtol=1e-5, atol=1e-6)
    assert [(report.checks, report.findings) for report in loaded.reports] == [(("bounds", "races"), ())]


def test_a_temporary_ends_where_its_kernels_say(tmp_path: Path) -> None:
    graph = Graph(random(40, 33))
    module = graph.module(graph.add(SoftmaxOp(graph.add(MatmulOp(graph[0], graph.constant(random(33, 20)))), 1)))
    folder = tmp_path / "saved"
    treadle.compile(module, "sm_80").save(folder)
    assert _findings(folder, graph.inputs) == []
    with pytest.raises(TreadleError, match="the manifest does not fit the text of kernel '"):
        _findings(_copy(folder, tmp_path / "manifest", _shrink_temporaries), graph.inputs)
    before = Artifact(folder).manifest.launches
    _edit_manifest(folder, _shrink_temporaries)
    for old, new in zip(before, Artifact(folder).manifest.launches, strict=True):
        text = folder / text_of(old.image)
        text.write_text(text.read_text().replace(_described(old), _described(new)))
        _edit_manifest(folder, lambda m, text=text: m["files"].update({f"kernels/{text.name}": file_digest(text)}))
    assert {finding.kind for finding in _findings(folder, graph.inputs)} == {"bounds"}


def test_what_the_emulator_does_not_run(model: Path, folder: Path) -> None:
    with pytest.raises(TreadleError, match="does not run what is compiled for cpu; accepted: a target whose kernels"):
        treadle.compile(model, device="emulator")
    with pytest.raises(TreadleError, match="unknown device 'gpu'; accepted: emulator"):
        treadle.load(folder, device="gpu")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TreadleError, match="checks without the emulator"):
        treadle.load(folder, checks=["races"])
    with pytest.raises(TreadleError, match="unknown check 'speed'; accepted: races"):
        treadle.load(folder, device="emulator", checks=["speed"])(X)


def test_a_manifest_without_the_arguments_types(folder: Path) -> None:
    _edit_manifest(folder, lambda content: content["launches"][0].pop("types"))
    with pytest.raises(
        TreadleError, match=r"saved/manifest.json: .* damaged: launches\[0\].types is missing; accepted:"
    ):
        treadle.load(folder, device="emulator")


def test_run_and_check(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    assert main(["run", str(model), "--target", "cuda", "--device", "emulator", "--check"]) == 0
    text = capsys.readouterr().out
    assert "ms (on the emulator)" in text and ": agrees" in text


@pytest.mark.parametrize("target", [[], ["--target", "sm_86"]])
def test_run_and_sanitize(target: list[str], model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(model), *target, "--device", "emulator", "--sanitize"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "findings: 0; launches: 1; kernels: 1"


def test_the_sanitizer_finds_a_missing_barrier(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = folder.glob("kernels/*.cu")
    text.write_text(text.read_text().replace("treadle_barrier();", ""))
    _edit_manifest(folder, lambda content: content["files"].update({f"kernels/{text.name}": file_digest(text)}))
    assert main(["run", str(folder), "--device", "emulator", "--sanitize"]) == 1
    _, _, *findings, last = capsys.readouterr().out.splitlines()
    assert any(finding.startswith(f"race {text.stem}:") for finding in findings)
    assert last == f"findings: {len(findings)}; launches: 1; kernels: 1"


ENDLESS = (('extern "C"', '__device__ volatile int go = 1;\nextern "C"'), (") {\n", ") {\n  while (go) {}\n"))


@pytest.mark.parametrize("checks", [(), tuple(CHECKS)], ids=["fast", "checked"])
def test_a_model_that_never_ends_is_stopped(
    checks: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (text,) = folder.glob("kernels/*.cu")
    endless = text.read_text()
    for old, new in ENDLESS:
        assert old in endless
        endless = endless.replace(old, new, 1)
    text.write_text(endless)
    _edit_manifest(folder, lambda content: content["files"].update({f"kernels/{text.name}": file_digest(text)}))
    with pytest.raises(TreadleError, match=rf"kernel '{text.stem}': stopped after 0\.2 s; in block 0: "):
        treadle.load(folder, device="emulator", checks=checks, limit=0.2)(X)
    sanitize = ["--sanitize"] if checks else []
    assert main(["run", str(folder), "--device", "emulator", "--limit", "0.2", *sanitize]) == 2
    assert "stopped after 0.2 s" in capsys.readouterr().err


def test_a_limit_that_suffices(model: Path) -> None:
    compiled = treadle.compile(model, "sm_80", device="emulator", limit=50)
    np.testing.assert_allclose(compiled(X)[0], Y, rtol=1e-5, atol=1e-6)


def test_a_limit_of_the_hardware(model: Path) -> None:
    with pytest.raises(TreadleError, match="device: a time limit without the emulator; accepted: emulator"):
        treadle.compile(model, limit=3)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--limit", "3"], "--device: --limit needs the emulator; accepted: emulator"),
        (["--device", "emulator", "--limit", "0"], "--limit: a limit of 0.0; accepted: seconds, more than 0"),
        (["--device", "emulator", "--limit", "nan"], "--limit: a limit of nan; accepted: seconds, more than 0"),
        (["--device", "emulator", "--limit", "soon"], "invalid float value: 'soon'"),
        (["--sanitize"], "--device: --sanitize needs the emulator; accepted: emulator"),
        (["--target", "cpu", "--device", "emulator"], "the emulator does not run what is compiled for cpu"),
        (["--device", "abacus"], "invalid choice: 'abacus'"),
    ],
)
def test_options_that_do_not_fit(
    options: list[str], complaint: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(model), *options]) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err and captured.err.count("\n") == 1 and captured.out == ""


def _findings(folder: Path, inputs: Sequence[Array]) -> list[Finding]:
    model = treadle.load(folder, device="emulator", checks=tuple(CHECKS))
    model(*inputs)
    return [finding for report in model.reports for finding in report.findings]


@pytest.mark.parametrize(
    "edit",
    [
        lambda launch: launch["types"][0].__setitem__(1, 1),
        lambda launch: launch.update(grid=[9, 1, 1]),
        lambda launch: launch.update(dynamic_shared=4),
    ],
)
def test_a_manifest_that_contradicts_the_text_is_refused(
    edit: Callable[[dict[str, Any]], object], folder: Path, tmp_path: Path
) -> None:
    """The emulator runs what the text computes on buffers of the manifest's sizes."""
    edited = _copy(folder, tmp_path / "edited", lambda content: edit(content["launches"][0]))
    with pytest.raises(TreadleError, match=r"\.cu: the manifest does not fit the text of kernel '.*': .*unchanged"):
        treadle.load(edited, device="emulator")(X)


def _copy(folder: Path, to: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    shutil.copytree(folder, to)
    _edit_manifest(to, edit)
    return to


def _described(launch: KernelLaunch) -> str:
    return c_definition(kernel_interface(launch), KERNEL_SPECIFIERS)


def _shrink_temporaries(content: dict[str, Any]) -> None:
    for launch in content["launches"]:
        for buffer, type in zip(launch["buffers"], launch["types"], strict=True):
            type[1] -= buffer[0] == "arena"


def _edit_manifest(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    edit(content)
    (folder / "manifest.json").write_text(json.dumps(content))
