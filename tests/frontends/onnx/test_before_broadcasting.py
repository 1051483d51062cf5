"""Operators before opset 7. ONNX's own tests of them are those that PyTorch exported (`make conformance`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import NodeProto

from tests.frontends.onnx.models import model, node
from tests.frontends.onnx.reference import run
from treadle.errors import TreadleError
from treadle.frontends.onnx import import_model

Array = NDArray[Any]
X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)


def _run(operator: NodeProto, **weights: Array) -> Array:
    proto = model([operator], {"x": X.shape}, weights=weights, opset=6)
    return run(import_model(proto.SerializeToString()), [X])[0]


def _refused(operator: NodeProto, message: str, **weights: Array) -> None:
    with pytest.raises(TreadleError, match=message):
        _run(operator, **weights)


def test_an_operand_is_repeated_where_the_axis_says() -> None:
    b = np.array([1, 2, 3], np.float32)
    y = _run(node("Mul", "x b", "y", broadcast=1, axis=1), b=b)
    np.testing.assert_array_equal(y, X * b[:, None])
    y = _run(node("Sub", "x b", "y", broadcast=1), b=np.arange(4, dtype=np.float32))
    np.testing.assert_array_equal(y, X - np.arange(4, dtype=np.float32))
    y = _run(node("Pow", "x b", "y", broadcast=1, axis=1), b=np.array([2, 2, 2], np.float32))
    np.testing.assert_allclose(y, X * X, rtol=1e-6)


def test_one_slope_and_one_for_each_channel() -> None:
    for slope in (np.array([0.5], np.float32), np.array([0.1, 0.2, 0.3], np.float32)):
        y = _run(node("PRelu", "x s", "y"), s=slope)
        np.testing.assert_array_equal(y, np.where(X < 0, X * slope.reshape(1, -1, 1), X))


def test_what_is_refused() -> None:
    b = np.ones(3, np.float32)
    shapes = r"operands of shapes \(2, 3, 4\) and \(3,\); accepted: one shape, or broadcast = 1"
    _refused(node("Add", "x b", "y"), shapes, b=b)
    _refused(node("Add", "x b", "y", broadcast=1, axis=3), "axis 3 of operands of rank 3 and 1", b=b)
    parameters = {name: b for name in "sbmv"}
    _refused(node("BatchNormalization", "x s b m v", "y"), "attribute 'is_test' is 0; accepted: 1", **parameters)
    operator = node("BatchNormalization", "x s b m v", "y", is_test=1, spatial=0)
    _refused(operator, "spatial is 0", **parameters)
