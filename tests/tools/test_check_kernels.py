"""`treadle check --kernels`: which kernel each group gets, and why not a better one."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from treadle.tools.treadle_cli import main


def product(path: Path, m: int, k: int, n: int, type: int = TensorProto.FLOAT16) -> str:
    """A model of one product and its activation."""
    a, b, c = (
        helper.make_tensor_value_info(name, type, shape)
        for name, shape in (("a", [m, k]), ("b", [k, n]), ("c", [m, n]))
    )
    nodes = [helper.make_node("MatMul", ["a", "b"], ["p"], name="product"), helper.make_node("Relu", ["p"], ["c"])]
    onnx.save(
        helper.make_model(
            helper.make_graph(nodes, "g", [a, b], [c]), opset_imports=[helper.make_opsetid("", 20)], ir_version=10
        ),
        path,
    )
    return str(path)


CASES = {
    "large": ((4096, 4096, 4096), "sm_90a", "matmul_wgmma", ""),
    "rows of 4100 bytes": ((2048, 2050, 2048), "sm_90a", "matmul_mma", "no multiples of 16 bytes"),
    "few tiles": ((128, 768, 3072), "sm_90a", "matmul_cluster", "its tiles are too few for 132 multiprocessors"),
    "fewer operations": (
        (64, 64, 256),
        "sm_90a",
        "matmul_mma",
        "matmul_cluster: products of warps are predicted to end earlier",
    ),
    "sm_90": ((4096, 4096, 4096), "sm_90", "matmul_mma", "sm_90 has no products of warpgroups"),
    "sm_80": ((4096, 4096, 4096), "sm_80", "matmul_mma", ""),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    extents, target, template, why = CASES[name]
    assert main(["check", product(tmp_path / "m.onnx", *extents), "--target", target, "--kernels"]) == 0
    printed = capsys.readouterr().out
    (row,) = [line for line in printed.splitlines() if line.strip().startswith("matmul_relu")]
    assert template in row.split() and why in row and ("matmul_wgmma:" in row) == bool(why)


def test_products_of_f32_say_what_tensor_cores_would_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    path = product(tmp_path / "m.onnx", 256, 256, 256, TensorProto.FLOAT)
    assert main(["check", path, "--target", "sm_80", "--kernels"]) == 0
    assert "matmul_mma: its operands are f32: --precision f16 or tf32" in capsys.readouterr().out
    assert main(["check", path, "--target", "sm_80", "--kernels", "--precision", "f16"]) == 0
    assert "matmul_mma:" not in capsys.readouterr().out
