"""How compilation time grows with the model; `python benchmarks/compile_time.py` runs it.

Models of 250 to 4000 nodes (`growing_models.py`) are compiled, each in a process of its own with an empty cache. The
table shows CPU seconds of the process and of the C compiler, which other work on the machine hardly changes, and wall
seconds, which it does. Python's start and imports are not counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
from rich.console import Console
from rich.table import Table

import treadle
from benchmarks.growing_models import GROWING
from benchmarks.machine import ROOT, describe_run
from benchmarks.result_files import RESULTS, write_results

NODES = (250, 1000, 4000)
"""Of each model, unless others are asked for; of softmax, whose kernels are larger, a tenth."""


@dataclass(frozen=True)
class GrowthRow:
    """One model: seconds of CPU (the process's own, the C compiler's) and of wall time.

    ratio: CPU time a node, over that of the smallest model of its kind
    """

    model: str
    nodes: int
    cpu_s: float
    compiler_s: float
    wall_s: float
    ratio: float = 1.0

    @property
    def milliseconds(self) -> float:
        """CPU milliseconds a node, the C compiler's included."""
        return (self.cpu_s + self.compiler_s) / self.nodes * 1e3


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes the table."""
    args = _arguments(argv)
    if args.one:
        print(json.dumps(vars(_measured_here(args.models[0], args.nodes[0], args.target))))
        return 0
    circumstances = describe_run() | {"target": args.target}
    rows = [row for name in args.models for row in growth(name, args.nodes, args.target)]
    entries: list[dict[str, object]] = [{**vars(row), "ms_a_node": round(row.milliseconds, 3)} for row in rows]
    if args.json:
        print(json.dumps(circumstances | {"results": entries}, indent=1))
    else:
        Console().print(growth_table(rows, args.target))
    if args.output is not None:
        path = write_results("compile_growth", circumstances, entries, args.output)
        print(f"written to {path}", file=sys.stderr)
    return 0


def growth(name: str, nodes: Sequence[int], target: str) -> list[GrowthRow]:
    """Compiles models of one kind, each in a process of its own; CalledProcessError if one fails."""
    rows: list[GrowthRow] = []
    for count in nodes:
        row = _measured_alone(name, count // 10 if name == "softmax" else count, target)
        first = rows[0] if rows else row
        rows.append(replace(row, ratio=round(row.milliseconds / first.milliseconds, 3)))
    return rows


def growth_table(rows: Sequence[GrowthRow], target: str) -> Table:
    """One line a model."""
    table = Table(title=f"Compilation for {target} as models grow")
    table.add_column("model", no_wrap=True)
    for title in ("nodes", "Python CPU s", "C compiler CPU s", "wall s", "CPU ms a node", "ratio"):
        table.add_column(title, justify="right")
    for row in rows:
        seconds = (f"{each:.2f}" for each in (row.cpu_s, row.compiler_s, row.wall_s))
        table.add_row(row.model, str(row.nodes), *seconds, f"{row.milliseconds:.2f}", f"{row.ratio:.2f}")
    return table


def _measured_alone(name: str, nodes: int, target: str) -> GrowthRow:
    with tempfile.TemporaryDirectory(prefix="treadle-bench-") as cache:
        command = ["env", f"TREADLE_CACHE_DIR={cache}", sys.executable, "-m", "benchmarks.compile_growth", "--one"]
        command += ["--models", name, "--nodes", str(nodes), "--target", target]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT)
    return GrowthRow(**json.loads(done.stdout))


def _measured_here(name: str, nodes: int, target: str) -> GrowthRow:
    """The model's nodes, and its seconds, once a small model has been compiled."""
    model = GROWING[name](nodes)
    with tempfile.TemporaryDirectory(prefix="treadle-bench-") as folder:
        paths = [Path(folder) / "first.onnx", Path(folder) / "measured.onnx"]
        for each, path in zip((GROWING[name](8), model), paths, strict=True):
            onnx.save(each.proto(), path)
        treadle.compile(paths[0], target=target)
        before, start = _used(), time.perf_counter()
        treadle.compile(paths[1], target=target)
        wall, after = time.perf_counter() - start, _used()
    own, children = (round(b - a, 3) for a, b in zip(before, after, strict=True))
    return GrowthRow(name, len(model.nodes), own, children, round(wall, 3))


def _used() -> tuple[float, float]:
    """CPU seconds so far of this process and of the processes that it has waited for."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure how compilation time grows with the model.")
    parser.add_argument("--models", nargs="+", choices=tuple(GROWING), default=tuple(GROWING), metavar="NAME")
    parser.add_argument("--nodes", nargs="+", type=int, default=NODES, metavar="N", help="sizes, the smallest first")
    parser.add_argument("--target", default="cpu", metavar="NAME", help="what to compile for")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--output", type=Path, nargs="?", const=RESULTS, metavar="DIR", help="write a file, too (benchmarks/results)"
    )
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
