"""Operators that the importer writes with others, beside ONNX Runtime and NumPy where ONNX's node tests have little."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import floor
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper
from onnx.reference import ReferenceEvaluator

from tests.frontends.onnx.models import model, node
from tests.frontends.onnx.reference import run
from treadle.errors import TreadleError
from treadle.frontends.common.samples import Interpolation, taps
from treadle.frontends.onnx import import_model

Array = NDArray[Any]
RNG = np.random.default_rng(5)


def _floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def _imported(operator: NodeProto, x: Array, weights: dict[str, Array], opset: int = 21) -> tuple[ModelProto, Any]:
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    outputs = [name for name in operator.output if name]
    proto = model([operator], {"x": x.shape}, outputs, weights, opset, element)
    proto.ir_version = 10
    return proto, import_model(proto.SerializeToString())


def agrees(operator: NodeProto, x: Array, weights: dict[str, Array], opset: int = 21) -> None:
    """The outputs are those of ONNX Runtime."""
    proto, module = _imported(operator, x, weights, opset)
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    for result, wanted in zip(run(module, [x]), expected, strict=True):
        array: Array = np.asarray(wanted)
        assert result.shape == array.shape
        np.testing.assert_allclose(result, array, rtol=1e-5, atol=1e-5)


def refused(operator: NodeProto, x: Array, weights: dict[str, Array], message: str) -> None:
    with pytest.raises(TreadleError, match=message):
        _imported(operator, x, weights)


@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize(
    ("mode", "sizes"), [("linear", [1, 2, 7, 3]), ("cubic", [1, 2, 8, 10]), ("nearest", [1, 2, 9, 3])]
)
def test_resize(mode: str, coordinates: str, sizes: list[int]) -> None:
    """Nothing lies outside of the picture, so that `extrapolation_value`, which PyTorch writes, is not read."""
    modes: dict[str, Any] = {"coordinate_transformation_mode": coordinates, "extrapolation_value": 0.5}
    resize = node("Resize", "x _ _ s", "y", mode=mode, **modes)
    agrees(resize, _floats(1, 2, 4, 5), {"s": np.array(sizes)})


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_corners_of_a_scale_that_is_not_whole(mode: str) -> None:
    """As ONNX's reference has them, which ONNX Runtime's results differ from (docs/numerics.md)."""
    modes = {"coordinate_transformation_mode": "align_corners", "nearest_mode": "floor"}
    x, scales = _floats(1, 1, 9, 11), {"s": np.array([1, 1, 0.5, 0.7], np.float32)}
    proto, module = _imported(node("Resize", "x _ s", "y", mode=mode, **modes), x, scales)
    (expected,) = ReferenceEvaluator(proto).run(None, {"x": x})
    (result,) = run(module, [x])
    assert result.shape == np.asarray(expected).shape == (1, 1, 4, 7)
    np.testing.assert_allclose(result, np.asarray(expected), rtol=1e-5, atol=1e-5)


def test_resize_finds_elements_that_are_met_exactly() -> None:
    """Element 198 of 306 lies at 198 * 187 / 306 = 121."""
    modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    x = _floats(1, 187)
    _, module = _imported(node("Resize", "x _ _ s", "y", mode="nearest", **modes), x, {"s": np.array([1, 306])})
    np.testing.assert_array_equal(run(module, [x])[0], x[:, np.arange(306) * 187 // 306])


@pytest.mark.parametrize("shift", [Fraction(0), Fraction(1, 2)])
def test_positions_of_a_resize_are_rounded_once(shift: Fraction) -> None:
    """The nearest elements are those of rational arithmetic."""
    how = Interpolation(coordinates="half_pixel" if shift else "asymmetric", rounding="round_prefer_ceil")
    for extent, size in product(range(1, 40), range(1, 60)):
        found = taps(how, extent, size, Fraction(size, extent), (0.0, 1.0))
        chosen = found.indices[np.arange(size), found.weights.argmax(1)]
        places = [(r + shift) * extent / size - shift for r in range(size)]
        nearest = [min(max(floor(place + Fraction(1, 2)), 0), extent - 1) for place in places]
        np.testing.assert_array_equal(chosen, nearest)


@pytest.mark.parametrize("largest", [0, 1])
def test_the_first_of_equal_elements_come_first(largest: int) -> None:
    x = np.array([[3, 1, 3, 2, 1, 3], [0, 0, 0, 0, 0, 0]], np.float32)
    agrees(node("TopK", "x k", "v i", largest=largest), x, {"k": np.array([4])})
    agrees(node("TopK", "x k", "v i", largest=largest, axis=0), x, {"k": np.array([1])})


def test_top_k_puts_nan_first() -> None:
    _, module = _imported(node("TopK", "x k", "v i"), np.zeros(4, np.float32), {"k": np.array([3])})
    values, positions = run(module, [np.array([1, np.nan, np.inf, -np.inf], np.float32)])
    np.testing.assert_array_equal(values, np.array([np.nan, np.inf, 1], np.float32))
    np.testing.assert_array_equal(positions, [1, 2, 0])


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scattered_elements_of_a_corner(reduction: str) -> None:
    """Fewer indices than elements in every dimension, one of them negative; several of one element unless `none`."""
    indices = np.array([[3, -5, 1], [0, 2, 4]]) if reduction == "none" else np.array([[3, -5, 3], [2, 2, 2]])
    weights = {"i": indices, "u": _floats(2, 3)}
    agrees(node("ScatterElements", "x i u", "y", axis=1, reduction=reduction), _floats(3, 5), weights)


def test_scattered_slices_at_positions_that_are_computed() -> None:
    indices = np.array([[1, 2], [0, -1]])
    data, updates = _floats(3, 4, 2), _floats(2, 2)
    _, module = _imported(node("ScatterND", "d x u", "y"), indices, {"d": data, "u": updates})
    expected = data.copy()
    expected[1, 2], expected[0, -1] = updates
    np.testing.assert_array_equal(run(module, [indices])[0], expected)


@pytest.mark.parametrize(
    "equation", ["ij,jk->ik", "bij,bjk", "ii->", "...i,...i->...", "ij->ji", "i,j,k->kij", "abc,cd,bd->a"]
)
def test_einsum(equation: str) -> None:
    terms = equation.split("->")[0].split(",")
    extents = {"a": 2, "b": 3, "c": 4, "d": 5, "i": 3, "j": 4, "k": 2}
    if equation.startswith("ii"):
        arrays = [_floats(3, 3)]
    else:
        arrays = [_floats(*((2, 3) if "..." in t else (extents[v] for v in t))) for t in terms]
    names = [f"w{n}" for n in range(1, len(arrays))]
    operator = node("Einsum", " ".join(["x", *names]), "y", equation=equation)
    _, module = _imported(operator, arrays[0], dict(zip(names, arrays[1:], strict=True)))
    np.testing.assert_allclose(run(module, arrays[:1])[0], np.einsum(equation, *arrays), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("flags", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_cumulative_sums(flags: tuple[int, int]) -> None:
    agrees(node("CumSum", "x a", "y", exclusive=flags[0], reverse=flags[1]), _floats(3, 11), {"a": np.array(1)})


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool(p: int) -> None:
    agrees(
        node("LpPool", "x", "y", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], p=p), _floats(1, 2, 6, 7), {}
    )
    agrees(node("GlobalLpPool", "x", "y", p=p), _floats(1, 2, 6, 7), {})


def test_what_is_refused() -> None:
    x = _floats(2, 3)
    refused(node("TopK", "x k", "v i"), x, {"k": np.array([4])}, r"node 'v' .*k is 4; accepted: 0 to 3")
    refused(node("Einsum", "x", "y", equation="ijk"), x, {}, "term 'ijk' for an operand of rank 2; accepted: a label")
    refused(node("Einsum", "x", "y", equation="ij->k"), x, {}, "the result 'k' of 'ij->k'; accepted: labels of")
    refused(node("CumSum", "x x", "y"), x, {}, "the axis .* depends on the model's input data")
    weights = {"i": np.zeros((2, 4), np.int64), "u": _floats(2, 3)}
    refused(
        node("ScatterElements", "x i u", "y"), x, weights, "indices of shape .* accepted: indices and updates of one"
    )
    refused(node("ScatterND", "x i u", "y"), x, weights, "accepted: tuples no longer than the data's rank")
    refused(node("BitShift", "x x", "y", direction="UP"), x.astype(np.int64), {}, "'UP'; accepted: LEFT, RIGHT")


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("operator", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_networks_of_sequences_of_different_lengths(operator: str, gates: int, direction: str) -> None:
    count, size, batch, steps = 2 if direction == "bidirectional" else 1, 3, 2, 4
    weights = {
        "w": _floats(count, gates * size, 5), "r": _floats(count, gates * size, size),
        "b": _floats(count, 2 * gates * size), "n": np.array([4, 2], np.int32), "h": _floats(count, batch, size),
    }  # fmt: skip
    extra = {"linear_before_reset": 1} if operator == "GRU" and direction == "reverse" else {}
    outputs = "y last c" if operator == "LSTM" else "y last"
    recurrent = node(operator, "x w r b n h", outputs, hidden_size=size, direction=direction, **extra)  # pyright: ignore
    agrees(recurrent, _floats(steps, batch, 5), weights)


def test_recurrent_networks_that_are_refused() -> None:
    weights = {"w": _floats(1, 3, 5), "r": _floats(1, 3, 3)}
    x = _floats(4, 2, 5)
    refused(
        node("RNN", "x w r", "y", activations=["Elu"]), x, weights, r"activations \['Elu'\]; accepted: 1 of Sigmoid"
    )
    refused(node("RNN", "x w r", "y", clip=1.0), x, weights, "clip, .* is given; accepted: none")
    refused(node("LSTM", "x w r", "y"), x, weights, r"weights of shapes .*accepted: \(1, 12, 5\) and \(1, 12, 3\)")


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("corners", [0, 1])
def test_samples_at_points(mode: str, padding: str, corners: int) -> None:
    sample = node("GridSample", "x g", "y", mode=mode, padding_mode=padding, align_corners=corners)
    grid = RNG.uniform(-1.6, 1.6, (2, 3, 4, 2)).astype(np.float32)
    agrees(sample, _floats(2, 3, 5, 6), {"g": grid})


@pytest.mark.parametrize("length", [6, 9])
def test_transforms_of_signals(length: int) -> None:
    x = _floats(2, 7, 2)
    _, module = _imported(node("DFT", "x n a", "y"), x, {"n": np.array(length), "a": np.array(1)})
    expected = np.fft.fft(x[..., 0] + 1j * x[..., 1], length, axis=1)
    np.testing.assert_allclose(run(module, [x])[0], np.stack([expected.real, expected.imag], -1), rtol=1e-4, atol=1e-4)
    _, module = _imported(
        node("DFT", "x n a", "y", inverse=1, onesided=1), x, {"n": np.array(length), "a": np.array(1)}
    )
    expected = np.fft.irfft(x[..., 0] + 1j * x[..., 1], length, axis=1)
    np.testing.assert_allclose(run(module, [x])[0][..., 0], expected, rtol=1e-4, atol=1e-4)


def test_quantisation_by_slices_and_blocks() -> None:
    x = 20 * _floats(2, 6)
    per_row = {"s": np.array([0.5, 0.25], np.float32), "z": np.array([3, -5], np.int8)}
    agrees(node("QuantizeLinear", "x s z", "y", axis=0), x, per_row)
    blocks = {"s": np.array([[0.5, 1, 2], [1, 0.25, 1]], np.float32), "z": np.zeros((2, 3), np.int8)}
    agrees(node("QuantizeLinear", "x s z", "y", axis=1, block_size=2), x, blocks)
    one = {"s": np.array(1, np.float32)}
    agrees(node("QuantizeLinear", "x s", "y"), x, one)
    refused(
        node("QuantizeLinear", "x s z", "y"),
        x,
        {**one, "z": np.array(0, np.int32)},
        "a result of i32; accepted: a zero",
    )


@pytest.mark.parametrize("to", [ml_dtypes.int4, ml_dtypes.uint4])
def test_quantisation_to_four_bits_and_back(to: type[Any]) -> None:
    """Values beyond the type, ties, and zero points at its ends, a block of four along the second dimension."""
    limits = ml_dtypes.iinfo(to)
    x = np.concatenate([4 * RNG.standard_normal((6, 20)), np.arange(-30, 30).reshape(6, 10) / 2], 1).astype(np.float32)
    x[0, :3] = 1e6, -1e6, 3e9
    blocks = {"s": RNG.uniform(0.3, 1, (6, 8)).astype(np.float32)}
    blocks["z"] = RNG.choice([limits.min, 0, 1, limits.max], (6, 8)).astype(to)
    for zero, scale in (("z", blocks["s"]), ("_", blocks["s"]), ("z", np.array(0.5, np.float32))):
        shape = np.shape(scale)
        weights = {"s": scale, "z": blocks["z"] if shape else np.array(3, to)}
        size: dict[str, Any] = {"block_size": 4} if shape else {}
        number = helper.np_dtype_to_tensor_dtype(np.dtype(to))
        operators = [
            node("QuantizeLinear", f"x s {zero}", "q", axis=1, output_dtype=number, **size),
            node("DequantizeLinear", f"q s {zero}", "y", axis=1, **size),
        ]
        proto = model(operators, {"x": x.shape}, ["y"], weights, 21)
        proto.ir_version = 10
        (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
        (result,) = run(import_model(proto.SerializeToString()), [x])
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("weights", [np.int8, np.uint8])
@pytest.mark.parametrize("attributes", [{}, {"group": 2, "strides": [2, 1], "pads": [1, 0, 2, 1]}])
def test_convolutions_of_quantised_images(weights: type[np.integer[Any]], attributes: dict[str, Any]) -> None:
    x = RNG.integers(0, 256, (2, 4, 6, 7)).astype(np.uint8)
    # Of larger signed ones ONNX Runtime's sums of two products saturate where there is no VNNI.
    limits = (-64, 64) if weights == np.int8 else (0, 256)
    w = RNG.integers(*limits, (6, 4 // attributes.get("group", 1), 3, 3)).astype(weights)
    zero, zero_of_w = np.array(131, np.uint8), np.array(3, weights)
    agrees(node("ConvInteger", "x w z v", "y", **attributes), x, {"w": w, "z": zero, "v": zero_of_w})
    scales = {"s": np.array(0.5, np.float32), "t": RNG.uniform(0.01, 0.02, 6).astype(np.float32)}
    others = {
        "w": w,
        "z": zero,
        "v": np.full(6, zero_of_w),
        "u": np.array(1.5, np.float32),
        "n": np.array(90, np.uint8),
    }
    bias = {"b": RNG.integers(-3000, 3000, 6).astype(np.int32)}
    agrees(node("QLinearConv", "x s z w t v u n b", "y", **attributes), x, scales | others | bias)


def test_quantised_weights_of_other_types_are_refused() -> None:
    x, w = np.zeros((1, 1, 4, 4), np.uint8), {"w": np.zeros((1, 1, 3, 3), np.int16)}
    refused(node("ConvInteger", "x w", "y"), x, w, "a convolution of .*ui8> and .*i16>; accepted: int8 and uint8")
