"""Models quantised to floats of 8 bits: the products of tensor cores, emulated with all checks, and all others."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

import treadle
from tests.frontends.onnx.models import node
from tests.helpers.limits import assert_within
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.backends.cuda.printer import print_kernels
from treadle.backends.reference.bound_module import bound_module
from treadle.compiler.pipeline import lower
from treadle.dialects.registry import treadle_context
from treadle.frontends.onnx import import_model
from treadle.target import Target
from treadle.target.options import CompileOptions, Precision
from treadle.tools.treadle_cli import main

Array = NDArray[Any]
HOPPER = Target.parse("sm_90a{multiprocessors=1}")
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
ONNX = {
    E4M3: TensorProto.FLOAT8E4M3FN, E5M2: TensorProto.FLOAT8E5M2, np.float32: TensorProto.FLOAT,
    np.float16: TensorProto.FLOAT16, ml_dtypes.bfloat16: TensorProto.BFLOAT16,
}  # fmt: skip
M, K, N = 200, 272, 144


@dataclass(frozen=True)
class Layer:
    """A product of what is quantised to e4m3, and weights of a type, with a scale for all or for each column.

    element: of activations and scales
    gemm: of weights `[N, K]`; is_input: whether they are an input of the model
    requantized: whether the result is of e4m3, too
    """

    weights: Any = E4M3
    element: Any = np.float32
    columns: bool = True
    gemm: bool = False
    is_input: bool = False
    requantized: bool = False

    @property
    def parameters(self) -> dict[str, Array]:
        """By name."""
        choose = np.random.default_rng(5)
        shape = (N, K) if self.gemm else (K, N)
        scale = (choose.random(N) / 32 + 0.01) if self.columns else np.array(0.02)
        zeros = np.zeros(scale.shape, self.weights)
        found = {"w": choose.standard_normal(shape).astype(self.weights), "sw": scale.astype(self.element), "zw": zeros}
        found |= {"sx": np.array(0.03125, self.element), "zx": np.zeros((), E4M3)}
        return found | {"b": choose.standard_normal(N).astype(self.element), "sy": np.array(0.125, self.element)}

    def proto(self) -> ModelProto:
        """The model."""
        axis: dict[str, Any] = {"axis": 0 if self.gemm else 1} if self.columns else {}
        nodes = [
            node("QuantizeLinear", "x sx zx", "q"),
            node("DequantizeLinear", "q sx zx", "d"),
            node("DequantizeLinear", "w sw zw", "wd", **axis),
            *(
                [node("Gemm", "d wd b", "c", transB=1)]
                if self.gemm
                else [node("MatMul", "d wd", "p"), node("Add", "p b", "c")]
            ),
            node("Relu", "c", "r" if self.requantized else "y"),
            *([node("QuantizeLinear", "r sy zx", "y")] if self.requantized else []),
        ]
        parameters = {name: x for name, x in self.parameters.items() if not (self.is_input and name == "w")}
        tensors = [
            helper.make_tensor(name, ONNX[x.dtype.type], x.shape, np.ascontiguousarray(x).tobytes(), raw=True)
            for name, x in parameters.items()
        ]
        inputs = [helper.make_tensor_value_info("x", ONNX[self.element], [M, K])]
        if self.is_input:
            shape = self.parameters["w"].shape
            inputs.append(helper.make_tensor_value_info("w", ONNX[self.weights], list(shape)))
        element = TensorProto.FLOAT8E4M3FN if self.requantized else ONNX[self.element]
        outputs = [helper.make_tensor_value_info("y", element, [M, N])]
        graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    @property
    def inputs(self) -> list[Array]:
        """Of which some are beyond the largest number of e4m3 times the scale."""
        x = np.random.default_rng(6).standard_normal((M, K)).astype(self.element)
        x[:3, :5] *= np.array(20, self.element)
        return [x, *([self.parameters["w"]] if self.is_input else [])]

    def expected(self) -> Array:
        """By the definition of ONNX, in float64."""
        p = {name: x.astype(np.float64) for name, x in self.parameters.items()}
        x = (self.inputs[0].astype(np.float32) / np.float32(0.03125)).clip(-448, 448).astype(E4M3).astype(np.float64)
        w = p["w"].T if self.gemm else p["w"]
        return np.maximum((x @ w) * p["sx"] * p["sw"] + p["b"], 0)


def printed(layer: Layer, precision: Precision, target: Target = HOPPER) -> tuple[Any, str]:
    """The module as lowered, and the text of its kernels."""
    module = import_model(layer.proto().SerializeToString())
    lower(treadle_context(), module, target, options=CompileOptions(precision=precision))
    return module, "\n".join(unit.text for unit in print_kernels(module))


def on_tensor_cores(text: str) -> list[str]:
    """The operands' types of products of floats of 8 bits."""
    return re.findall(r"  treadle_wgmma<\d+, treadle_(f8\w+), treadle_(f8\w+), 0, 0>\(&", text)


