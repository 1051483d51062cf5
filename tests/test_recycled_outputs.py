"""Outputs of ranged models that are cut out: their memory is used again, and no caller ever sees that."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from onnx import TensorProto, save_model
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import treadle
from treadle.backends.c.executor import CpuProgram


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[treadle.CompiledModel]:
    """exp(x) and the sum of the first axis, of `n` x `m`."""
    path = tmp_path_factory.mktemp("recycled") / "model.onnx"
    nodes = [
        make_node("Exp", ["x"], ["y"]),
        make_node("ReduceSum", ["y"], ["z"], keepdims=0, noop_with_empty_axes=1),
    ]
    x = make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"])
    outputs = [make_tensor_value_info(name, TensorProto.FLOAT, ["n", "m"]) for name in ("y", "z")]
    graph = make_graph(nodes, "model", [x], outputs)
    save_model(make_model(graph, opset_imports=[make_opsetid("", 18)], ir_version=8), str(path))
    shapes = {"x": (treadle.Dim("n", 1, 64), treadle.Dim("m", 1, 64))}
    with treadle.compile(path, "cpu", shapes, cached=False) as compiled:
        yield compiled


def test_results_of_earlier_calls_stay(model: treadle.CompiledModel) -> None:
    generator, kept = np.random.default_rng(0), list[tuple[np.ndarray, np.ndarray]]()
    for n, m in [(3, 5), (64, 5), (5, 64), (64, 64), (3, 5), (1, 1), (64, 63), (64, 64), (2, 64)]:
        x = generator.standard_normal((n, m)).astype(np.float32)
        kept.append((x, model(x)[0]))
        for given, result in kept:
            assert result.shape == given.shape
            np.testing.assert_allclose(result, np.exp(given), rtol=1e-6)


def test_memory_that_nobody_sees_is_used_again(model: treadle.CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a call that cuts columns, but not of one whose rows lie together: their caller has that memory."""
    found: list[tuple[int, np.ndarray]] = []
    recycle = CpuProgram.recycle
    monkeypatch.setattr(CpuProgram, "recycle", lambda self, n, a: (found.append((n, a)), recycle(self, n, a)))
    model(np.zeros((3, 5), np.float32))
    assert [n for n, _ in found] == [0, 1]
    first = found[0][1]
    model(np.zeros((4, 6), np.float32))
    assert found[2][1] is first
    del found[:]
    results = model(np.zeros((5, 64), np.float32))
    assert not found and all(result.shape == (5, 64) for result in results)
