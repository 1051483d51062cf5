"""The papers' models on the CPU against ONNX Runtime and OpenVINO: Hidet's figures 16 and, of several batches, 20.

    make bench ARGS="--peers --onnx /tmp/models"
    make bench ARGS="--peers --onnx /tmp/models --models resnet50 --threads 1 --seconds 60"
    make bench ARGS="--peers --onnx /tmp/models --precision bf16"
    make bench ARGS="--peers --onnx /tmp/models --models resnet50 --batch 1 4 8"
    make bench ARGS="--peers --onnx /tmp/models --models resnet50 inception_v3 --convolution winograd4"

The models are those of `benchmarks/paper_models.py`, exported to the folder `--onnx` unless they are there, for a
batch of 8 as `NAME-batch8.onnx`; `--exporter` names a Python that has torch, torchvision, transformers and onnxscript.
All sides run in one process, float32, several calls of each in turn. With `--precision bf16` Treadle and OpenVINO
round to bfloat16; with `--convolution winograd4` Treadle may be less exact, too. The errors of all sides are shown
then: the root of the mean square of an output's differences from ONNX Runtime's float32, divided by that of the
output. The table shows medians, and the median of the best peer's time divided by Treadle's, round by round; the raw
numbers go to `benchmarks/results/`. Measure on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import treadle
from benchmarks.arguments import positive
from benchmarks.machine import describe_run
from benchmarks.measure import results_of
from benchmarks.paper_models import PAPER_MODELS
from benchmarks.result_files import RESULTS, write_results
from benchmarks.tuned_models import exported, shapes_of
from treadle.bench.model import OWN, Benchmark, bench_model, installed_peers, peer_call
from treadle.errors import TreadleError
from treadle.target.options import CONVOLUTIONS, CompileOptions

Array = NDArray[Any]
DEFAULT = CompileOptions.convolution
_THREADS = 2
_WIDTH = 150  # of what is written to a file: with a narrow terminal's width the errors would be cut


@dataclass(frozen=True)
class Race:
    """One model's times beside its peers'."""

    name: str
    result: Benchmark
    errors: Mapping[str, float] = field(default_factory=dict[str, float])
    """The largest of an output, by side, where it was asked for."""

    @property
    def best(self) -> str:
        """The peer with the smallest median."""
        peers = {name: times.median for name, times in self.result.times.items() if name != OWN}
        return min(peers, key=lambda name: peers[name])

    @property
    def ratios(self) -> tuple[float, float, float]:
        """How many times as fast as the best peer Treadle is: quartiles of the rounds' ratios."""
        return self.result.times[self.best].ratios(self.result.times[OWN])


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes, one batch after another; 1 if a geometric mean is below `--least`."""
    args = _arguments(argv)
    console, peers = wide_console(), installed_peers()
    if not peers:
        raise TreadleError("no peer is installed", "--peers", "pip install onnxruntime openvino")
    means = [_raced(batch, peers, args, console) for batch in args.batch]
    return int(min(means) < args.least)


def _raced(batch: int, peers: Mapping[str, str], args: argparse.Namespace, console: Console) -> float:
    """Measures all models with a batch, prints and writes; the geometric mean of their ratios."""
    circumstances = describe_run()
    races: list[Race] = []
    for name in args.models:
        path = exported(name if batch == 1 else f"{name}-batch{batch}", args.onnx, args.exporter)
        races.append(_measured(path, name, batch, list(peers), args))
        console.print(f"{name}: {races[-1].ratios[1]:.3f} of {races[-1].best}'s speed")
    console.print(race_table(races, args.threads, args.precision, batch, args.convolution))
    mean = geometric_mean([race.ratios[1] for race in races])
    settings = {
        "precision": args.precision,
        "convolution": args.convolution,
        "batch": batch,
        "threads": args.threads,
        "seconds": args.seconds,
        "peers": peers,
        "geometric_mean": mean,
    }
    rows = [race_row(race) for race in races]
    path = write_results(_file_name(batch, args), circumstances | settings, rows, args.output)
    console.print(f"written to {path}")
    return mean


def race_table(
    races: Sequence[Race], threads: int, precision: str = "f32", batch: int = 1, convolution: str = DEFAULT
) -> Table:
    """One line a model, milliseconds, errors if there are any, and the geometric mean."""
    way = "" if convolution == DEFAULT else f", {convolution}"
    table = Table(title=f"Median latency in ms on the CPU with {threads} threads, {precision}, batch {batch}{way}")
    sides = list(dict.fromkeys(name for race in races for name in race.result.times))
    table.add_column("model", no_wrap=True)
    wrong = list(dict.fromkeys(name for race in races for name in race.errors))
    for title in (*sides, "best peer / treadle", "quartiles", *(f"error of {side}" for side in wrong)):
        table.add_column(title, justify="right")
    for race in races:
        low, middle, high = race.ratios
        times = (f"{race.result.times[side].median * 1e3:.2f}" for side in sides)
        errors = (f"{race.errors[side]:.1e}" for side in wrong)
        table.add_row(race.name, *times, f"{middle:.3f}", f"{low:.3f} - {high:.3f}", *errors)
    mean = geometric_mean([race.ratios[1] for race in races])
    table.add_row("geometric mean", *("" for _ in sides), f"{mean:.3f}", "")
    return table


def race_row(race: Race) -> dict[str, object]:
    """A model's numbers for JSON: milliseconds of every round, and of its kernels."""
    row: dict[str, object] = {
        "model": race.name,
        "best_peer": race.best,
        "ratio_quartiles": [round(ratio, 4) for ratio in race.ratios],
        "ms": {name: [round(each * 1e3, 4) for each in times.seconds] for name, times in race.result.times.items()},
        "peak_gflops": round(race.result.peaks.operations / 1e9, 1),
        "peak_gb_s": round(race.result.peaks.bandwidth / 1e9, 1),
        "kernels_us": {kernel.name: round(kernel.seconds * 1e6, 1) for kernel in race.result.kernels},
    }
    return row | {"errors": dict(race.errors)} if race.errors else row


