"""Quantised models on tensor cores, emulated with all checks, against integers of NumPy and ONNX Runtime."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

import treadle
from tests.frontends.onnx.models import model, node
from tests.passes.graph.test_quantized_products import TIE, Layer, exact_sums, image, proto, whole_proto
from treadle.backends.cuda.emulator import CHECKS
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.backends.cuda.printer import print_kernels
from treadle.compiler.pipeline import lower
from treadle.dialects.registry import treadle_context
from treadle.environment import Environment
from treadle.frontends.onnx import import_model
from treadle.target import Target

Array = NDArray[Any]
GPU = Target.parse("sm_80")
KINDS: dict[str, Any] = {"i8": np.int8, "ui8": np.uint8}


def run(made: ModelProto, inputs: Sequence[Array], environment: Environment) -> tuple[list[Array], list[str]]:
    """The outputs, and the texts of the kernels, in which no check may find anything."""
    module = import_model(made.SerializeToString())
    lower(treadle_context(), module, GPU)
    texts = [unit.text for unit in print_kernels(module)]
    outputs, reports = EmulatedProgram(module, tuple(CHECKS), environment=environment).run(inputs)
    assert reports and not [str(report) for report in reports if report.findings]
    return outputs, texts


def by_tensor_cores(texts: Sequence[str]) -> list[str]:
    """The kernels that multiply bytes on tensor cores."""
    return [text for text in texts if "treadle_mma_m16n8k32_" in text]


def copied(text: str) -> set[str]:
    """The buffers that asynchronous copies fill."""
    return set(re.findall(r"treadle_cp_async_\d+\(&(\w+)", text))


def sample(shape: Sequence[int], kind: str, seed: int) -> Array:
    ends = np.iinfo(KINDS[kind])
    return np.random.default_rng(seed).integers(ends.min, ends.max, shape, ends.dtype, endpoint=True)


def integers(nodes: Sequence[Any], inputs: Mapping[str, Array], weights: Mapping[str, Array], outputs: Sequence[str]):
    """A model whose inputs are bytes."""
    made = model(list(nodes), {name: list(x.shape) for name, x in inputs.items()}, list(outputs), dict(weights))
    for entry in made.graph.input:
        signed = inputs[entry.name].dtype == np.int8
        entry.type.tensor_type.elem_type = TensorProto.INT8 if signed else TensorProto.UINT8
    return made


ZEROS = ("none", "left", "both", "columns")


@pytest.mark.parametrize("right", KINDS)
def test_products_by_constants(right: str, emulator_environment: Environment):
    """Of both signs, with every sort of zero points; those of columns take nine bits."""
    inputs = {f"a_{left}": sample((2, 50, 96), left, 1) for left in KINDS}
    b, zb = sample((96, 72), right, 2), sample((72,), right, 3)
    weights: dict[str, Array] = {"b": b, "zb": zb, "zb_all": zb[:1].reshape(())}
    nodes, expected = list[Any](), dict[str, Array]()
    for left, zeros in product(KINDS, ZEROS):
        za = sample((), left, 4)
        weights[f"za_{left}"] = za
        names = {"none": "", "left": f" za_{left}", "both": f" za_{left} zb_all", "columns": f" za_{left} zb"}[zeros]
        nodes.append(node("MatMulInteger", f"a_{left} b{names}", f"{left}_{zeros}"))
        a = inputs[f"a_{left}"].astype(np.int32) - (0 if zeros == "none" else za.astype(np.int32))
        less = {"both": zb[0], "columns": zb}.get(zeros, np.zeros((), np.int32))
        expected[f"{left}_{zeros}"] = a @ (b.astype(np.int32) - np.asarray(less).astype(np.int32))
    made = integers(nodes, inputs, weights, list(expected))
    outputs, texts = run(made, list(inputs.values()), emulator_environment)
    for got, wanted in zip(outputs, expected.values(), strict=True):
        np.testing.assert_array_equal(got, wanted)
    kernels = by_tensor_cores(texts)
    assert {sign for text in kernels for sign in re.findall(r"treadle_mma_m16n8k32_(\w\d)_", text)} == {"s8", "u8"}
    assert all(copied(text) == {"shared_a", "shared_b"} for text in kernels)


@pytest.mark.parametrize("turned", [False, True], ids=["K by N", "N by K"])
def test_products_by_what_is_computed(turned: bool, emulator_environment: Environment):
    """Zero points of both, known when the model is compiled or when it runs. Columns are gathered where they lie
    across K."""
    a, b = sample((2, 40, 64), "ui8", 0), sample((2, 72, 64) if turned else (2, 64, 72), "i8", 1)
    za, zb = sample((), "ui8", 2), sample((), "i8", 3)
    right = "t" if turned else "b"
    nodes = [
        *([node("Transpose", "b", "t", perm=[0, 2, 1])] if turned else []),
        node("MatMulInteger", f"a {right}", "none"),
        node("MatMulInteger", f"a {right} za", "left"),
        node("MatMulInteger", f"a {right} za zb", "both"),
        node("MatMulInteger", f"a {right} za given", "computed"),
    ]
    names = ["none", "left", "both", "computed"]
    made = integers(nodes, {"a": a, "b": b, "given": zb}, {"za": za, "zb": zb}, names)
    outputs, texts = run(made, [a, b, zb], emulator_environment)
    wide_a, wide_b = a.astype(np.int32), (np.swapaxes(b, 1, 2) if turned else b).astype(np.int32)
    less_a, less_b = wide_a - za.astype(np.int32), wide_b - zb.astype(np.int32)
    for got, wanted in zip(outputs, (wide_a @ wide_b, less_a @ wide_b, less_a @ less_b, less_a @ less_b), strict=True):
        np.testing.assert_array_equal(got, wanted)
    kernels = by_tensor_cores(texts)
    assert kernels and all(copied(text) == ({"shared_a", "shared_b"} if turned else {"shared_a"}) for text in kernels)


LAYERS = (
    Layer("3x3 of zero", (1, 32, 12, 12), (64, 32, 3, 3), pads=(1, 1, 1, 1), relu=True),
    Layer("3x3, padded by a zero point", (1, 32, 12, 12), (64, 32, 3, 3), pads=(1, 1, 1, 1), zero=77),
    Layer("1x1 of two images", (2, 48, 9, 9), (64, 48, 1, 1), zero=7),
    Layer("signed", (1, 16, 13, 13), (48, 16, 3, 3), pads=(1, 1, 1, 1), kind=np.int8, zero=-5),
    Layer("of nine bits", (1, 16, 14, 14), (40, 16, 3, 3), zero=9, of_weights=np.uint8, zero_of_weights=120),
    Layer("few channels", (1, 3, 32, 32), (24, 3, 3, 3), stride=2, pads=(1, 1, 1, 1), zero=114),
    Layer("few outputs", (1, 16, 5, 5), (5, 16, 1, 1), zero=200),
    Layer("depthwise", (1, 32, 9, 9), (32, 1, 3, 3), pads=(1, 1, 1, 1), groups=32),
)


PAIRS = [(proto, layer) for layer in LAYERS] + [(whole_proto, layer) for layer in LAYERS if not layer.relu]
"""QLinearConv has no relu."""
REPEATED = ("1x1 of two images", "signed", "few outputs", "few channels")
"""Layers of which the one operator's kernels are those of three: in slow tests."""


