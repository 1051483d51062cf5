"""Generic text, which MLIR's own tools read: `--emit mlir`, what is written for them, and mlir-opt if it is there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tests.helpers.mlir_collector import is_ir_test
from tests.helpers.onnx_models import linear_model, save_model, value
from tests.test_states import decoder
from treadle import ir
from treadle.compiler.pipeline import STAGE_NAMES
from treadle.dialects.location import LocatedParser
from treadle.errors import TreadleError
from treadle.tools import treadle_opt
from treadle.tools.treadle_cli import main

TESTS = Path(__file__).parents[1]
MLIR_OPT = next(filter(None, map(shutil.which, ("mlir-opt", *(f"mlir-opt-{n}" for n in range(30, 18, -1))))), None)
"""MLIR's tool, also by the name that Debian gives it; versions before 19 are not tried."""
needs_mlir_opt = pytest.mark.skipif(MLIR_OPT is None, reason="mlir-opt is not on PATH: apt-get install mlir-22-tools")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))


# What is written otherwise than in our own form.

WRITTEN = {
    "a space": (
        "loop.alloc : memref<4xf32, #loop.space<register>>",
        "memref<4xf32, {space = #loop.space<register>}>",
    ),
    "a layout and a space": (
        "loop.alloc : memref<8x32xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>>",
        "memref<8x32xf16, {layout = #loop.swizzle<8, 2, 4>, space = #loop.space<shared>}>",
    ),
    "elements of ours": (
        "loop.alloc : memref<4x!hopper.mbarrier, #loop.space<shared>>",
        "memref<4xi64, {element = !hopper.mbarrier, space = #loop.space<shared>}>",
    ),
    "MLIR's own layout beside a space of ours": (
        '"test.op"() : () -> memref<8xf16, strided<[2]>, #loop.space<shared>>',
        "memref<8xf16, strided<[2]>, {space = #loop.space<shared>}>",
    ),
    "MLIR's own space": ('"test.op"() : () -> memref<8xf16, 1 : i64>', "memref<8xf16, 1 : i64>"),
    "a required region": (
        '"test.op"() {r = #graph.required<d0 floordiv 4 < 0>} : () -> i1',
        "#graph.required<d0 floordiv 4 lt 0>",
    ),
    "a tree": (
        '"test.op"() {r = #schedule.tree<e0 <= 16 ? 0 : (e1 <= 4 ? 1 : 2)>} : () -> i1',
        "#schedule.tree<e0 le 16 ? 0 : (e1 le 4 ? 1 : 2)>",
    ),
    "a count": ('"test.op"() {r = #loop.count<36893488147419103232>} : () -> i1', "#loop.count<36893488147419103232>"),
    "arithmetic without a sign": (
        '"test.op"() : () -> ui8\n%y = arith.extui %x : ui8 to i32',
        '"unsigned.arith.extui"(%x)',
    ),
    "arithmetic of vectors": ("arith.constant dense<3> : vector<4xui8>", '"unsigned.arith.constant"()'),
    "arithmetic that MLIR has": ("arith.constant 3 : i8", ' "arith.constant"()'),
}


@pytest.mark.parametrize("ours, generic", WRITTEN.values(), ids=WRITTEN)
def test_generic_text_is_read_back(ours: str, generic: str) -> None:
    context = ir.context()
    context.allow_unregistered = True
    module = LocatedParser(context, f"%x = {ours}", "text").parse_module()
    text = ir.print_text(module, generic=True)
    assert generic in text
    again = LocatedParser(context, text, "text").parse_module()
    again.verify()
    assert ir.print_text(again) == ir.print_text(module)


def test_counts_are_read_as_earlier_versions_wrote_them() -> None:
    kernel = "loop.func @f(%A: memref<4xf32>) grid(%b in 1) threads(%t in 1) operations 7 {\n}"
    generic = ir.print_text(ir.parse(kernel), generic=True)
    earlier = ir.parse(generic.replace("#loop.count<7>", "#builtin.int<7>"))
    assert "#loop.count<7>" in generic
    assert ir.print_text(earlier) == ir.print_text(ir.parse(kernel))


def test_a_layout_that_is_none_is_rejected() -> None:
    text = "%x = loop.alloc : memref<8xf16, {layout = #loop.space<shared>}>"
    with pytest.raises(TreadleError, match="expected one such as"):
        ir.parse(text)


# The command line.


@pytest.mark.parametrize("target", ["avx2", "sm_80"])
def test_each_stage_is_read_back(target: str, tmp_path: Path) -> None:
    """Resumed from the generic text of a stage, the passes arrive at the same text as without a stop."""
    model, last = str(linear_model(tmp_path / "m.onnx")), tmp_path / "last" / "lower.mlir"
    assert main(["compile", model, "--target", target, "--to", "lower", "-o", str(last.parent)]) == 0
    for stage in ("schedule", "kernels", "loops"):
        folder = tmp_path / stage
        assert main(["compile", model, "--target", target, "--emit", "mlir", "--to", stage, "-o", str(folder)]) == 0
        file = folder / f"{stage}.mlir"
        assert file.read_text().startswith('"builtin.module"()')
        resumed = ["compile", str(file), "--from", stage, "--target", target, "--to", "lower"]
        assert main([*resumed, "-o", str(tmp_path / "resumed")]) == 0
        assert (tmp_path / "resumed" / "lower.mlir").read_text() == last.read_text()


