"""What compiling a language model costs: CPU seconds, resident memory, bytes that are written.

    python -m benchmarks.language_compile --models DIR
    python -m benchmarks.language_compile --models DIR f32 int4 --layers 4

Each form of weights is compiled in a process of its own with an empty cache, for prompts of up to 512 tokens and a past
of up to 2048. CPU seconds are those of that process and of the C compilers; the peak of resident memory counts the
mapped pages of files, too. The raw numbers go to `benchmarks/results/`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from benchmarks.arguments import positive
from benchmarks.language_models import Decoder
from benchmarks.language_own import CHOSEN, Own
from benchmarks.machine import describe_run
from benchmarks.result_files import RESULTS, write_results

_MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """One compilation; bytes of the model's weights, of the most resident memory, and of the artifact's weights."""

    kind: str
    cpu_seconds: float
    seconds: float
    model: int
    peak: int
    stored: int


def main(argv: Sequence[str] | None = None) -> None:
    """Compiles each kind in its own process."""
    parser = argparse.ArgumentParser(description="What compiling a language model costs.")
    parser.add_argument("kinds", nargs="*", default=list(CHOSEN), help=", ".join(CHOSEN))
    parser.add_argument("--models", type=Path, required=True, help="where models are written, and found again")
    parser.add_argument("--layers", type=positive, default=Decoder.layers)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--one", metavar="KIND", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    model = Decoder(layers=args.layers).write(args.models)
    if args.one is not None:
        print(json.dumps(asdict(_compiled(model, args.one))))
        return
    rows: list[Row] = []
    command = [sys.executable, "-m", "benchmarks.language_compile", "--models", str(args.models)]
    command += ["--layers", str(args.layers)]
    table = Table(
        "weights", "CPU s", "s", "model MiB", "peak MiB", "peak / model", "artifact MiB", title=model.parent.name
    )
    for kind in args.kinds:
        with TemporaryDirectory(dir=args.models) as cache:
            done = subprocess.run(
                ["env", f"TREADLE_CACHE_DIR={cache}", *command, "--one", kind],
                check=True, capture_output=True, text=True,
            )  # fmt: skip
        row = Row(**json.loads(done.stdout.splitlines()[-1]))
        rows.append(row)
        sizes = [f"{size / _MIB:.0f}" for size in (row.model, row.peak, row.stored)]
        ratio = f"{row.peak / row.model:.2f}"
        table.add_row(kind, f"{row.cpu_seconds:.1f}", f"{row.seconds:.1f}", *sizes[:2], ratio, sizes[2])
    Console().print(table)
    results = [{"layers": args.layers, **asdict(row)} for row in rows]
    print(f"written to {write_results('language_compile', describe_run(), results, args.output)}")


def _compiled(model: Path, kind: str) -> Row:
    start = time.perf_counter()
    own = Own(str(model), kind, 1, 512, 2048)
    seconds = time.perf_counter() - start
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(each.ru_utime + each.ru_stime for each in used)
    weights = sum(path.stat().st_size for path in model.parent.glob("*.data"))
    return Row(kind, cpu, seconds, weights, _peak(), own.memory.weights)


def _peak() -> int:
    """Of this process since it started its program: `ru_maxrss` is inherited from the one that started it."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main()
