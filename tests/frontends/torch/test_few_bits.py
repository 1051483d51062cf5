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

    def forward(self, x: Any) -> Any:
        weight = (self.numbers.to(x.dtype) - self.zeros.to(x.dtype)) * self.scales.to(x.dtype)
        return torch.nn.functional.linear(x, weight.reshape(OUT, IN))


def agree(module: Any, x: Any) -> treadle.CompiledModel:
    """Compiles a module and compares it with itself in float64, by the length of its sums."""
    model = treadle.compile(module, example_inputs=(x,))
    (got,) = model(x.numpy())
    with torch.no_grad():
        wanted, most = module.double()(x.double()), module(x.double().abs()).abs().max()
    assert (torch.from_numpy(got) - wanted).abs().max() <= IN * 2.0**-24 * max(most, wanted.abs().max()) * 8
    return model


@pytest.mark.parametrize(
    ("low", "high", "zero", "bits"), [(-8, 7, 0, 4), (-8, 7, 3, 4), (-2, 1, 0, 2), (0, 15, 8, 4), (-128, 127, 0, 8)]
)
def test_bytes_hold_as_many_numbers_as_have_room(low: int, high: int, zero: int, bits: int) -> None:
    model = agree(Dequantized(low, high, zero).eval(), torch.randn(1, IN))
    scales = OUT * IN // BLOCK * 4
    assert model.memory.weights <= OUT * IN * bits // 8 + scales + 4096


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
    """Against the quantised module in eager mode: roundings of activations to bytes are the same."""
    quantize = pytest.importorskip("torchao.quantization").quantize_
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(IN, OUT), torch.nn.ReLU(), torch.nn.Linear(OUT, 64)).eval()
    x = torch.randn(3, IN)
    with warnings.catch_warnings(action="ignore"):
        quantize(module, _configurations()[name]())
        program = torch.export.export(module, (x,))
        (got,) = treadle.compile(program)(x.numpy())
        wanted = module(x)
    assert (torch.from_numpy(got) - wanted).abs().max() <= 1e-5 * wanted.abs().max()