@pytest.mark.parametrize(
    ("make", "layer"),
    [
        pytest.param(*pair, marks=[pytest.mark.slow] if pair[0] is whole_proto and pair[1].name in REPEATED else [])
        for pair in PAIRS
    ],
    ids=[f"{make.__name__}, {layer.name}" for make, layer in PAIRS],
)
def test_convolutions(make: Any, layer: Layer, emulator_environment: Environment):
    (got,), texts = run(make(layer), [image(layer)], emulator_environment)
    assert np.mean((got > 0) & (got < 255)) > 0.2, "saturated"
    inside = np.clip(exact_sums(layer), -100, 155)
    assert np.abs(got.astype(np.float64) - 100 - inside).max() <= 0.5 + TIE
    # Few elements are a reduction, of bytes, too; groups are computed in floats.
    assert len(by_tensor_cores(texts)) == (layer.name not in ("few outputs", "depthwise"))


def chain() -> tuple[ModelProto, list[Any]]:
    """Three convolutions and a product behind one another, as `quantize_static` writes them."""
    rng = np.random.default_rng(0)
    weights: dict[str, Array] = {"s0": np.array(0.02, np.float32), "z0": np.array(128, np.uint8)}
    nodes = [node("QuantizeLinear", "x s0 z0", "q0"), node("DequantizeLinear", "q0 s0 z0", "d0")]
    for n, (channels, before, kernel) in enumerate(((32, 16, 3), (48, 32, 3), (64, 48, 1))):
        weights |= {
            f"w{n}": rng.integers(-127, 127, (channels, before, kernel, kernel), np.int8, endpoint=True),
            f"t{n}": rng.uniform(1e-3, 4e-3, channels).astype(np.float32),
            f"u{n}": np.zeros(channels, np.int8),
            f"s{n + 1}": np.array(0.5, np.float32),
            f"z{n + 1}": np.array(0, np.uint8),
        }
        nodes += [
            node("DequantizeLinear", f"w{n} t{n} u{n}", f"v{n}", axis=0),
            node("Conv", f"d{n} v{n}", f"c{n}", kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4),
            node("Relu", f"c{n}", f"r{n}"),
            node("QuantizeLinear", f"r{n} s{n + 1} z{n + 1}", f"q{n + 1}"),
            node("DequantizeLinear", f"q{n + 1} s{n + 1} z{n + 1}", f"d{n + 1}"),
        ]
    return model(nodes, {"x": [1, 16, 14, 14]}, ["d3"], weights), nodes


