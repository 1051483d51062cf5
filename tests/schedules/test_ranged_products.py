"""Products of batches whose rows and columns are ranges: every access is proved, and values are right."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from onnx import ModelProto, TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array

import treadle
from treadle.dialects.graph import MatmulOp
from treadle.frontends.onnx import import_model
from treadle.ir import lower
from treadle.shapes.dim import Dim
from treadle.target import Target

WIDE = "avx2{vector_bytes=64 vector_registers=32}"
"""The schedules of AVX-512, for processors that may lack it."""
TARGETS = ("avx512", "avx2", "sse2", "sm_80")
PAIRS = (*(("avx512", bounds) for bounds in ((64, 64), (100, 32), (32, 512))), *((t, (64, 100)) for t in TARGETS[1:]))


def _model(batch: int, terms: int, columns: str) -> ModelProto:
    """`y[batch, m, columns] = x[batch, m, terms] @ w[batch, terms, columns]`, where columns may be `m`, too."""
    x, w = (
        make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (batch, "m", terms)), ("w", (batch, terms, columns)))
    )
    y = make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = make_graph([make_node("MatMul", ["x", "w"], ["y"])], "g", [x, w], [y])
    return make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8)


def _ranges(rows: int, columns: int) -> dict[str, Dim]:
    return {"m": Dim("m", 1, rows), "n": Dim("n", 1, columns)}


@pytest.mark.parametrize(("target", "bounds"), PAIRS)
def test_bounds_are_proved(target: str, bounds: tuple[int, int]) -> None:
    module = import_model(_model(4, 8, "n").SerializeToString(), _ranges(*bounds))
    lower(module, target)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("batch", "terms"), list(product((2, 4, 12), (8, 64))))
def test_bounds_are_proved_for_every_pair(batch: int, terms: int, target: str) -> None:
    for rows, columns in product((32, 64, 100, 128, 512), repeat=2):
        lower(import_model(_model(batch, terms, "n").SerializeToString(), _ranges(rows, columns)), target)


@pytest.mark.parametrize(("columns", "bounds"), [("n", (64, 100)), ("m", (64, 64))])
def test_values(columns: str, bounds: tuple[int, int]) -> None:
    """At the corners of the ranges and at odd points."""
    rows, last = bounds
    ranges = {name: dim for name, dim in _ranges(*bounds).items() if name in {"m", columns}}
    with treadle.compile(_model(4, 8, columns), Target.parse(WIDE), ranges) as model:
        for m, n in ((1, 1), (rows, last), (1, last), (rows, 1), (17, 31), (rows - 1, last - 1)):
            rng = np.random.default_rng(m + 1000 * n)
            x = rng.standard_normal((4, m, 8)).astype(np.float32)
            w = rng.standard_normal((4, 8, m if columns == "m" else n)).astype(np.float32)
            (found,) = model(x, w)
            np.testing.assert_allclose(found, x.astype(np.float64) @ w, rtol=1e-5, atol=1e-5, err_msg=f"{m}, {n}")


@pytest.mark.parametrize(("batch", "target"), [(16, "avx2"), ("n", "avx2"), (16, "sm_80"), ("n", "sm_80")])
def test_rows_of_a_batch_are_one_dimension(batch: int | str, target: str) -> None:
    """DietCode's dense layer: one product of 16 T rows, whether the batch is a number or a symbol."""
    x = make_tensor_value_info("x", TensorProto.FLOAT, (batch, "m", 64))
    w = from_array(np.ones((64, 96), np.float32), "w")
    y = make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = make_graph([make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [w])
    model = make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8)
    ranges = {"m": Dim("m", 1, 128)} | ({"n": Dim("n", 1, 16)} if batch == "n" else {})
    module = import_model(model.SerializeToString(), ranges)
    lower(module, target, to="fuse")
    (product,) = [op for op in module.walk() if isinstance(op, MatmulOp)]
    assert tuple(product.shape) == (16 * 128, 96)
