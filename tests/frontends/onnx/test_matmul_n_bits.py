"""MatMulNBits of real shapes: weights stay in few bits, and every target computes what ONNX Runtime does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array

import treadle

RANDOM = np.random.default_rng(4)


def model(rows: int, terms: int, columns: int, bits: int, block: int, zeros: bool) -> ModelProto:
    blocks = -(-terms // block)
    arrays: dict[str, np.ndarray] = {
        "b": RANDOM.integers(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8),
        "s": RANDOM.uniform(0.001, 0.02, (columns, blocks)).astype(np.float32),
    }
    if zeros:
        arrays["z"] = RANDOM.integers(0, 256, (columns, -(-blocks * bits // 8))).astype(np.uint8)
    attributes: dict[str, Any] = {"K": terms, "N": columns, "bits": bits, "block_size": block}
    node = make_node("MatMulNBits", ["x", *arrays], ["y"], domain="com.microsoft", **attributes)
    constants = [from_array(array, name) for name, array in arrays.items()]
    x = make_tensor_value_info("x", TensorProto.FLOAT, [rows, terms])
    graph = make_graph([node], "g", [x], [ValueInfoProto(name="y")], constants)
    domains = [make_opsetid("", 18), make_opsetid("com.microsoft", 1)]
    return make_model(graph, opset_imports=domains, ir_version=9)


SHAPES = [(1, 256, 200), (3, 130, 70), (40, 192, 128)]


@pytest.mark.parametrize("target", ["cpu", "avx2", "sse2"])
@pytest.mark.parametrize(("bits", "zeros"), [(2, False), (4, False), (4, True), (8, True)])
def test_products_agree(bits: int, zeros: bool, target: str) -> None:
    for rows, terms, columns in SHAPES:
        onnx = model(rows, terms, columns, bits, 32, zeros)
        x = RANDOM.uniform(-1, 1, (rows, terms)).astype(np.float32)
        (found,) = onnxruntime.InferenceSession(onnx.SerializeToString()).run(None, {"x": x})
        wanted = np.asarray(found)
        with treadle.compile(onnx, target, threads=2) as compiled:
            (got,) = compiled(x)
        limit = terms * np.finfo(np.float32).eps * np.abs(wanted).max()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=limit)


def test_weights_of_4_bits_take_half_a_byte(tmp_path: Path) -> None:
    """And a scale of 4 bytes each block."""
    with treadle.compile(model(1, 512, 256, 4, 32, zeros=False)) as compiled:
        compiled.save(tmp_path / "product.treadle")
    sizes = [file.stat().st_size for file in (tmp_path / "product.treadle" / "weights").iterdir()]
    assert sum(sizes) <= 512 * 256 * (0.5 + 4 / 32) + 4096