def test_without_a_stage_it_is_the_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(linear_model(tmp_path / "m.onnx"))
    assert main(["compile", model, "--emit", "mlir", "-o", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.endswith("lower.mlir: the IR after stage lower\n")
    assert main(["compile", model, "--emit", "mlir", "-o", "-"]) == 0
    assert capsys.readouterr().out == (tmp_path / "out" / "lower.mlir").read_text()
    assert treadle_opt.main([model, "--to", "lower", "--print-op-generic"]) == 0
    assert capsys.readouterr().out.count("#loop.count") == (tmp_path / "out" / "lower.mlir").read_text().count(
        "#loop.count"
    )


def test_a_stage_of_a_library_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(linear_model(tmp_path / "m.onnx"))
    assert main(["compile", model, "--emit", "c-library", "--to", "plan", "-o", str(tmp_path / "out")]) == 2
    assert "--to writes IR, --emit c-library code; accepted: one of them, or --emit mlir" in capsys.readouterr().err


# MLIR's own parser and verifiers.


def read_by_mlir(text: str) -> str:
    """What mlir-opt prints of a text; the test fails if it rejects it."""
    assert MLIR_OPT is not None
    command = [MLIR_OPT, "--allow-unregistered-dialect"]
    found = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


def convolutions(path: Path) -> Path:
    """A convolution, a product and a softmax."""
    random = np.random.default_rng(0)
    shapes = {"w": (8, 3, 3, 3), "b": (8,), "v": (8, 10), "c": (10,)}
    weights = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["conv"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("GlobalAveragePool", ["relu"], ["pool"]),
        helper.make_node("Flatten", ["pool"], ["flat"]),
        helper.make_node("Gemm", ["flat", "v", "c"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"], axis=-1),
    ]
    initialisers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    return save_model(path, nodes, [value("x", (1, 3, 16, 16))], [value("y", (1, 10))], initialisers)


def quantised(path: Path) -> Path:
    """Bytes without a sign, as quantised models have them."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["bytes"]),
        helper.make_node("DequantizeLinear", ["bytes", "scale", "zero"], ["y"]),
    ]
    zero = numpy_helper.from_array(np.array(128, np.uint8), "zero")
    scale = numpy_helper.from_array(np.array(0.1, np.float32), "scale")
    return save_model(path, nodes, [value("x", (4, 64))], [value("y", (4, 64))], [scale, zero])


def keeping(path: Path) -> Path:
    """A decoder with a range of lengths, whose past is a state."""
    path.write_bytes(decoder().SerializeToString())
    return path


MODELS: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    "convolutions": (convolutions, []),
    "a product in f16": (linear_model, ["--precision", "f16"]),
    "quantised": (quantised, []),
    "a range": (lambda path: linear_model(path, rows="n"), ["--shape", "n=1..300"]),
    "states": (keeping, ["--shape", "s=1..6", "--shape", "p=0..20", "--states", "pk=nk", "--states", "pv=nv"]),
}


def large(path: Path) -> Path:
    """A product large enough for warpgroups."""
    return save_model(
        path,
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [value("x", (2048, 128)), value("w", (128, 2048))],
        [value("y", (2048, 2048))],
    )


@pytest.mark.slow
@needs_mlir_opt
@pytest.mark.parametrize("target", ["avx2", "avx512", "sm_80"])
@pytest.mark.parametrize("name", MODELS)
def test_mlir_reads_each_stage(name: str, target: str, tmp_path: Path) -> None:
    model, options = MODELS[name]
    check_stages(model(tmp_path / "m.onnx"), target, options, tmp_path / "out")


@pytest.mark.slow
@needs_mlir_opt
def test_mlir_reads_kernels_of_warpgroups(tmp_path: Path) -> None:
    check_stages(large(tmp_path / "m.onnx"), "sm_90a", ["--precision", "f16"], tmp_path / "out")
    assert "!hopper.mbarrier" in (tmp_path / "out" / "lower.mlir").read_text()


def check_stages(model: Path, target: str, options: Sequence[str], output: Path) -> None:
    """mlir-opt gives back what it reads, after every stage."""
    path = str(model)
    for stage in STAGE_NAMES:
        arguments = ["compile", path, "--target", target, *options, "--emit", "mlir", "--to", stage]
        assert main([*arguments, "-o", str(output)]) == 0
        text = (output / f"{stage}.mlir").read_text()
        assert ir.parse(read_by_mlir(text)).is_structurally_equivalent(ir.parse(text))


@pytest.mark.slow
@needs_mlir_opt
def test_mlir_reads_the_ir_of_all_tests() -> None:
    """Every operation and attribute has a test of IR; what is read back from mlir-opt is what was written."""
    read = 0
    for path in filter(is_ir_test, sorted(TESTS.rglob("*.mlir"))):
        try:
            module = ir.parse(path.read_text(), str(path))
        except TreadleError:  # what the test wants to be rejected, or of a dialect that is not ours
            continue
        again = ir.parse(read_by_mlir(ir.print_text(module, generic=True)), str(path))
        assert again.is_structurally_equivalent(module), path
        read += 1
    assert read > 100
