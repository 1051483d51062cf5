"""Models with dynamically quantised weights against their float32 forms, in Treadle and in ONNX Runtime.

    make bench ARGS="--quantized"
    make bench ARGS="--quantized --models minilm --threads 1 --seconds 60"

The models are those of the tests' catalog that multiply by constants; `onnxruntime.quantization.quantize_dynamic` gives
their weights 8 bits, signed. All sides run in one process, a batch of calls of each in turn. The table shows medians,
the median of Treadle's float32 time divided by that of its integers, round by round, and how far both integer forms are
from ONNX Runtime's, as `benchmarks.cpu_peers` says errors. Measure on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

import treadle
from benchmarks.arguments import positive
from benchmarks.cpu_peers import largest_error, results_of
from benchmarks.machine import describe_run
from benchmarks.result_files import RESULTS, write_results
from tests.models.catalog import MODELS, CatalogModel
from treadle.bench.model import OWN, Benchmark, bench_model
from treadle.bench.peers import peer_call

_MODELS = ("minilm",)
_FLOAT, _PEER, _PEER_FLOAT = "treadle f32", "onnxruntime", "onnxruntime f32"


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; 1 if a model is less than `--least` times as fast as in float32."""
    args = _arguments(argv)
    console, circumstances = Console(), describe_run()
    table = Table(title=f"Median latency in ms on the CPU with {args.threads} threads, 8-bit weights, batch 1")
    for title in ("model", OWN, _FLOAT, _PEER, _PEER_FLOAT, "f32 / integers", "quartiles", "error"):
        table.add_column(title, justify="right", no_wrap=title == "model")
    rows: list[dict[str, object]] = []
    slowest = float("inf")
    for name in args.models:
        with tempfile.TemporaryDirectory() as folder:
            result, error = _measured(MODELS[name], Path(folder) / "quantized.onnx", args)
        low, middle, high = result.times[_FLOAT].ratios(result.times[OWN])
        slowest = min(slowest, middle)
        medians = (f"{result.times[side].median * 1e3:.2f}" for side in (OWN, _FLOAT, _PEER, _PEER_FLOAT))
        table.add_row(name, *medians, f"{middle:.3f}", f"{low:.3f} - {high:.3f}", f"{error:.1e}")
        seconds = {side: times.seconds for side, times in result.times.items()}
        ms = {side: [round(each * 1e3, 4) for each in times] for side, times in seconds.items()}
        rows.append({"model": name, "ratio_quartiles": [low, middle, high], "error": error, "ms": ms})
    console.print(table)
    settings = {"threads": args.threads, "seconds": args.seconds}
    console.print(f"written to {write_results('quantized', circumstances | settings, rows, args.output)}")
    return int(slowest < args.least)


def _measured(model: CatalogModel, path: Path, args: argparse.Namespace) -> tuple[Benchmark, float]:
    """The times of all sides, and the error of integers against ONNX Runtime's; writes the model to `path`."""
    quantization = importlib.import_module("onnxruntime.quantization")
    quantization.quantize_dynamic(model.path(), path, weight_type=quantization.QuantType.QInt8)
    inputs, shapes, threads = model.sample_inputs(), model.input_shapes, args.threads
    others = {
        _PEER: peer_call(_PEER, path, inputs, threads),
        _PEER_FLOAT: peer_call(_PEER, model.path(), inputs, threads),
    }
    with (
        treadle.compile(model.path(), "cpu", shapes, threads=threads) as exact,
        treadle.compile(path, "cpu", shapes, threads=threads) as integers,
    ):
        error = largest_error(results_of(integers.run(inputs)), results_of(others[_PEER]()))
        others[_FLOAT] = partial(exact.run, inputs)
        return bench_model(integers, inputs, others, seconds=args.seconds), error


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure dynamically quantised models against their float32 forms.")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=_MODELS, metavar="NAME")
    parser.add_argument("--threads", type=positive, default=2, metavar="N", help="threads of all sides (default 2)")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="for each model (default 20)")
    parser.add_argument("--least", type=float, default=0.0, metavar="RATIO", help="fail if one is smaller")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