def theirs(made: ModelProto, inputs: Mapping[str, Array]) -> Array:
    """What ONNX Runtime computes in floats: its sums of two products of bytes saturate where there is no VNNI."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, dict(inputs))[0])


def test_bytes_between_convolutions_lie_along_channels(emulator_environment: Environment):
    made, _ = chain()
    x = np.random.default_rng(1).standard_normal((1, 16, 14, 14)).astype(np.float32)
    (got,), texts = run(made, [x], emulator_environment)
    wanted = theirs(made, {"x": x})
    different = got != wanted
    assert np.abs(got - wanted).max() <= 0.5 and different.mean() < 0.01, "a quantum, where a sum is near a tie"
    kernels = by_tensor_cores(texts)
    # The first one reads the image that the caller gives.
    assert len(kernels) == 3 and [copied(text) == {"shared_a", "shared_b"} for text in kernels] == [False, True, True]


def test_dynamically_quantised_layers(emulator_environment: Environment):
    """As `quantize_dynamic` writes a layer: the zero point is known when the model runs."""
    rng = np.random.default_rng(2)
    weights = {
        # Of larger ones ONNX Runtime's sums of two products saturate where there is no VNNI.
        "w": rng.integers(-64, 63, (64, 96), np.int8, endpoint=True),
        "t": np.array(0.01, np.float32),
        "b": rng.standard_normal(96).astype(np.float32),
    }
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"),
        node("MatMulInteger", "q w z", "m"),
        node("Cast", "m", "f", to=TensorProto.FLOAT),
        node("Mul", "s t", "st"),
        node("Mul", "f st", "u"),
        node("Add", "u b", "y"),
    ]
    made = model(nodes, {"x": [2, 64, 64]}, ["y"], weights)
    x = rng.standard_normal((2, 64, 64)).astype(np.float32)
    (got,), texts = run(made, [x], emulator_environment)
    np.testing.assert_allclose(got, theirs(made, {"x": x}), rtol=1e-5, atol=1e-5)
    (kernel,) = by_tensor_cores(texts)
    assert copied(kernel) == {"shared_a", "shared_b"}


@pytest.mark.parametrize("shape", [(40, 80), (3, 40, 80)], ids=["a matrix", "a batch of matrices"])
def test_dequantised_products(shape: tuple[int, ...], emulator_environment: Environment):
    """Of weights, and of what was quantised in the model as well."""
    rng = np.random.default_rng(3)
    x = rng.integers(0, 255, (3, 64, 40), np.uint8, endpoint=True)
    w = rng.integers(-127, 127, shape, np.int8, endpoint=True)
    weights = {"s": np.array(0.01, np.float32), "z": np.array(100, np.uint8), "w": w, "t": np.array(0.02, np.float32)}
    nodes = [
        node("DequantizeLinear", "x s z", "d"),
        node("DequantizeLinear", "w t", "m"),
        node("MatMul", "d m", "y"),
        node("Transpose", "d", "dt", perm=[0, 2, 1]),
        node("MatMul", "d dt", "squares"),
    ]
    made = model(nodes, {"x": list(x.shape)}, ["y", "squares"], weights, element=TensorProto.UINT8)
    for each in made.graph.output:
        each.type.tensor_type.elem_type = TensorProto.FLOAT
    (y, squares), texts = run(made, [x], emulator_environment)
    less = x.astype(np.int64) - 100
    np.testing.assert_allclose(y, less @ w.astype(np.int64) * 2e-4, rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(squares, less @ np.swapaxes(less, 1, 2) * 1e-4, rtol=1e-5, atol=1e-3)
    assert len(by_tensor_cores(texts)) == 2


def test_products_of_many_terms_stay_in_floats(emulator_environment: Environment):
    """33026 terms of 255 x 255 do not fit i32."""
    terms = 33026
    weights = {
        "s": np.array(0.5, np.float32),
        "w": np.full((terms, 70), 127, np.int8),
        "t": np.array(0.5, np.float32),
    }
    nodes = [
        node("DequantizeLinear", "x s", "d"),
        node("DequantizeLinear", "w t", "m"),
        node("MatMul", "d m", "y"),
    ]
    made = model(nodes, {"x": [64, terms]}, ["y"], weights, element=TensorProto.UINT8)
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    module = import_model(made.SerializeToString())
    lower(treadle_context(), module, GPU)
    assert not by_tensor_cores([unit.text for unit in print_kernels(module)])


def test_a_range_of_batches(emulator_environment: Environment):
    """One artifact for all of them, whose rows are those of each call."""
    rng = np.random.default_rng(4)
    weights = {"w": rng.integers(-127, 127, (32, 80), np.int8, endpoint=True), "z": np.array(7, np.uint8)}
    made = model([node("MatMulInteger", "x w z", "y")], {"x": ["n", 40, 32]}, ["y"], weights, element=TensorProto.UINT8)
    with treadle.compile(made, "sm_80", device="emulator", shapes={"x": [treadle.Dim("n", 1, 3), 40, 32]}) as compiled:
        for n in (1, 3):
            x = rng.integers(0, 255, (n, 40, 32), np.uint8, endpoint=True)
            (got,) = compiled(x)
            np.testing.assert_array_equal(got, (x.astype(np.int32) - 7) @ weights["w"].astype(np.int32))
