"""The peak memory of the papers' models on the CPU, beside ONNX Runtime's.

    make bench ARGS="--memory --onnx /tmp/models"

Each side runs in a process of its own: it loads the model (Treadle an artifact that was compiled before, ONNX Runtime
the .onnx file with all optimisations), calls it three times, and reports the largest resident set that the kernel saw.
`libraries` is that of a process that only imports NumPy and the side's library. The models are those of
`benchmarks/paper_models.py`, exported to the folder `--onnx` unless they are there; the numbers go to
`benchmarks/results/`. The load of the machine does not change them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import treadle
from benchmarks.arguments import positive
from benchmarks.machine import describe_run
from benchmarks.paper_models import PAPER_MODELS
from benchmarks.result_files import RESULTS, write_results
from benchmarks.tuned_models import exported, shapes_of
from treadle.errors import TreadleError

_REPORT = """
for line in open("/proc/self/status"):
    if line.startswith("VmHWM:"):
        print(int(line.split()[1]) * 1024)
"""
_LIBRARIES = {"treadle": "import numpy, treadle", "onnxruntime": "import numpy, onnxruntime"}
_RUNS = {
    "treadle": """
import sys, numpy, treadle
inputs = dict(numpy.load(sys.argv[2]))
with treadle.load(sys.argv[1], threads=int(sys.argv[3])) as model:
    for _ in range(3):
        model(**inputs)
""",
    "onnxruntime": """
import sys, numpy, onnxruntime
inputs = dict(numpy.load(sys.argv[2]))
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(sys.argv[3])
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
for _ in range(3):
    session.run(None, inputs)
""",
}


@dataclass(frozen=True)
class Peak:
    """The largest resident sets of both sides, in bytes."""

    model: str
    treadle: int
    onnxruntime: int

    @property
    def ratio(self) -> float:
        """Treadle's part of ONNX Runtime's."""
        return self.treadle / self.onnxruntime


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; 1 if a model of Treadle's takes more than `--most` of ONNX Runtime's memory."""
    args = _arguments(argv)
    console, circumstances = Console(), describe_run()
    libraries = {side: _peak(text) for side, text in _LIBRARIES.items()}
    peaks: list[Peak] = []
    for name in args.models:
        peaks.append(_measured(name, exported(name, args.onnx, args.exporter), args.threads))
        console.print(f"{name}: {peaks[-1].ratio:.2f} of ONNX Runtime's memory")
    console.print(memory_table(peaks, libraries, args.threads))
    settings = {"threads": args.threads, "libraries": libraries}
    path = write_results("memory", circumstances | settings, [asdict(peak) for peak in peaks], args.output)
    console.print(f"written to {path}")
    return int(any(peak.ratio > args.most for peak in peaks))


def memory_table(peaks: Sequence[Peak], libraries: dict[str, int], threads: int) -> Table:
    """One line a model, in MiB, below that of processes without a model."""
    table = Table(title=f"Peak resident memory in MiB, {threads} threads, float32, batch 1")
    table.add_column("model", no_wrap=True)
    for title in (*libraries, "treadle / onnxruntime"):
        table.add_column(title, justify="right")
    table.add_row("libraries", *(_mebibytes(each) for each in libraries.values()), "")
    for peak in peaks:
        table.add_row(peak.model, _mebibytes(peak.treadle), _mebibytes(peak.onnxruntime), f"{peak.ratio:.2f}")
    return table


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.0f}"


def _measured(name: str, path: Path, threads: int) -> Peak:
    inputs = PAPER_MODELS[name].inputs
    with tempfile.TemporaryDirectory() as folder:
        artifact, arrays = Path(folder) / "artifact", Path(folder) / "inputs.npz"
        np.savez(arrays, **inputs)  # pyright: ignore[reportArgumentType]  # of savez's flag, which no input is called
        with treadle.compile(path, "cpu", shapes_of(inputs), threads=threads) as model:
            model.save(artifact)
        sources = {"treadle": artifact, "onnxruntime": path}
        found = {side: _peak(text, sources[side], arrays, threads) for side, text in _RUNS.items()}
    return Peak(name, found["treadle"], found["onnxruntime"])


def _peak(program: str, *arguments: object) -> int:
    """Bytes; TreadleError with its last line if the process fails."""
    command = [sys.executable, "-c", program + _REPORT, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise TreadleError(f"a process that measures memory failed: {last}", "--memory", "numpy, treadle, onnxruntime")
    return json.loads(done.stdout.splitlines()[-1])


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the peak memory of the papers' models beside ONNX Runtime's.")
    parser.add_argument("--models", nargs="+", choices=tuple(PAPER_MODELS), default=tuple(PAPER_MODELS), metavar="NAME")
    parser.add_argument("--onnx", type=Path, required=True, metavar="DIR", help="where the .onnx files are, or go")
    parser.add_argument("--exporter", default=sys.executable, metavar="PYTHON", help="what exports missing ones")
    parser.add_argument("--threads", type=positive, default=2, metavar="N", help="threads of both sides (default 2)")
    parser.add_argument("--most", type=float, default=float("inf"), metavar="RATIO", help="fail if a ratio is larger")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
