"""Models and single operators on a GPU, against whatever else is installed there.

    make gpu-bench ARGS="--workloads matmul_1024 minilm --precision f32 f16 --rounds 50"
    python benchmarks/run.py --gpu --workloads softmax_4096x1024

All sides of a workload take turns within one run, a batch of runs each, on the same inputs, which stay on the device.
The table shows Treadle's median time and the median of the ratios round by round; a ratio below 1 says that Treadle is
faster. The numbers go to `benchmarks/results/`, with what they depend on. A side that is not installed is left out with
one line; without a GPU there is one line and nothing else.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.arguments import positive
from benchmarks.gpu_peers import MAKERS, TREADLE, Maker, Peer, PeerMissing, difference
from benchmarks.gpu_workloads import WORKLOADS, Workload
from benchmarks.machine import describe_gpu, describe_run
from benchmarks.result_files import RESULTS, write_results
from treadle.backends.cuda.gpu_probe import why_no_gpu
from treadle.bench.interleave import Times, interleave
from treadle.errors import TreadleError
from treadle.target.options import PRECISIONS


@dataclass(frozen=True)
class Measured:
    """One workload's times by side, Treadle's among them, and who was left out and why."""

    workload: Workload
    times: Mapping[str, Times]
    graphed: Mapping[str, bool]
    differences: Mapping[str, float | None]
    """Of a side's results from Treadle's."""
    missing: Mapping[str, str] = field(default_factory=dict[str, str])
    precision: str = "f32"


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; 0 where there is no GPU, too, and 1 where Treadle fails on a workload."""
    args = _arguments(argv)
    reason = why_no_gpu()
    if reason is not None:
        print(f"gpu-bench skipped: {reason}")
        return 0
    console = Console()
    circumstances = describe_run() | describe_gpu()
    settings = {"rounds": args.rounds, "batch_ms": args.batch_ms}
    pairs = [(name, precision) for precision in args.precision for name in args.workloads]
    makers = {name: MAKERS[name] for name in (TREADLE, *(name for name in args.peers if name != TREADLE))}
    chosen = track(pairs, "measuring", console=console, transient=True, disable=not console.is_terminal)
    device, measured = str(circumstances["gpu"]), list[Measured]()
    path: Path | None = None
    for name, precision in chosen:
        measured.append(_measure_or_say_why(WORKLOADS[name], makers, args.rounds, args.batch_ms * 1e-3, precision))
        # What was measured stays, whatever becomes of the next.
        rows = [row(each) for each in measured]
        path = write_results(f"gpu-{slug(device)}", circumstances | settings, rows, args.output)
    for line in notices(measured):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(table(measured, device))
    console.print(f"written to {path}")
    return int(any(TREADLE in each.missing for each in measured))


def _measure_or_say_why(
    workload: Workload, makers: Mapping[str, Maker], rounds: int, batch_seconds: float, precision: str
) -> Measured:
    """`measure`; a workload that fails, in whatever way, is left out with the reason, and the others are measured."""
    try:
        return measure(workload, makers, rounds, batch_seconds, precision)
    except Exception as error:  # the other sides raise what they like
        said = str(error) if isinstance(error, TreadleError) else f"{type(error).__name__}: {error}"
        return Measured(workload, {}, {}, {}, {TREADLE: f"{workload.name}: {said}"}, precision)


def measure(
    workload: Workload, makers: Mapping[str, Maker], rounds: int, batch_seconds: float, precision: str = "f32"
) -> Measured:
    """Makes every side that there is ready and lets them take turns.

    Raises what Treadle raises; another side that cannot take part is left out, and so is a model that nothing here can
    write.
    """
    peers: dict[str, Peer] = {}
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="treadle-bench-") as scratch:
        try:
            path = workload.write(Path(scratch))
        except ImportError as error:
            return Measured(workload, {}, {}, {}, {workload.name: str(error)}, precision)
        try:
            for name, make in makers.items():
                try:
                    peers[name] = make(workload, path, precision)
                except PeerMissing as reason:
                    missing[name] = str(reason)
            times = interleave({name: peer.run for name, peer in peers.items()}, rounds, batch_seconds)
            return Measured(
                workload,
                times,
                {name: peer.graphed for name, peer in peers.items()},
                {name: difference(peer.outputs, peers[TREADLE].outputs) for name, peer in peers.items()},
                missing,
                precision,
            )
        finally:
            for peer in peers.values():
                peer.close()


