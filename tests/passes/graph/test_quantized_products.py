"""Statically quantised layers, compiled, against their definition in exact integers and float64, and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto

import treadle
from tests.frontends.onnx.models import model, node
from tests.helpers.program_batch import CompiledProgram, PrintedProgram, compile_programs, print_program
from treadle.frontends.onnx import import_model

Array = NDArray[Any]
TARGETS = ("cpu{matrix_unit=amx}", "cpu{matrix_unit=vnni}")
SCALE, RESULT = np.float32(0.02), np.float32(0.75)
"""Of images, and of results."""
TIE = 1e-3
"""How far from a tie, in quanta, the roundings of a sum in float32 may decide; sums are some hundreds of quanta."""


@dataclass(frozen=True)
class Layer:
    """A convolution between QuantizeLinear and DequantizeLinear; all dimensions have the same stride."""

    name: str
    image: tuple[int, ...]
    weights: tuple[int, ...]
    stride: int = 1
    pads: tuple[int, ...] = (0, 0, 0, 0)
    groups: int = 1
    kind: type[Any] = np.uint8
    zero: int = 0
    per_channel: bool = True
    of_weights: type[Any] = np.int8
    zero_of_weights: int = 0
    relu: bool = False


LAYERS = (
    Layer("1x1", (1, 32, 7, 7), (48, 32, 1, 1)),
    Layer("1x1 of a zero point", (1, 32, 7, 7), (48, 32, 1, 1), zero=131),
    Layer("1x1 of two images", (2, 16, 5, 5), (16, 16, 1, 1), stride=2, zero=3),
    Layer("3x3", (1, 16, 9, 11), (32, 16, 3, 3), pads=(1, 1, 1, 1), relu=True),
    Layer("3x3, padded by a zero point", (1, 32, 9, 9), (16, 32, 3, 3), stride=2, pads=(0, 1, 2, 1), zero=77),
    Layer("signed", (1, 16, 9, 9), (16, 16, 3, 3), pads=(1, 1, 1, 1), kind=np.int8, zero=-5),
    Layer("one scale", (1, 16, 9, 9), (16, 16, 3, 3), pads=(1, 1, 1, 1), per_channel=False),
    Layer("of nine bits", (1, 16, 6, 6), (16, 16, 3, 3), zero=9, of_weights=np.uint8, zero_of_weights=120),
    Layer("channels in part", (1, 24, 6, 6), (24, 24, 1, 1), zero=2),
    Layer("channels in part, 3x3", (1, 24, 6, 6), (24, 24, 3, 3), pads=(1, 1, 1, 1), zero=2),
    Layer("many pixels of few channels", (1, 8, 14, 14), (5, 8, 1, 1), zero=3),
    Layer("few channels", (1, 3, 12, 12), (16, 3, 7, 7), stride=2, pads=(3, 3, 3, 3), zero=114),
    Layer("few outputs", (1, 16, 5, 5), (5, 16, 1, 1), zero=200),
    Layer("depthwise", (1, 32, 9, 9), (32, 1, 3, 3), pads=(1, 1, 1, 1), groups=32),
    Layer("depthwise of a zero point", (1, 32, 9, 9), (32, 1, 3, 3), 2, (1, 1, 1, 1), 32, np.int8, 17),
    Layer("groups", (1, 32, 6, 6), (32, 16, 3, 3), pads=(1, 1, 1, 1), groups=2, zero=40),
    Layer("narrow groups", (1, 32, 6, 6), (32, 4, 3, 3), pads=(1, 1, 1, 1), groups=8, zero=40),
)
NAMES = [layer.name for layer in LAYERS]
WHOLE = [layer for layer in LAYERS if not layer.relu]


def parameters(layer: Layer) -> dict[str, Array]:
    """The model's constants."""
    rng = np.random.default_rng(len(layer.name))
    channels = layer.weights[0]
    count = channels if layer.per_channel else 1
    limits = np.iinfo(layer.of_weights)
    w = rng.integers(max(limits.min, -127), limits.max, layer.weights, layer.of_weights, endpoint=True)
    scales = rng.uniform(1e-3, 4e-3, count).astype(np.float32)
    bias = rng.integers(-(10**5), 10**5, channels, np.int32)
    shape = (count,) if layer.per_channel else ()
    return {
        "sx": np.array(SCALE),
        "zx": np.array(layer.zero, layer.kind),
        "w": w,
        "sw": scales.reshape(shape),
        "zw": np.full(shape, layer.zero_of_weights, layer.of_weights),
        "b": bias,
        "sb": np.broadcast_to((SCALE * scales).astype(np.float32), (channels,)).copy(),
        "zb": np.zeros(channels, np.int32),
        "sy": np.array(RESULT),
        "zy": np.array(100, np.uint8),
    }


