"""Weights that the compiler quantises: as NumPy rounds them, on every target, and what the tools say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array

import treadle
from treadle import ir
from treadle.errors import TreadleError
from treadle.passes.graph.graph_quantize_weights import quantized
from treadle.target.options import WEIGHTS
from treadle.tools.treadle_cli import main
from treadle.tools.treadle_opt import main as opt

KINDS = [kind for kind in WEIGHTS if kind != "float"]
SIZES = [(1, 96, 80), (3, 100, 70), (64, 64, 33), (2, 1056, 1)]
RANDOM = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))


def weights(rows: int, columns: int) -> np.ndarray:
    """Of blocks that differ in size; the first one is of zeros."""
    matrix = RANDOM.standard_normal((rows, columns)) * np.exp(RANDOM.uniform(-3, 3, (rows, 1)))
    matrix[:32] = 0
    return matrix.astype(np.float32)


def model(rows: int, matrix: np.ndarray, transposed: bool = False) -> ModelProto:
    stored = np.ascontiguousarray(matrix.T) if transposed else matrix
    attributes: dict[str, Any] = {"transB": 1} if transposed else {}
    node = make_node("Gemm" if transposed else "MatMul", ["x", "w"], ["y"], **attributes)
    x = make_tensor_value_info("x", TensorProto.FLOAT, [rows, len(matrix)])
    graph = make_graph([node], "product", [x], [ValueInfoProto(name="y")], [from_array(stored, "w")])
    return make_model(graph, opset_imports=[make_opsetid("", 18)], ir_version=9)


def rounded(matrix: np.ndarray, kind: str) -> np.ndarray:
    """The definition, written a column and a block at a time."""
    if kind == "bf16":
        return matrix.astype(ml_dtypes.bfloat16).astype(np.float64)
    result = np.zeros(matrix.shape)
    for column in range(matrix.shape[1]):
        for first in range(0, len(matrix), 32):
            block = matrix[first : first + 32, column]
            largest = max(block, key=abs)
            scale = (
                np.float32(largest) / np.float32(-8) if kind == "int4" else np.float32(abs(largest)) / np.float32(127)
            )
            scale = float(ml_dtypes.bfloat16(scale))
            low, high = (-8, 7) if kind == "int4" else (-127, 127)
            for row, each in enumerate(block, first):
                number = 0 if scale == 0 else min(max(round(float(np.float32(each) / np.float32(scale))), low), high)
                result[row, column] = number * scale
    return result


@pytest.mark.parametrize("block", [1, 7, 32, 200])
@pytest.mark.parametrize(("bits", "limit"), [(4, 1.0), (8, 0.75)])
def test_errors_are_bounded_by_scales(bits: int, limit: float, block: int) -> None:
    """Half a step; of 4 bits a whole one where the sign is not that of the largest element, and of 8 bits a quarter
    more for the largest, as its scale is rounded."""
    matrix = weights(100, 9)
    numbers, scales = quantized(matrix, bits, block)
    assert scales.shape == (-(-100 // block), 9) and scales.dtype == ml_dtypes.bfloat16
    steps = np.repeat(np.abs(scales.astype(np.float32)), block, axis=0)[:100]
    rounded = numbers * np.repeat(scales.astype(np.float32), block, axis=0)[: len(numbers)]
    assert np.all(np.abs(rounded - matrix) <= limit * steps * (1 + 1e-6))


@pytest.mark.parametrize("target", ["cpu", "avx2", "sse2"])
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_rounded_weights(kind: str, target: str) -> None:
    for rows, terms, columns in SIZES if target == "cpu" else SIZES[1:2]:
        matrix, x = weights(terms, columns), RANDOM.uniform(-1, 1, (rows, terms)).astype(np.float32)
        wanted = x.astype(np.float64) @ rounded(matrix, kind)
        with treadle.compile(model(rows, matrix, transposed=rows == 3), target, weights=kind, threads=2) as compiled:
            (got,) = compiled(x)
        limit = np.abs(x).astype(np.float64) @ np.abs(matrix) * terms * 2.0**-24
        assert np.all(np.abs(got - wanted) <= limit + 1e-6)


@pytest.mark.parametrize("kind", ["int4", "bf16"])
def test_gpus_dequantise_in_the_kernel(kind: str) -> None:
    matrix, x = weights(100, 40), RANDOM.uniform(-1, 1, (3, 100)).astype(np.float32)
    with treadle.compile(
        model(3, matrix), "sm_80", weights=kind, device="emulator", checks=("races", "bounds")
    ) as made:
        (got,) = made(x)
        assert not [finding for report in made.reports for finding in report.findings]
        assert sum(tensor.num_bytes for tensor in made.manifest.constants) <= matrix.nbytes // 2
    np.testing.assert_allclose(got, x.astype(np.float64) @ rounded(matrix, kind), rtol=0, atol=1e-3)


def test_weights_of_4_bits_take_at_most_057_bytes(tmp_path: Path) -> None:
    with treadle.compile(model(1, weights(512, 256)), weights="int4") as compiled:
        compiled.save(tmp_path / "product.treadle")
    sizes = [file.stat().st_size for file in (tmp_path / "product.treadle" / "weights").iterdir()]
    assert sum(sizes) <= 512 * 256 * 0.57


def test_the_tools_report_errors_and_compare_with_rounded_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(2, weights(96, 48)), path)
    for kind in KINDS:
        for _ in range(2):  # the second one from the cache
            assert main(["compile", str(path), "--weights", kind, "-o", str(tmp_path / kind)]) == 0
            assert f"weights of 1 products in {kind}: 0.02 MB became 0.0" in capsys.readouterr().out
        assert treadle.load(tmp_path / kind).manifest.weights["kind"] == kind
        assert main(["run", str(path), "--weights", kind, "--check"]) == 0
        printed = capsys.readouterr().out
        assert "agrees" in printed and "from the model with float weights" in printed and "ONNX Runtime: y" in printed
        assert main(["check", str(path), "--weights", kind, "--memory"]) == 0
        assert opt([str(path), "--weights", kind, "--to", "graph", "-o", str(tmp_path / "graph.mlir")]) == 0
        assert f'kind = "{kind}"' in (tmp_path / "graph.mlir").read_text()
    assert main(["bisect", str(path), "--weights", "int4", "-o", str(tmp_path / "bisected")]) == 0
    assert treadle.compile(path).manifest.weights == {}
    assert main(["run", str(tmp_path / "int4"), "--weights", "int4"]) == 2
    assert "--weights needs the model itself" in capsys.readouterr().err


def test_what_cannot_be_quantised_is_named() -> None:
    with pytest.raises(TreadleError, match="unknown weights 'int3'; accepted: float, int4, int8, bf16"):
        treadle.compile(model(1, weights(96, 48)), weights="int3")
    with pytest.raises(TreadleError, match="weights=int4, but no product has a constant matrix of floats to store so"):
        treadle.compile(model(1, weights(96, 8)), weights="int4")
    module = ir.Entry({"x": ir.tensor_type("float32", (1, 4))})
    for options, message in (("block=0", "blocks of 0 rows; accepted: 1 upwards"), ("weights=q4", "weights 'q4'")):
        with pytest.raises(TreadleError, match=message):
            ir.run_passes(module.module({"y": module["x"]}), f"graph-quantize-weights{{{options}}}")
        module = ir.Entry({"x": ir.tensor_type("float32", (1, 4))})


def test_matrices_that_are_not_finite_stay() -> None:
    matrix = weights(96, 48)
    matrix[40, 5] = np.inf
    with pytest.raises(TreadleError, match="no product has"):
        treadle.compile(model(1, matrix), weights="int8")
