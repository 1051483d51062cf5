"""Inputs of any library that lends memory by DLPack, and outputs that other libraries borrow: without copies."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import f32

import treadle
from tests.helpers.onnx_models import WEIGHTS, linear_model
from treadle import ir
from treadle.backends.c.executor import address
from treadle.dialects.graph import CastOp
from treadle.errors import TreadleError

X = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
Y = np.maximum(X @ WEIGHTS, 0)


class Lender:
    """An array of another library: nothing but the two methods of the protocol."""

    def __init__(self, array: NDArray[Any], device: tuple[int, int] = (1, 0), code: int | None = None):
        self.array = array
        self.device = device
        self.code = code
        self.lent = 0

    def __dlpack__(self, **asked: Any) -> object:
        self.lent += 1
        capsule = self.array.__dlpack__()
        if self.code is not None:
            get = ctypes.pythonapi.PyCapsule_GetPointer
            get.argtypes, get.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
            ctypes.c_uint8.from_address(get(capsule, b"dltensor") + 20).value = self.code  # DLTensor.dtype.code
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class Unwilling(Lender):
    """A tensor that its library does not lend."""

    def __dlpack__(self, **asked: Any) -> object:
        raise BufferError("tensors that require gradients are not lent")


@pytest.fixture
def model(tmp_path: Path) -> treadle.CompiledModel:
    return treadle.compile(linear_model(tmp_path / "m.onnx"))


def test_an_input_is_read_where_it_lies(model: treadle.CompiledModel) -> None:
    lender = Lender(X)
    (argument,) = model.arguments({"x": lender})
    assert address(argument) == address(X) and lender.lent == 1
    np.testing.assert_allclose(model(lender)[0], Y, rtol=1e-5, atol=1e-6)


def test_a_strided_input_is_copied(model: treadle.CompiledModel) -> None:
    wide = np.repeat(X, 2, axis=1)
    np.testing.assert_array_equal(model(x=Lender(wide[:, ::2]))[0], model(X)[0])


def test_an_output_is_lent(model: treadle.CompiledModel) -> None:
    (output,) = model(X)
    assert address(np.from_dlpack(output)) == address(output)


@pytest.mark.parametrize(
    ("dtype", "code"), [(ml_dtypes.bfloat16, 4), (ml_dtypes.float8_e4m3fn, 10), (ml_dtypes.float8_e5m2, 12)]
)
def test_types_that_numpy_lacks(dtype: Any, code: int) -> None:
    values = np.array([0, -1.5, 2, -0.25, 3], dtype)
    entry = ir.Entry({"x": ir.tensor_type(dtype, values.shape)})
    model = treadle.compile(entry.module({"y": entry.add(CastOp(entry["x"], f32))}))
    bits = values.view(f"u{values.itemsize}")
    (argument,) = model.arguments({"x": Lender(bits, code=code)})
    assert argument.dtype == values.dtype and address(argument) == address(bits)
    np.testing.assert_array_equal(model(Lender(bits, code=code))[0], values.astype(np.float32))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: Lender(X, (2, 0)), "input 'x': the array is on a CUDA device; accepted: an array in the CPU's memory"),
        (lambda: Lender(X, (99, 0)), "the array is on a device of DLPack's type 99"),
        (lambda: Unwilling(X), "input 'x': DLPack: tensors that require gradients are not lent"),
        (lambda: Lender(X, code=77), "input 'x': DLPack: "),
        (lambda: Lender(X.astype(np.float64)), "float64[2, 8] given; accepted: x: float32[2, 8]"),
        (lambda: Lender(X[:1]), "float32[1, 8] given; accepted: x: float32[2, 8]"),
    ],
)
def test_what_is_no_input(model: treadle.CompiledModel, given: Callable[[], Lender], message: str) -> None:
    with pytest.raises(TreadleError) as error:
        model(given())
    assert message in str(error.value)
