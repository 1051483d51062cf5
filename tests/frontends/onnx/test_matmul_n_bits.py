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


@pytest.mark.parametrize("unit", ["amx", "vnni_bf16", "none"])
@pytest.mark.parametrize(("bits", "terms", "columns"), [(4, 192, 128), (8, 130, 70)])
def test_products_of_bf16_agree(bits: int, terms: int, columns: int, unit: str) -> None:
    """Calls of few rows, whose products are of f32, and of many, which a core's unit multiplies in tiles: both read the
    same weights, whose operands may be rounded to bf16."""
    onnx = model(40, terms, columns, bits, 32, zeros=True)
    session = onnxruntime.InferenceSession(onnx.SerializeToString())
    x = RANDOM.uniform(-1, 1, (40, terms)).astype(np.float32)
    wanted = np.asarray(session.run(None, {"x": x})[0])
    weights = [np.asarray(session.run(None, {"x": part})[0])[:, :columns] for part in unit_rows(terms)]
    limit = 2.0**-7 * np.abs(x) @ np.abs(np.concatenate(weights)[:terms])
    shapes = {"x": (treadle.Dim("rows", 1, 40), terms)}
    onnx.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    target = f"cpu{{matrix_unit={unit}}}"
    with treadle.compile(onnx, target, shapes=shapes, precision="bf16", threads=2) as compiled:
        for rows in (1, 9, 40):
            (got,) = compiled(x[:rows])
            assert (np.abs(got - wanted[:rows]) <= limit[:rows] + 2.0**-8 * np.abs(wanted[:rows])).all()


def unit_rows(terms: int) -> list[np.ndarray]:
    """Rows of the identity matrix, 40 at a time, with zeros behind: their products are the matrix."""
    padded = np.zeros((-(-terms // 40) * 40, terms), np.float32)
    padded[:terms] = np.eye(terms)
    return np.split(padded, len(padded) // 40)


def test_weights_of_4_bits_take_half_a_byte(tmp_path: Path) -> None:
    """And a scale of 4 bytes each block."""
    with treadle.compile(model(1, 512, 256, 4, 32, zeros=False)) as compiled:
        compiled.save(tmp_path / "product.treadle")
    sizes = [file.stat().st_size for file in (tmp_path / "product.treadle" / "weights").iterdir()]
    assert sum(sizes) <= 512 * 256 * (0.5 + 4 / 32) + 4096
