"""Quantised models against their float32 forms, in Treadle and in ONNX Runtime.

    make bench ARGS="--quantized"
    make bench ARGS="--quantized --models resnet50 mobilenet_v2 --onnx /tmp/models"
    make bench ARGS="--quantized --models minilm --threads 1 --seconds 60"

Those of the tests' catalog multiply by constants; `onnxruntime.quantization.quantize_dynamic` gives their weights 8
bits, signed. Those of `benchmarks/paper_models.py`, exported to the folder `--onnx` unless they are there (see
`benchmarks.cpu_peers`), are convolutions: `quantize_static` calibrates them with random pictures, in the format with
QuantizeLinear and DequantizeLinear, activations unsigned, weights signed, a scale a channel. All sides run in one
process, a batch of calls of each in turn. The table shows medians, the median of Treadle's float32 time divided by that
of its integers, round by round, and how far Treadle's and ONNX Runtime's integers, and the model in float32, are from
the quantised model in float64, as `benchmarks.cpu_peers` says errors. Products of bytes are exact, but where a rounding
to 8 bits falls the other way an activation changes by a whole step. Measure on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

import treadle
from benchmarks.arguments import positive
from benchmarks.cpu_peers import largest_error, results_of, wide_console
from benchmarks.machine import describe_run
from benchmarks.paper_models import PAPER_MODELS
from benchmarks.result_files import RESULTS, write_results
from benchmarks.tuned_models import exported, shapes_of
from tests.models.catalog import MODELS
from treadle.bench.model import OWN, Benchmark, bench_model, peer_call
from treadle.tools.oracle import Definition

Array = NDArray[Any]
_MODELS = ("minilm",)
_STATIC = ("resnet50", "mobilenet_v2", "inception_v3")
_CALIBRATIONS = 4
"""Random pictures that the ranges of activations are taken from. What a picture shows does not change times."""
_FLOAT, _PEER, _PEER_FLOAT = "treadle f32", "onnxruntime", "onnxruntime f32"
_ERRORS = {"error": OWN, "onnxruntime's": _PEER, "float32's": _PEER_FLOAT}
"""The columns of errors, and whose they are."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; 1 if a model is less than `--least` times as fast as in float32."""
    args = _arguments(argv)
    console, circumstances = wide_console(), describe_run()
    table = Table(title=f"Median latency in ms on the CPU with {args.threads} threads, 8-bit weights, batch 1")
    for title in ("model", OWN, _FLOAT, _PEER, _PEER_FLOAT, "f32 / integers", "quartiles", *_ERRORS):
        table.add_column(title, justify="right", no_wrap=title == "model")
    rows: list[dict[str, object]] = []
    slowest = float("inf")
    for name in args.models:
        with tempfile.TemporaryDirectory() as folder:
            result, errors = _measured(_pair(name, Path(folder), args), args)
        low, middle, high = result.times[_FLOAT].ratios(result.times[OWN])
        slowest = min(slowest, middle)
        medians = (f"{result.times[side].median * 1e3:.2f}" for side in (OWN, _FLOAT, _PEER, _PEER_FLOAT))
        table.add_row(
            name,
            *medians,
            f"{middle:.3f}",
            f"{low:.3f} - {high:.3f}",
            *(f"{errors[side]:.1e}" for side in _ERRORS.values()),
        )
        seconds = {side: times.seconds for side, times in result.times.items()}
        ms = {side: [round(each * 1e3, 4) for each in times] for side, times in seconds.items()}
        rows.append({"model": name, "ratio_quartiles": [low, middle, high], "errors": errors, "ms": ms})
    console.print(table)
    settings = {"threads": args.threads, "seconds": args.seconds}
    console.print(f"written to {write_results('quantized', circumstances | settings, rows, args.output)}")
    return int(slowest < args.least)


@dataclass(frozen=True)
class _Pair:
    """A model in float32, and quantised."""

    path: Path
    quantised: Path
    inputs: Mapping[str, Array]
    shapes: Mapping[str, Sequence[int]]


def _pair(name: str, folder: Path, args: argparse.Namespace) -> _Pair:
    """A model, and what ONNX Runtime makes of it in a folder."""
    quantization = importlib.import_module("onnxruntime.quantization")
    quantised = folder / "quantized.onnx"
    if name in MODELS:
        model = MODELS[name]
        quantization.quantize_dynamic(model.path(), quantised, weight_type=quantization.QuantType.QInt8)
        return _Pair(model.path(), quantised, model.sample_inputs(), model.input_shapes)
    if args.onnx is None:
        raise SystemExit(f"{name}: --onnx names the folder of its file")
    path, inputs = exported(name, args.onnx, args.exporter), PAPER_MODELS[name].inputs
    quantise_statically(path, quantised, inputs)
    return _Pair(path, quantised, inputs, shapes_of(inputs))


def quantise_statically(path: Path, quantised: Path, inputs: Mapping[str, Array]) -> None:
    """Writes a model with QuantizeLinear and DequantizeLinear around its convolutions and products."""
    quantization = importlib.import_module("onnxruntime.quantization")
    shape_inference = importlib.import_module("onnxruntime.quantization.shape_inference")
    prepared = quantised.with_name("prepared.onnx")
    shape_inference.quant_pre_process(path, prepared)
    rng = np.random.default_rng(0)
    pictures = [
        {name: rng.standard_normal(array.shape, np.float32) for name, array in inputs.items()}
        for _ in range(_CALIBRATIONS)
    ]

    class Pictures(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self._left = iter(pictures)

        def get_next(self) -> dict[str, Array] | None:
            return next(self._left, None)

    quantization.quantize_static(
        prepared,
        quantised,
        Pictures(),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
    )


def _measured(pair: _Pair, args: argparse.Namespace) -> tuple[Benchmark, dict[str, float]]:
    """The times of all sides, and errors of three of them against the quantised model in float64."""
    inputs, threads = pair.inputs, args.threads
    others = {
        _PEER: peer_call(_PEER, pair.quantised, inputs, threads),
        _PEER_FLOAT: peer_call(_PEER, pair.path, inputs, threads),
    }
    with (
        treadle.compile(pair.path, "cpu", pair.shapes, threads=threads) as exact,
        treadle.compile(pair.quantised, "cpu", pair.shapes, threads=threads) as integers,
    ):
        sides = {OWN: partial(integers.run, inputs)} | others
        others[_FLOAT] = partial(exact.run, inputs)
        expected = Definition.of_file(pair.quantised, inputs).outputs().values()
        values = [bounded.value for bounded, _ in expected]
        errors = {side: largest_error(results_of(call()), values) for side, call in sides.items()}
        return bench_model(integers, inputs, others, seconds=args.seconds), errors


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure quantised models against their float32 forms.")
    parser.add_argument("--models", nargs="+", choices=(*MODELS, *_STATIC), default=_MODELS, metavar="NAME")
    parser.add_argument("--onnx", type=Path, metavar="DIR", help=f"where {', '.join(_STATIC)} are, or go")
    parser.add_argument("--exporter", default=sys.executable, metavar="PYTHON", help="what exports missing ones")
    parser.add_argument("--threads", type=positive, default=2, metavar="N", help="threads of all sides (default 2)")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="for each model (default 20)")
    parser.add_argument("--least", type=float, default=0.0, metavar="RATIO", help="fail if one is smaller")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
