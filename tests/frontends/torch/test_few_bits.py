"""Weights of few bits as PyTorch has them: as torchao's programs compute with them, and torchao's own where it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import treadle  # noqa: E402

IN, OUT, BLOCK = 256, 96, 32


class Dequantized(torch.nn.Module):  # type: ignore[misc]
    """A product by a matrix of numbers of few bits, each in a byte, with a scale and a zero point for each block."""

    def __init__(self, low: int, high: int, zero: int):
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        numbers = torch.randint(low, high + 1, (OUT, IN // BLOCK, BLOCK), dtype=torch.int8, generator=draw)
        self.register_buffer("numbers", numbers)
        self.register_buffer("scales", torch.rand(OUT, IN // BLOCK, 1, generator=draw) + 0.5)
        self.register_buffer("zeros", torch.full((OUT, IN // BLOCK, 1), zero, dtype=torch.int8))

    def weight(self, dtype: Any) -> Any:
        """The matrix, each element a product of two numbers of a type."""
        numbers = self.numbers.to(dtype) - self.zeros.to(dtype)
        return (numbers * self.scales.to(dtype)).reshape(OUT, IN)

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.linear(x, self.weight(x.dtype))


def assert_within_sums(found: Any, wanted: Any, magnitudes: Any, terms: int) -> None:
    """A rounding for each term of a sum in float32, and two for the term, of the sum of the magnitudes."""
    assert (torch.from_numpy(found) - wanted).abs().le((terms + 2) * 2.0**-24 * magnitudes).all()


@pytest.mark.parametrize(
    ("low", "high", "zero", "bits"), [(-8, 7, 0, 4), (-8, 7, 3, 4), (-2, 1, 0, 2), (0, 15, 8, 4), (-128, 127, 0, 8)]
)
def test_bytes_hold_as_many_numbers_as_have_room(low: int, high: int, zero: int, bits: int) -> None:
    module, x = Dequantized(low, high, zero).eval(), torch.randn(1, IN)
    model = treadle.compile(module, example_inputs=(x,))
    (found,) = model(x.numpy())
    weight, exact = module.weight(torch.float64), x.double()
    assert_within_sums(found, exact @ weight.T, exact.abs() @ weight.abs().T, IN)
    # Zero points of 0 vanish; others become floats, as scales are.
    of_blocks = OUT * IN // BLOCK * 4 * (1 if zero == 0 else 2)
    assert model.memory.weights <= OUT * IN * bits // 8 + of_blocks


def _configurations() -> dict[str, Callable[[], Any]]:
    """torchao's ways to quantise that run on a CPU."""
    q = pytest.importorskip("torchao.quantization")
    blocks = pytest.importorskip("torchao.quantization.granularity").PerGroup(BLOCK)
    return {
        "int8": lambda: q.Int8WeightOnlyConfig(),
        "int4": lambda: q.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=blocks),
        "int2": lambda: q.IntxWeightOnlyConfig(weight_dtype=torch.int2, granularity=blocks),
        "int8 activations": lambda: q.Int8DynamicActivationInt8WeightConfig(),
        "int8 activations, int4": lambda: q.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=blocks
        ),
        "float8": lambda: q.Float8WeightOnlyConfig(),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int8", "int4", "int2", "int8 activations", "int8 activations, int4", "float8"])
def test_torchao(name: str) -> None:
    """Against the quantised module in eager mode, whose sums are in float32, too; roundings to bytes are the same."""
    quantize = pytest.importorskip("torchao.quantization").quantize_
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(IN, OUT), torch.nn.ReLU(), torch.nn.Linear(OUT, 64)).eval()
    # Of the floats that are quantised, which the numbers exceed by half a step at most.
    layers = [(layer.weight.detach().double().abs(), layer.bias.detach().double().abs()) for layer in module[::2]]
    x = torch.randn(3, IN)
    magnitudes = x.double().abs()
    for weight, bias in layers:
        magnitudes = magnitudes @ weight.T + bias
    with warnings.catch_warnings(action="ignore"):
        quantize(module, _configurations()[name]())
        program = torch.export.export(module, (x,))
        (found,) = treadle.compile(program)(x.numpy())
        wanted = module(x)
    assert_within_sums(found, wanted, 2 * magnitudes.float(), IN + OUT)
