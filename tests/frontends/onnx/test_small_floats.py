"""Casts and quantisation to floats of 8 and 4 bits, beside ONNX Runtime and the table of ONNX's Cast."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.frontends.onnx.models import model, node
from tests.frontends.onnx.reference import run
from treadle.errors import TreadleError
from treadle.frontends.onnx import import_model

Array = NDArray[Any]

EIGHT = [
    np.dtype(t)
    for t in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz)
]
FOUR = np.dtype(ml_dtypes.float4_e2m1fn)
POWERS = np.dtype(ml_dtypes.float8_e8m0fnu)
RNG = np.random.default_rng(7)
SPECIAL = [0.0, -0.0, inf, -inf, nan, 1e6, -1e6, 448, 449, 463.9, 464, 465, -470, 240, 248, 249, 57344, 61440, 61441]
X = np.concatenate([SPECIAL, 2.0 ** RNG.uniform(-20, 18, 400) * RNG.choice([-1, 1], 400)]).astype(np.float32)


def _cast(x: Array, to: np.dtype[Any], **attributes: Any) -> Array:
    operator = node("Cast", "x", "y", to=helper.np_dtype_to_tensor_dtype(to), **attributes)
    proto = model([operator], {"x": x.shape}, opset=25, element=helper.np_dtype_to_tensor_dtype(x.dtype))
    (result,) = run(import_model(proto.SerializeToString()), [x])
    assert result.dtype == to
    return result


def _numbers(x: Array) -> Array:
    return x.astype(np.float32)


@pytest.mark.parametrize("saturate", [1, 0])
@pytest.mark.parametrize("to", EIGHT, ids=str)
def test_casts_as_onnx_runtime_has_them(to: np.dtype[Any], saturate: int) -> None:
    """Its outputs of these types are read by a cast back. Where nothing saturates, it has 448 and NaN for some of what
    rounds to the first number that is too large, which by ONNX's table are NaN and infinity: these are left out."""
    number = helper.np_dtype_to_tensor_dtype(to)
    operators = [node("Cast", "x", "q", to=number, saturate=saturate), node("Cast", "q", "y", to=1)]
    proto = model(operators, {"x": X.shape}, opset=21)
    proto.ir_version = 10
    (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": X})
    parts = np.abs(X) / float(ml_dtypes.finfo(to).max)
    agreed = np.full(X.shape, True) if saturate else ~((parts > 1) & (parts < 1.2))
    wanted = np.asarray(expected)[agreed]
    actual = _numbers(_cast(X, to, saturate=saturate))[agreed]
    np.testing.assert_array_equal(actual, wanted)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(np.signbit(actual[finite]), np.signbit(wanted[finite]))


@pytest.mark.parametrize("saturate", [1, 0])
@pytest.mark.parametrize("source", [np.float16, ml_dtypes.bfloat16, np.float64, np.int32, np.uint8, np.bool_], ids=str)
@pytest.mark.parametrize("to", [*EIGHT, FOUR], ids=str)
def test_casts_of_other_types(to: np.dtype[Any], source: type[Any], saturate: int) -> None:
    with np.errstate(all="ignore"):
        x = np.nan_to_num(X, nan=3).astype(source) if np.dtype(source).kind in "iub" else X.astype(source)
        wide = x.astype(np.float32)
        largest = float(ml_dtypes.finfo(to).max)
        expected = (np.clip(wide, -largest, largest) if saturate else wide).astype(to)
    np.testing.assert_array_equal(_numbers(_cast(x, to, saturate=saturate)), _numbers(expected))


def test_an_infinity_of_an_8_bit_float_saturates_too() -> None:
    x = np.array([inf, -inf, nan, 57344], np.float32).astype(ml_dtypes.float8_e5m2)
    np.testing.assert_array_equal(_numbers(_cast(x, EIGHT[3])), [57344, -57344, nan, 57344])
    np.testing.assert_array_equal(_numbers(_cast(x, EIGHT[0], saturate=0)), [nan, nan, nan, nan])
    np.testing.assert_array_equal(_numbers(_cast(x, EIGHT[2])), _numbers(x))


def _power(x: float, rounding: str, saturate: bool) -> float:
    """The power of two of a number by the table of ONNX's Cast."""
    if np.isnan(x) or (not saturate and not 2.0**-127 <= x < inf):
        return nan
    size = min(max(x, 2.0**-127), 2.0**128)
    low = 2.0 ** np.floor(np.log2(size))
    up = {"up": size > low, "down": False, "nearest": size >= 1.5 * low}[rounding]
    power = 2 * low if up else low
    return power if power <= 2.0**127 else (2.0**127 if saturate else nan)


@pytest.mark.parametrize("saturate", [1, 0])
@pytest.mark.parametrize("rounding", ["up", "down", "nearest"])
@pytest.mark.parametrize("source", [np.float32, np.float16], ids=str)
def test_powers_of_two(source: type[Any], rounding: str, saturate: int) -> None:
    exponents = np.arange(-149, 128.0)
    ends = [0, inf, nan, *(2.0**e * f for e in (-149, -128, -127, -126, 0, 5, 126, 127) for f in (1, 1.25, 1.5, 1.75))]
    with np.errstate(all="ignore"):
        x = np.concatenate([2.0**exponents, 2.0 ** RNG.uniform(-148, 128, 300), ends]).astype(source)
    expected = [_power(float(v), rounding, bool(saturate)) for v in x]
    actual = _cast(x, POWERS, round_mode=rounding, saturate=saturate)
    np.testing.assert_array_equal(_numbers(actual).astype(np.float64), expected)


def test_powers_of_two_as_onnx_evaluates_them() -> None:
    """Numbers of which its evaluator and its table say the same: no subnormal ones."""
    x = (2.0 ** RNG.uniform(-120, 120, 300)).astype(np.float32)
    for rounding in ("up", "down", "nearest"):
        to = helper.np_dtype_to_tensor_dtype(POWERS)
        proto = model([node("Cast", "x", "y", to=to, round_mode=rounding)], {"x": x.shape}, opset=24)
        (expected,) = ReferenceEvaluator(proto).run(None, {"x": x})
        wanted = np.asarray(expected).view(np.uint8)
        np.testing.assert_array_equal(_cast(x, POWERS, round_mode=rounding).view(np.uint8), wanted)


@pytest.mark.parametrize("to", EIGHT, ids=str)
def test_quantisation_and_back(to: np.dtype[Any]) -> None:
    x = (40 * RNG.standard_normal((6, 40))).astype(np.float32)
    x[0, :4] = 1e6, -1e6, -0.0, 1e-9
    weights = {"s": RNG.uniform(0.1, 1, 6).astype(np.float32), "z": np.zeros(6, to)}
    operators = [node("QuantizeLinear", "x s z", "q", axis=0), node("DequantizeLinear", "q s z", "y", axis=0)]
    proto = model(operators, {"x": x.shape}, ["y"], weights, 21)
    proto.ir_version = 10
    (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    wanted = np.asarray(expected)
    (result,) = run(import_model(proto.SerializeToString()), [x])
    np.testing.assert_array_equal(result, wanted)
    np.testing.assert_array_equal(np.signbit(result), np.signbit(wanted))


def test_quantisation_to_powers_of_two_is_refused() -> None:
    weights = {"s": np.array(1, np.float32), "z": np.ones((), POWERS)}
    proto = model([node("QuantizeLinear", "x s z", "y")], {"x": [4]}, weights=weights, opset=25)
    with pytest.raises(TreadleError, match=r"a result of f8E8M0FNU; accepted: a zero point or output_dtype"):
        import_model(proto.SerializeToString())