def emulated(layer: Layer, precision: Precision) -> Array:
    module, text = printed(layer, precision)
    weights = "f8E5M2" if layer.weights is E5M2 else "f8E4M3FN"
    assert set(on_tensor_cores(text)) == {("f8E4M3FN", weights)}
    (result,), reports = EmulatedProgram(module).run(layer.inputs)
    assert reports and not [report for report in reports if report.findings]
    return result


CASES: dict[str, tuple[Layer, Precision]] = {
    "scales of columns, bf16": (Layer(), "bf16"),
    "scales of columns, f16": (Layer(), "f16"),
    "one scale, e5m2": (Layer(E5M2, columns=False), "bf16"),
    "Gemm of transposed weights": (Layer(gemm=True), "bf16"),
    "weights that are an input": (Layer(gemm=True, is_input=True), "f16"),
    "a model of bf16": (Layer(element=ml_dtypes.bfloat16), "f32"),
    "a model of f16": (Layer(E5M2, element=np.float16), "f32"),
}


@pytest.mark.parametrize("name", CASES)
def test_products_of_tensor_cores(name: str) -> None:
    """They are as exact as products of operands that are rounded to 16 bits."""
    layer, precision = CASES[name]
    result, expected = emulated(layer, precision), layer.expected()
    (limit,) = bound_module(import_model(layer.proto().SerializeToString()), layer.inputs, precision)
    assert result.shape == expected.shape and result.dtype == layer.element
    assert_within(result, limit, result.dtype, name)
    unit = 2.0**-8 if result.dtype == ml_dtypes.bfloat16 else 2.0**-11 if result.dtype == np.float16 else 2.0**-24
    norm = np.sqrt(np.square(np.float64(layer.parameters["sw"])).max()) * 0.03125 * 448 * np.sqrt(K)
    excess = np.abs(result.astype(np.float64) - expected) - unit * np.abs(expected) - 2.0**-11 * norm
    assert excess.max() <= 0


def test_results_are_quantised_where_they_are_computed() -> None:
    """A result of e4m3 is the neighbour of the exact one at most."""
    layer = Layer(requantized=True)
    result = emulated(layer, "bf16").astype(np.float64)
    exact = (layer.expected() / 0.125).clip(-448, 448)
    quantum = np.maximum(2.0 ** (np.floor(np.log2(np.maximum(exact, 2.0**-6))) - 3), 2.0**-9)
    assert (np.abs(result - exact) <= quantum * 0.6 + 0.05).all()


@pytest.mark.parametrize("precision", ["f32", "tf32"])
def test_products_of_f32_stay(precision: Precision) -> None:
    """Sums of 14 bits are not as exact as they may have to be."""
    _, text = printed(Layer(), precision)
    assert "treadle_f8E4M3FN, " not in text


def test_what_checks_a_model_names_the_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(Layer().proto().SerializeToString())
    found: list[str] = []
    for precision in ("bf16", "f32"):
        assert not main(["check", str(path), "--target", str(HOPPER), "--precision", precision, "--kernels"])
        found.append(capsys.readouterr().out)
    assert "matmul_wgmma" in found[0] and "matmul_simt" not in found[0]
    assert "matmul_simt" in found[1] and "--precision" in found[1]


@pytest.mark.parametrize(
    ("layer", "target"),
    [(Layer(), "sm_80"), (Layer(), "sm_89"), (Layer(), "sm_90"), (Layer(is_input=True), "sm_90a")],
    ids=str,
)
def test_others_are_products_of_16_bits(layer: Layer, target: str) -> None:
    """Without such tensor cores, and where an operand lies across the terms."""
    _, text = printed(layer, "bf16", Target.parse(target))
    assert not on_tensor_cores(text) and ("bfloat16" in text)


@pytest.mark.parametrize("layer", [Layer(), Layer(E5M2, columns=False), Layer(gemm=True)], ids=str)
def test_on_processors(layer: Layer) -> None:
    """Against ONNX Runtime, and NumPy in float64."""
    (result,) = treadle.compile(layer.proto(), target="cpu")(*layer.inputs)
    session = onnxruntime.InferenceSession(layer.proto().SerializeToString(), providers=["CPUExecutionProvider"])
    (other,) = session.run(None, {"x": layer.inputs[0]})
    (limit,) = bound_module(import_model(layer.proto().SerializeToString()), layer.inputs)
    assert_within(result, limit, result.dtype, "Treadle")
    assert_within(np.asarray(other), limit, result.dtype, "ONNX Runtime")
    np.testing.assert_allclose(result, layer.expected(), rtol=1e-5, atol=1e-4)