def notices(measured: Sequence[Measured]) -> list[str]:
    """One line for each side and reason for which it was left out."""
    reasons = {(name, reason): None for each in measured for name, reason in each.missing.items()}
    return [f"{name} is left out: {reason}" for name, reason in reasons]


def table(measured: Sequence[Measured], device: str) -> Table:
    """One line a workload: microseconds, and ratios of time."""
    result = Table(title=f"Median time on {device}, batch 1; below 1: Treadle is faster")
    result.add_column("workload", no_wrap=True)
    result.add_column("precision")
    result.add_column("Treadle µs", justify="right")
    result.add_column("quartiles", justify="right")
    others = list(dict.fromkeys(name for each in measured for name in each.times if name != TREADLE))
    for name in others:
        result.add_column(f"/ {name}", justify="right")
    for each in measured:
        if TREADLE not in each.times:
            continue
        ours = each.times[TREADLE]
        low, middle, high = (1e6 * seconds for seconds in ours.quartiles)
        ratios = [_ratio(ours, each.times.get(name)) for name in others]
        result.add_row(each.workload.name, each.precision, f"{middle:.1f}", f"{low:.1f} - {high:.1f}", *ratios)
    return result


def _ratio(ours: Times, theirs: Times | None) -> str:
    if theirs is None:
        return "-"
    low, middle, high = ours.ratios(theirs)
    return f"{middle:.2f} ({low:.2f} - {high:.2f})"


def row(each: Measured) -> dict[str, object]:
    """A workload's numbers for JSON, times in microseconds."""
    sides = _sides(each) if each.times else {}
    about: dict[str, object] = {"workload": each.workload.name, "kind": each.workload.kind, "precision": each.precision}
    return about | {"sides": sides, "missing": dict(each.missing)}


def _sides(each: Measured) -> dict[str, object]:
    ours = each.times[TREADLE]
    return {
        name: {
            "median_us": round(times.median * 1e6, 3),
            "quartiles_us": [round(seconds * 1e6, 3) for seconds in times.quartiles],
            "treadle_ratio": [round(ratio, 4) for ratio in ours.ratios(times)],
            "runs_of_a_batch": times.repeats,
            "cuda_graph": each.graphed[name],
            "difference": each.differences[name],
            "rounds_us": [round(seconds * 1e6, 3) for seconds in times.seconds],
        }
        for name, times in each.times.items()
    }


def slug(device: str) -> str:
    """A device's name as part of a file's name: `NVIDIA A100-SXM4-80GB` becomes `a100-sxm4-80gb`."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower().replace("nvidia", "")).strip("-") or "unknown"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure models and operators on a GPU against what is installed.")
    parser.add_argument(
        "--workloads", nargs="+", choices=tuple(WORKLOADS), default=tuple(WORKLOADS), metavar="NAME", help="which"
    )
    parser.add_argument(
        "--peers", nargs="+", choices=tuple(MAKERS), default=tuple(MAKERS), metavar="NAME", help=", ".join(MAKERS)
    )
    parser.add_argument(
        "--precision", nargs="+", choices=PRECISIONS, default=("f32",), metavar="P", help=", ".join(PRECISIONS)
    )
    parser.add_argument("--rounds", type=positive, default=30, metavar="N", help="batches of each side (default 30)")
    parser.add_argument(
        "--batch-ms", type=positive, default=5, metavar="MS", help="how long a batch of runs takes (default 5)"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
