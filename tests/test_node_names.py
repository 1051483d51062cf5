"""The nodes of an ONNX model in what is printed of it: in IR, C and CUDA, straight and resumed from saved text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import treadle
from tests.helpers.onnx_models import save_model, value
from tests.helpers.sampling import every
from treadle.compiler.pipeline import STAGE_NAMES
from treadle.tools.treadle_opt import main

PRINTED = {"cpu": "c", "sm_80": "cuda"}
NODES = (
    "Conv '/c/Conv', BatchNormalization '/bn', Relu '/relu'",
    "Conv '/d/Conv', Relu '/last'",
    "ReduceMean '/pool'",
    "Gemm '/fc'",
)
X = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)


def drawn(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def network(path: Path, names: Sequence[str] = ("/c/Conv", "/bn", "/relu", "/d/Conv", "/last", "/pool", "/fc")) -> Path:
    """Two convolutions, the first normalised, a mean and a product."""
    ones = np.ones(4, np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "s", "b", "b", "s"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["d"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("ReduceMean", ["e"], ["m"], axes=[2, 3], keepdims=0),
        helper.make_node("Gemm", ["m", "f", "g"], ["y"]),
    ]
    for node, name in zip(nodes, names, strict=True):
        node.name = name
    arrays = {"w": drawn(4, 3, 3, 3), "v": drawn(4, 4, 3, 3), "f": drawn(4, 5), "g": drawn(5), "s": ones, "b": ones}
    initialisers: list[onnx.TensorProto] = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    return save_model(path, nodes, [value("x", X.shape)], [value("y", (1, 5))], initialisers)


def printed(arguments: Sequence[str], output: Path, *, verified: bool = False) -> str:
    """What treadle-opt prints; IR is verified after each pass only where `verified` says so, which takes most time."""
    given = [*arguments] if verified else [*arguments, "--disable-verify"]
    assert main([*given, "-o", str(output)]) == 0
    return output.read_text()


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The network's kernels for each target, printed without a stop."""
    folder = tmp_path_factory.mktemp("straight")
    path = str(network(folder / "m.onnx"))
    return {
        target: printed([path, "--pipeline", target, "-t", form], folder / form, verified=True)
        for target, form in PRINTED.items()
    }


@pytest.mark.parametrize("target", PRINTED)
def test_kernels_say_which_nodes_they_compute(target: str, straight: dict[str, str]) -> None:
    text = straight[target]
    for nodes in NODES:
        assert nodes in text, nodes
    comments = [line for line in text.splitlines() if line.lstrip().startswith(("//", "/*"))]
    assert max(map(len, comments)) < 700


@pytest.mark.parametrize("stage", every(3, STAGE_NAMES))
def test_saved_text_keeps_them(stage: str, straight: dict[str, str], tmp_path: Path) -> None:
    model = str(network(tmp_path / "m.onnx"))
    printed([model, "--to", stage], tmp_path / "s.mlir")
    resumed = printed([str(tmp_path / "s.mlir"), "--from", stage, "-t", "c"], tmp_path / "again.c")
    assert resumed == straight["cpu"]


def test_weights_of_a_constant_node_are_resumed_alike(tmp_path: Path) -> None:
    """Text keeps no location of a constant: what packs its values does not name its node."""
    constant = helper.make_node("Constant", [], ["w"], name="weights", value=numpy_helper.from_array(drawn(8, 40), "w"))
    nodes = [constant, helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
    path = save_model(tmp_path / "m.onnx", nodes, [value("x", (4, 8))], [value("y", (4, 40))])
    straight = printed([str(path), "--to", "graph"], tmp_path / "graph.mlir")
    printed([str(path), "--to", "import"], tmp_path / "import.mlir")
    assert printed([str(tmp_path / "import.mlir"), "--from", "import", "--to", "graph"], tmp_path / "g") == straight
    assert "weights" not in straight and straight.count('"product"("MatMul")') == 1


def test_names_cannot_leave_their_comment(tmp_path: Path) -> None:
    hostile = ("*/ int x; /*", "\\", "a\nb", "é??/", "// x", '"', "")
    path = network(tmp_path / "m.onnx", hostile)
    for target in PRINTED:
        text = printed([str(path), "--pipeline", target, "-t", PRINTED[target]], tmp_path / "k")
        assert "* / int x; / *" in text and "Conv 'd'" not in text
    named = network(tmp_path / "n.onnx")
    np.testing.assert_array_equal(treadle.compile(path)(X)[0], treadle.compile(named)(X)[0])


def test_a_kernel_of_several_launches_names_the_nodes_of_all(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", [a, "w"], [b], name=f"by_{b}") for a, b in (("x", "h"), ("h", "y"))]
    weights = numpy_helper.from_array(drawn(8, 8), "w")
    path = save_model(tmp_path / "m.onnx", nodes, [value("x", (4, 8))], [value("y", (4, 8))], [weights])
    for target in PRINTED:
        text = printed([str(path), "--pipeline", target, "-t", PRINTED[target]], tmp_path / "k")
        assert text.count("MatMul 'by_h', MatMul 'by_y'") == 1


def test_other_names_make_another_artifact_of_the_same_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An artifact shows its own model's names; the compilers' caches do not read comments."""
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))

    def cached(kind: str) -> set[Path]:
        return set((tmp_path / "cache").rglob(f"*{kind}"))

    for target, kind in (("cpu", ".o"), ("sm_80", ".cubin")):
        if target == "sm_80":
            pytest.importorskip("cuda.bindings.nvrtc", reason="needs NVRTC")
        first = treadle.compile(network(tmp_path / "m.onnx"), target)
        objects = {path for path in cached(kind) if "kernels" not in path.parts}
        other = treadle.compile(network(tmp_path / "n.onnx", [f"other_{i}" for i in range(7)]), target)
        assert other.folder != first.folder
        texts = "".join(path.read_text() for path in (other.folder / "kernels").glob("*.c*") if path.suffix != ".cubin")
        assert "Conv 'other_0'" in texts and "/c/Conv" not in texts
        new = {path for path in cached(kind) if "kernels" not in path.parts} - objects
        assert len(new) <= (target == "cpu"), "the host program's alone"
        assert treadle.compile(network(tmp_path / "m.onnx"), target).folder == first.folder