def proto(layer: Layer) -> ModelProto:
    """Quantised, convolved, quantised again: the format of `onnxruntime.quantization.quantize_static`."""
    window: dict[str, Any] = {"strides": [layer.stride] * 2, "pads": list(layer.pads), "group": layer.groups}
    nodes: list[NodeProto] = [
        node("QuantizeLinear", "x sx zx", "q"),
        node("DequantizeLinear", "q sx zx", "d"),
        node("DequantizeLinear", "w sw zw", "wd", axis=0),
        node("DequantizeLinear", "b sb zb", "bd", axis=0),
        node("Conv", "d wd bd", "c", kernel_shape=list(layer.weights[2:]), **window),
        node("Relu", "c", "r") if layer.relu else node("Identity", "c", "r"),
        node("QuantizeLinear", "r sy zy", "y"),
    ]
    return model(nodes, {"x": list(layer.image)}, weights=parameters(layer))


def image(layer: Layer) -> Array:
    return np.random.default_rng(1).standard_normal(layer.image).astype(np.float32)


def exact_sums(layer: Layer) -> Array:
    """The scaled sums, with the bias, in quanta of the result."""
    p = parameters(layer)
    limits = np.iinfo(layer.kind)
    numbers = np.clip(np.rint(image(layer) / SCALE) + layer.zero, limits.min, limits.max).astype(np.int64) - layer.zero
    top, left, bottom, right = layer.pads
    padded = np.pad(numbers, [(0, 0), (0, 0), (top, bottom), (left, right)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, layer.weights[2:], axis=(2, 3))
    windows = windows[:, :, :: layer.stride, :: layer.stride]
    w = p["w"].astype(np.int64) - layer.zero_of_weights
    grouped = windows.reshape(windows.shape[0], layer.groups, -1, *windows.shape[2:])
    filters = w.reshape(layer.groups, -1, *w.shape[1:])
    sums = np.einsum("ngchwij,gocij->ngohw", grouped, filters)
    sums = sums.reshape(sums.shape[0], -1, *sums.shape[3:])
    scale = p["sw"].astype(np.float64) * float(SCALE)
    real = sums * np.broadcast_to(scale, w.shape[:1]).reshape(-1, 1, 1)
    real += (p["b"] * p["sb"].astype(np.float64)).reshape(-1, 1, 1)
    return (np.maximum(real, 0) if layer.relu else real) / float(RESULT)


def whole_proto(layer: Layer) -> ModelProto:
    """The same as one operator, `QLinearConv`."""
    window: dict[str, Any] = {"strides": [layer.stride] * 2, "pads": list(layer.pads), "group": layer.groups}
    nodes = [
        node("QuantizeLinear", "x sx zx", "q"),
        node("QLinearConv", "q sx zx w sw zw sy zy b", "y", kernel_shape=list(layer.weights[2:]), **window),
    ]
    return model(nodes, {"x": list(layer.image)}, weights=parameters(layer))


@cache
def programs(target: str) -> dict[str, CompiledProgram]:
    return compile_programs([printed(layer, target, proto) for layer in LAYERS], target)


@cache
def whole_programs(target: str) -> dict[str, CompiledProgram]:
    return compile_programs([printed(layer, target, whole_proto) for layer in WHOLE], target)


@cache
def printed(layer: Layer, target: str, make: Callable[[Layer], ModelProto]) -> PrintedProgram:
    name = f"{layer.name} of {make.__name__}"
    return print_program(name, import_model(make(layer).SerializeToString()), target, after="import")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layer", LAYERS, ids=NAMES)
def test_convolutions(layer: Layer, target: str) -> None:
    exact = exact_sums(layer)
    (got,) = programs(target)[f"{layer.name} of proto"].run([image(layer)])
    assert np.mean((got > 0) & (got < 255)) > 0.2, "saturated"
    inside = np.clip(exact, -100, 155)
    assert np.abs(got.astype(np.float64) - 100 - inside).max() <= 0.5 + TIE
    options = onnxruntime.SessionOptions()
    # In floats: its sums of two products of bytes saturate where there is no VNNI.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    made = proto(layer).SerializeToString()
    session = onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, {"x": image(layer)})
    difference = np.abs(got.astype(np.int32) - np.asarray(theirs))
    assert difference.max() <= 1 and np.mean(difference) < 0.01


