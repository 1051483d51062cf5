"""Real models on the CPU against ONNX Runtime and OpenVINO, where they are installed.

    make bench ARGS="--models ppocrv4_rec minilm --rounds 50"
    python benchmarks/run.py --compile

All sides run in one process with the same number of threads, call by call in turn, on the same inputs. The table
shows medians, and the median of the best peer's time divided by Treadle's, round by round, with its geometric mean;
the raw numbers go to `benchmarks/results/`, together with what they depend on. Measure on a machine that does nothing
else.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.arguments import positive
from benchmarks.compile_time import CompileTime, measure_compile
from benchmarks.machine import describe_run
from benchmarks.measure import Latencies, measure_model
from benchmarks.result_files import RESULTS, write_results
from tests.models.catalog import MODELS
from treadle.bench.model import installed_peers
from treadle.errors import TreadleError

NAMES = (
    "ppocrv4_rec",
    "ppocrv4_det",
    "ppocr_cls",
    "ddddocr_det",
    "minilm",
    "light_resnet50",
    "light_squeezenet",
)
"""The models that are measured unless others of the catalog are asked for."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; 1 if the geometric mean is below `--least`."""
    args = _arguments(argv)
    console = Console()
    circumstances = describe_run()
    if args.compile:
        times = [_compile_time(name, args.target) for name in _tracked(args.models, console)]
        console.print(compile_table(times))
        path = write_results("compile_time", circumstances, [vars(each) for each in times], args.output)
        status = 0
    else:
        peers = installed_peers()
        if not peers:
            raise TreadleError("no peer is installed", "bench", "pip install onnxruntime openvino")
        measured = [_latencies(name, list(peers), args) for name in _tracked(args.models, console)]
        console.print(latency_table(measured, args.threads))
        mean = geometric_mean([each.ratio for each in measured])
        settings = {"threads": args.threads, "warmups": args.warmups, "pause_s": args.pause, "peers": peers}
        rows = [latency_row(each) for each in measured]
        path = write_results("cpu_models", circumstances | settings | {"geometric_mean": mean}, rows, args.output)
        status = int(mean < args.least)
    console.print(f"written to {path}")
    return status


def latency_table(measured: Sequence[Latencies], threads: int) -> Table:
    """One line a model, milliseconds, and the geometric mean."""
    table = Table(title=f"Median latency in ms on the CPU with {threads} threads, batch 1")
    table.add_column("model", no_wrap=True)
    sides = list(measured[0].seconds)
    for title in (*sides, "best peer / treadle", "quartiles", "error"):
        table.add_column(title, justify="right")
    for each in measured:
        low, middle, high = each.ratio_quartiles
        table.add_row(
            each.name,
            *(f"{each.median(side) * 1e3:.2f}" for side in sides),
            f"{middle:.3f}",
            f"{low:.3f} - {high:.3f}",
            f"{each.error:.1e}",
        )
    mean = geometric_mean([each.ratio for each in measured])
    table.add_row("geometric mean", *("" for _ in sides), f"{mean:.3f}", "", "")
    return table


def compile_table(times: Sequence[CompileTime]) -> Table:
    """One line a model, seconds."""
    table = Table(title="treadle compile, the whole process")
    for title in ("model", "target"):
        table.add_column(title)
    for title in ("empty cache s", "full cache s"):
        table.add_column(title, justify="right")
    for each in times:
        table.add_row(each.name, each.target, f"{each.cold:.2f}", f"{each.warm:.2f}")
    return table


def latency_row(each: Latencies) -> dict[str, object]:
    """A model's numbers for JSON, in milliseconds of every round."""
    return {
        "model": each.name,
        "best_peer": each.best,
        "ratio": round(each.ratio, 4),
        "ratio_quartiles": [round(quartile, 4) for quartile in each.ratio_quartiles],
        "error": each.error,
        "ms": {side: [round(one * 1e3, 4) for one in taken] for side, taken in each.seconds.items()},
    }


def _latencies(name: str, peers: Sequence[str], args: argparse.Namespace) -> Latencies:
    model = MODELS[name]
    return measure_model(
        name,
        model.path(),
        model.sample_inputs(),
        peers,
        threads=args.threads,
        rounds=args.rounds,
        warmups=args.warmups,
        pause=args.pause,
    )


def _compile_time(name: str, target: str) -> CompileTime:
    model = MODELS[name]
    return measure_compile(name, model.path(), model.input_shapes, target)


def _tracked(names: Sequence[str], console: Console) -> Iterable[str]:
    """The names, with a progress bar on a terminal."""
    return track(names, "measuring", console=console, transient=True, disable=not console.is_terminal)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure real models on the CPU against ONNX Runtime and OpenVINO.")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=NAMES, metavar="NAME", help="which")
    parser.add_argument("--threads", type=positive, default=2, metavar="N", help="threads of all sides (default 2)")
    parser.add_argument("--rounds", type=positive, default=30, metavar="N", help="calls of each side (default 30)")
    parser.add_argument("--warmups", type=positive, default=5, metavar="N", help="rounds before them (default 5)")
    parser.add_argument(
        "--pause", type=float, default=0.05, metavar="S", help="seconds before each call of all sides (default 0.05)"
    )
    parser.add_argument("--least", type=float, default=0.0, metavar="RATIO", help="fail if the mean is smaller")
    parser.add_argument("--compile", action="store_true", help="measure the compiler instead, cold and warm")
    parser.add_argument("--target", default="cpu", metavar="NAME", help="with --compile: what to compile for")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    return parser.parse_args(argv)
