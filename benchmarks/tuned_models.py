"""Models with tuned schedules against the same models with the default ones, on this machine's processor.

    make bench ARGS="--tuned --onnx /tmp/models --seconds 900"
    make bench ARGS="--tuned --onnx /tmp/models --measure-only --models bert_base --rounds 50"
    make bench ARGS="--tuned --onnx /tmp/models --measure-only --against ../then --python ../then/.venv/bin/python"

The models are those of the papers (`benchmarks/paper_models.py`), exported to the folder `--onnx` unless they are
there; `--exporter` names a Python that has torch, torchvision, transformers and onnxscript. Each is tuned for
`--seconds`, and the schedules go to `benchmarks/tuned/`, with a description of the machine. Then both sides run in one
process, a batch of calls of each in turn. The table shows medians, and the median of the ratios round by round; the raw
numbers go to `benchmarks/results/`. With `--against` the default schedules are those of another version, of which that
is a checkout; it runs in a process of its own, with the interpreter `--python`. Measure on a machine that does nothing
else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import treadle
from benchmarks.arguments import positive
from benchmarks.machine import commit, describe_run
from benchmarks.measure import relative_error
from benchmarks.other_version import Side, other_version
from benchmarks.paper_models import PAPER_MODELS
from benchmarks.result_files import RESULTS, write_results
from treadle.bench.interleave import Run, Times, interleave
from treadle.model import CompiledModel
from treadle.schedules.search.database_files import slug
from treadle.target.host import hardware_of, host_target
from treadle.tuning.model import tune

ROOT = Path(__file__).resolve().parents[1]
TUNED = ROOT / "benchmarks" / "tuned"
NAMES = ("resnet50", "mobilenet_v2", "inception_v3", "bert_base")
Inputs = Mapping[str, NDArray[Any]]
_BATCH_SECONDS = 0.2
_EXPORT = """
import sys
from pathlib import Path
from benchmarks.paper_models import PAPER_MODELS
name, _, form = sys.argv[1].partition("-")
batch = int(form.removeprefix("batch")) if form.startswith("batch") else 1
PAPER_MODELS[name].of_batch(batch).write(Path(sys.argv[2]), dynamic=form == "dynamic")
"""


@dataclass(frozen=True)
class Gain:
    """One model's times with the default and with the tuned schedules, round by round.

    error: the largest difference of an output, divided by the largest magnitude of the default's
    """

    name: str
    default: Times
    tuned: Times
    error: float

    @property
    def ratios(self) -> tuple[float, float, float]:
        """How many times as fast as the default the tuned model is: quartiles of the rounds' ratios."""
        return self.default.ratios(self.tuned)


def main(argv: Sequence[str] | None = None) -> int:
    """Tunes, measures, prints and writes; 1 if a model became slower, or the mean is below `--least`."""
    args = _arguments(argv)
    console, circumstances = Console(), describe_run()
    gains: list[Gain] = []
    for name in args.models:
        path, inputs = exported(name, args.onnx, args.exporter), PAPER_MODELS[name].inputs
        if not args.measure_only:
            console.print(f"{name}: {args.seconds:g} seconds of search")
            tune(path, args.database, shapes_of(inputs), seconds=args.seconds, threads=args.threads, seed=args.seed)
            describe_machine(args.database, circumstances)
        with _default(path, inputs, args) as default:
            gains.append(measure(name, path, inputs, args.database, default, threads=args.threads, rounds=args.rounds))
    console.print(gain_table(gains, args.threads))
    settings = {"threads": args.threads, "rounds": args.rounds, "search_s": None if args.measure_only else args.seconds}
    settings |= {} if args.against is None else {"against": commit(args.against)}
    mean = geometric_mean([gain.ratios[1] for gain in gains])
    rows = [gain_row(gain) for gain in gains]
    path = write_results("tuned_models", circumstances | settings | {"geometric_mean": mean}, rows, args.output)
    console.print(f"written to {path}")
    return int(mean < args.least or any(gain.ratios[1] < 1 for gain in gains))


def exported(name: str, folder: Path, exporter: str) -> Path:
    """The model's file in a folder; another Python writes it, and a file of its weights, if it is not there. A name
    that ends in `-dynamic` is that of a model with any batch and any length, in `-batch8` of one with 8 rows."""
    path = folder / f"{name}.onnx"
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / path.name
        done = subprocess.run([exporter, "-c", _EXPORT, name, str(made)], cwd=ROOT)
        if done.returncode:
            raise SystemExit(f"{exporter} cannot export {name}; put {path.name} into {folder}, or see --exporter")
        for file in sorted(made.parent.iterdir(), key=lambda each: each == made):  # the model after its weights
            file.replace(folder / file.name)
    return path