@pytest.mark.parametrize("target", [TARGETS[0], pytest.param(TARGETS[1], marks=pytest.mark.slow)])
@pytest.mark.parametrize("layer", WHOLE, ids=lambda layer: layer.name)
def test_convolutions_as_one_operator(layer: Layer, target: str) -> None:
    """They become the products above before it matters which unit there is: of the other one, slow tests have them."""
    (got,) = whole_programs(target)[f"{layer.name} of whole_proto"].run([image(layer)])
    inside = np.clip(exact_sums(layer), -100, 155)
    assert np.abs(got.astype(np.float64) - 100 - inside).max() <= 0.5 + TIE


@pytest.mark.parametrize("make", [proto, whole_proto], ids=["three operators", "one operator"])
@pytest.mark.parametrize("target", ["avx2", "sse2", "sm_80{peak_int8_tensor=0}"])
def test_targets_without_a_unit(target: str, make: Callable[[Layer], ModelProto]) -> None:
    """They compute in floats, as the model says, or in float64 what one operator says of integers."""
    layer = LAYERS[NAMES.index("3x3, padded by a zero point")]
    with treadle.compile(make(layer), target, device="emulator" if target.startswith("sm_80") else None) as compiled:
        (got,) = compiled(image(layer))
    inside = np.clip(exact_sums(layer), -100, 155)
    assert np.abs(got.astype(np.float64) - 100 - inside).max() <= 0.5 + TIE


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer.groups == 1], ids=lambda layer: layer.name)
def test_dense_convolutions_multiply_bytes(layer: Layer) -> None:
    for make in (proto, whole_proto):
        assert any("treadle_tiles_" in unit.text for unit in printed(layer, TARGETS[0], make).kernels)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(24, 40), (3, 24, 40)], ids=["a matrix", "a batch of matrices"])
def test_products(shape: tuple[int, ...], target: str) -> None:
    """Of a batch of constant matrices in float32."""
    rng = np.random.default_rng(3)
    x = rng.integers(0, 255, (3, 7, 24), np.uint8, endpoint=True)
    w = rng.integers(-127, 127, shape, np.int8, endpoint=True)
    weights = {"s": np.array(0.01, np.float32), "z": np.array(100, np.uint8), "w": w, "t": np.array(0.02, np.float32)}
    nodes = [
        node("DequantizeLinear", "x s z", "d"),
        node("DequantizeLinear", "w t", "m"),
        node("MatMul", "d m", "y"),
    ]
    made = model(nodes, {"x": list(x.shape)}, element=TensorProto.UINT8, weights=weights)
    printed = print_program(f"product {shape}", import_model(made.SerializeToString()), target, after="import")
    assert any("treadle_tiles_" in unit.text for unit in printed.kernels) == (len(shape) == 2)
    (got,) = compile_programs([printed], target)[f"product {shape}"].run([x])
    exact = ((x.astype(np.int64) - 100) @ w.astype(np.int64)) * (float(weights["s"]) * float(weights["t"]))
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("groups", [1, 16])
def test_convolutions_of_a_computed_zero_point(groups: int, target: str) -> None:
    """The border is one of zero points, which are known when the model runs. Groups are computed in float64."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((1, 16, 7, 7)).astype(np.float32) + 1
    w = rng.integers(0, 255, (16, 16 // groups, 3, 3), np.uint8, endpoint=True)
    zero_of_weights = np.array(140, np.uint8)
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"),
        node("ConvInteger", "q w z zw", "y", pads=[1, 1, 1, 1], group=groups),
    ]
    made = model(nodes, {"x": list(x.shape)}, ["y", "q", "z"], {"w": w, "zw": zero_of_weights})
    printed = print_program(f"computed {groups}", import_model(made.SerializeToString()), target, after="import")
    assert any("treadle_tiles_" in unit.text for unit in printed.kernels) == (groups == 1)
    y, q, z = compile_programs([printed], target)[f"computed {groups}"].run([x])
    numbers = np.pad(q.astype(np.int64) - int(z), [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(numbers, (3, 3), axis=(2, 3))
    grouped = windows.reshape(1, groups, -1, *windows.shape[2:])
    filters = (w.astype(np.int64) - 140).reshape(groups, -1, *w.shape[1:])
    np.testing.assert_array_equal(y, np.einsum("ngchwij,gocij->ngohw", grouped, filters).reshape(y.shape))
