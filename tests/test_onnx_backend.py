"""ONNX's interface of backends: what compiles when, and that ONNX's runner takes it."""

from __future__ import annotations

import importlib
import unittest
import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper
from onnx.backend.test.runner import Runner

import treadle.onnx_backend as backend
from tests.frontends.onnx.models import model, node
from treadle.errors import TreadleError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def _reshape() -> ModelProto:
    """A reshape to a shape that is computed of an input."""
    nodes = [node("Sub", "s one", "t"), node("Reshape", "x t", "y")]
    proto = model(nodes, {"x": [2, 3]}, weights={"one": np.array(1)})
    proto.graph.input.append(helper.make_tensor_value_info("s", TensorProto.INT64, [2]))
    return proto


def test_values_that_decide_about_shapes_come_with_a_call() -> None:
    prepared = backend.prepare(_reshape())
    for shape in ([3, 2], [6, 1], [3, 2]):
        (y,) = prepared.run([X, np.array(shape) + 1])
        np.testing.assert_array_equal(y, X.reshape(shape))
    assert len(prepared._compiled) == 2


def test_shapes_may_come_with_a_call() -> None:
    prepared = backend.prepare(model([node("Relu", "x", "y")], {"x": ["n", 3]}))
    for rows in (2, 5, 2):
        (y,) = prepared.run(np.full((rows, 3), -1, np.float32))
        np.testing.assert_array_equal(y, np.zeros((rows, 3)))
    assert len(prepared._compiled) == 2


def test_inputs_by_name() -> None:
    proto = model([node("Sub", "a b", "y")], {"a": [2], "b": [2]})
    inputs: dict[str, NDArray[Any]] = {"b": np.ones(2, np.float32), "a": np.zeros(2, np.float32)}
    np.testing.assert_array_equal(backend.run_model(proto, inputs)[0], [-1, -1])
    assert backend.is_compatible(proto)


def test_a_node() -> None:
    (y,) = backend.run_node(node("Reshape", "x s", "y"), [X, np.array([3, 2])])
    np.testing.assert_array_equal(y, X.reshape(3, 2))
    gelu = helper.make_node("QuickGelu", ["x"], ["y"], domain="com.microsoft", alpha=1.0)
    (y,) = backend.run_node(gelu, {"x": X})
    np.testing.assert_allclose(y, X / (1 + np.exp(-X)), rtol=1e-6)
    (y,) = backend.run_node(node("Softmax", "x", "y"), X, opset_version=11)
    np.testing.assert_allclose(y.sum(1), 1, rtol=1e-6)


def test_errors() -> None:
    unsupported = model([node("NonExistent", "x", "y")], {"x": ["n"]})
    assert not backend.is_compatible(unsupported)
    with pytest.raises(TreadleError, match="operator NonExistent is not supported"):
        backend.prepare(unsupported)
    proto = model([node("Relu", "x", "y")], {"x": [2]})
    with pytest.raises(TreadleError, match="unknown device 'NPU'; accepted: CPU, CUDA"):
        backend.prepare(proto, "NPU")
    prepared = backend.prepare(proto)
    with pytest.raises(TreadleError, match="2 inputs are given; accepted: 1 inputs"):
        prepared.run([X[0], X[0]])
    with pytest.raises(TreadleError, match="input 'x' is missing; accepted: x"):
        prepared.run({})
    with pytest.raises(TreadleError, match="input 'z' is unknown; accepted: x"):
        prepared.run({"x": X[0, :2], "z": X})
    with pytest.raises(TreadleError, match="the argument 'y'; accepted: inputs only"):
        prepared.run([X[0, :2]], y=1)
    with pytest.raises(TreadleError, match=r"node '' \(Relu\): 0 inputs are given; accepted: x"):
        backend.run_node(node("Relu", "x", "y"), [])
    with pytest.raises(TreadleError, match=r"an array of timedelta64.*; accepted: an element type of ONNX"):
        backend.run_node(node("Relu", "x", "y"), [np.array([0], "timedelta64[s]")])


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend.supports_device("CPU")
    assert not backend.supports_device("NPU")
    for reason in (None, "no GPU"):
        monkeypatch.setattr("treadle.onnx_backend.why_no_gpu", lambda reason=reason: reason)
        assert backend.supports_device("CUDA:0") == (reason is None)


def test_onnx_runs_its_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among them one whose input is the shape of a reshape. `make conformance` runs all of them."""

    def import_some(_: object) -> None:
        for name in ("add", "reshape", "lstm", "topk", "quantizelinear"):
            importlib.import_module(f"onnx.backend.test.case.node.{name}")

    monkeypatch.setattr("onnx.backend.test.loader.import_recursive", import_some)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite computes its own expectations, some of them with overflows
        runner = Runner(backend.TreadleBackend, __name__)
    names = ("test_add", "test_reshape_zero_dim", "test_lstm_defaults", "test_top_k", "test_quantizelinear_axis")
    cases = runner.test_cases["OnnxBackendNodeModelTest"]
    suite = unittest.TestSuite(cases(f"{name}_cpu") for name in names)
    result = unittest.TestResult()
    suite.run(result)
    assert (result.testsRun, result.errors, result.failures, result.skipped) == (len(names), [], [], [])