def shapes_of(inputs: Mapping[str, NDArray[Any]]) -> dict[str, tuple[int, ...]]:
    """The shapes of inputs, by name."""
    return {name: array.shape for name, array in inputs.items()}


def measure(name: str, path: Path, inputs: Inputs, database: Path, default: Side, *, threads: int, rounds: int) -> Gain:
    """Times a model with the default schedules and with those of a database, in turn."""
    with treadle.compile(path, "cpu", shapes_of(inputs), threads=threads, database=database) as model:
        tuned = side_of(model, inputs)
        error = relative_error(tuned.outputs, default.outputs)
        times = interleave({"default": default.run, "tuned": tuned.run}, rounds, _BATCH_SECONDS)
    return Gain(name, times["default"], times["tuned"], error)


@contextmanager
def _default(path: Path, inputs: Inputs, args: argparse.Namespace) -> Generator[Side]:
    """A model with the default schedules: of this version, or of that of `--against`."""
    if args.against is not None:
        with other_version(args.against, path, inputs, args.threads, args.python) as side:
            yield side
        return
    with treadle.compile(path, "cpu", shapes_of(inputs), threads=args.threads) as model:
        yield side_of(model, inputs)


def side_of(model: CompiledModel, inputs: Inputs) -> Side:
    """A compiled model's outputs and calls."""
    ordered = [inputs[tensor.name] for tensor in model.inputs]
    return Side([np.asarray(array) for array in model(*ordered)], calls(model, ordered))


def calls(model: CompiledModel, inputs: Sequence[NDArray[Any]]) -> Run:
    """So many calls of a model."""

    def run(count: int) -> None:
        for _ in range(count):
            model(*inputs)

    return run


def gain_table(gains: Sequence[Gain], threads: int) -> Table:
    """One line a model, milliseconds, and the geometric mean."""
    table = Table(title=f"Median latency in ms on the CPU with {threads} threads, batch 1")
    table.add_column("model", no_wrap=True)
    for title in ("default", "tuned", "ratio", "quartiles", "difference"):
        table.add_column(title, justify="right")
    for each in gains:
        low, middle, high = each.ratios
        times = (f"{side.median * 1e3:.2f}" for side in (each.default, each.tuned))
        table.add_row(each.name, *times, f"{middle:.3f}x", f"{low:.3f} - {high:.3f}", f"{each.error:.1e}")
    table.add_row("geometric mean", "", "", f"{geometric_mean([each.ratios[1] for each in gains]):.3f}x", "", "")
    return table


def gain_row(gain: Gain) -> dict[str, object]:
    """A model's numbers for JSON, in milliseconds; `rounds` are [default, tuned]."""
    pairs = zip(gain.default.seconds, gain.tuned.seconds, strict=True)
    return {
        "model": gain.name,
        "default_ms": round(gain.default.median * 1e3, 4),
        "tuned_ms": round(gain.tuned.median * 1e3, 4),
        "ratio": round(gain.ratios[1], 4),
        "ratio_quartiles": [round(quartile, 4) for quartile in gain.ratios],
        "difference": gain.error,
        "rounds": [[round(default * 1e3, 4), round(tuned * 1e3, 4)] for default, tuned in pairs],
    }


def describe_machine(database: Path, circumstances: Mapping[str, object]) -> None:
    """Writes what the times of a database depend on beside this machine's entries."""
    folder = database / slug(hardware_of(host_target()))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "machine.json").write_text(json.dumps(circumstances, indent=1) + "\n")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure models with tuned schedules against the default ones.")
    parser.add_argument("--models", nargs="+", choices=tuple(PAPER_MODELS), default=NAMES, metavar="NAME", help="which")
    parser.add_argument("--onnx", type=Path, required=True, metavar="DIR", help="where the exported models are, or go")
    parser.add_argument("--exporter", default=sys.executable, metavar="PYTHON", help="a Python with torch")
    parser.add_argument("--database", type=Path, default=TUNED, metavar="DIR", help="default: benchmarks/tuned")
    parser.add_argument("--seconds", type=float, default=900.0, metavar="S", help="of each search (default 900)")
    parser.add_argument("--measure-only", action="store_true", help="search nothing: measure what the database has")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="the default schedules of another version")
    parser.add_argument("--python", default=sys.executable, help="an interpreter for it")
    parser.add_argument("--threads", type=positive, default=2, metavar="N", help="threads of both sides (default 2)")
    parser.add_argument("--rounds", type=positive, default=40, metavar="N", help="batches of each side (default 40)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the search (default 0)")
    parser.add_argument("--least", type=float, default=0.0, metavar="RATIO", help="fail below this geometric mean")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