def _measured(path: Path, name: str, batch: int, peers: Sequence[str], args: argparse.Namespace) -> Race:
    inputs, precision = PAPER_MODELS[name].of_batch(batch).inputs, args.precision
    others = {peer: peer_call(peer, path, inputs, args.threads, precision) for peer in peers}
    choices = {"database": args.database, "precision": precision, "convolution": args.convolution}
    with treadle.compile(path, "cpu", shapes_of(inputs), threads=args.threads, **choices) as model:
        errors: dict[str, float] = {}
        if precision != "f32" or args.convolution != DEFAULT:
            exact = results_of(peer_call("onnxruntime", path, inputs, args.threads)())
            sides = {OWN: lambda: model.run(inputs), **others}
            errors = {side: largest_error(results_of(call()), exact) for side, call in sides.items()}
        return Race(name, bench_model(model, inputs, others, seconds=args.seconds), errors)


def _file_name(batch: int, args: argparse.Namespace) -> str:
    """What other settings than the defaults are measured; of threads, too, only others than 2 are named."""
    named = [args.precision] if args.precision != "f32" else []
    named += [args.convolution] if args.convolution != DEFAULT else []
    named += [f"batch{batch}"] if batch != 1 else []
    named += [f"threads{args.threads}"] if args.threads != _THREADS else []
    return "_".join(["cpu_peers", *named])


def wide_console() -> Console:
    """As wide as the terminal, or wide enough for all columns."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH)


def largest_error(results: Sequence[Array], exact: Sequence[Array]) -> float:
    """The largest root of a mean square of an output's differences, divided by the output's."""
    pairs = ((got.astype(np.float64), right.astype(np.float64)) for got, right in zip(results, exact, strict=True))
    return max(float(np.sqrt(np.mean((got - right) ** 2) / np.mean(right**2))) for got, right in pairs)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the papers' models against ONNX Runtime and OpenVINO.")
    parser.add_argument("--models", nargs="+", choices=tuple(PAPER_MODELS), default=tuple(PAPER_MODELS), metavar="NAME")
    parser.add_argument("--onnx", type=Path, required=True, metavar="DIR", help="where the .onnx files are, or go")
    parser.add_argument("--exporter", default=sys.executable, metavar="PYTHON", help="what exports missing ones")
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32", help="of Treadle and OpenVINO")
    parser.add_argument("--convolution", choices=CONVOLUTIONS, default=DEFAULT, help=f"Treadle's (default {DEFAULT})")
    parser.add_argument(
        "--batch", type=positive, nargs="+", default=[1], metavar="N", help="rows of all inputs, in turn (default 1)"
    )
    parser.add_argument("--database", type=Path, metavar="DIR", help="tuned schedules; default: none")
    parser.add_argument("--threads", type=positive, default=_THREADS, metavar="N", help="of all sides (default 2)")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="for each model (default 20)")
    parser.add_argument("--least", type=float, default=0.0, metavar="RATIO", help="fail if the mean is smaller")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
