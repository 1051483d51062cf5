"""One search for a range against a search for each of some lengths: trials, seconds, and what they find.

    make bench ARGS="--dynamic-tuning --onnx /tmp/models"
    make bench ARGS="--dynamic-tuning --onnx /tmp/models --models dense nt nn --trials 24 --lengths 8"

DietCode's figure 9, and the side "per-T tuning" of its figures 10 and 12, for the layers of
`benchmarks/dynamic_lengths.py`. The joint search times its candidates at `--lengths` lengths, which its weights name;
each separate search has a static model of one of them. Every search has as many trials and seconds, so that the
separate ones have as many times more. Then all artifacts run in turn at each length, with the range's default one and
ONNX Runtime. Measure on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean

from rich.console import Console
from rich.table import Table

import treadle
from benchmarks.arguments import positive
from benchmarks.dynamic_lengths import LAYERS, PEER, Extent, Workload, calls_of, spread_lengths, workload
from benchmarks.machine import describe_run
from benchmarks.result_files import RESULTS, write_results
from treadle.bench.interleave import Times, interleave
from treadle.bench.model import peer_call

JOINT, SEPARATE, DEFAULT = "joint", "per length", "untuned range"
_BATCH_SECONDS = 0.05


@dataclass(frozen=True)
class Search:
    """What searches took: candidates that were timed, and seconds."""

    trials: int
    seconds: float


def main(argv: Sequence[str] | None = None) -> int:
    """Searches, measures, prints and writes."""
    args = _arguments(argv)
    console, circumstances, rows = Console(width=120), describe_run(), list[dict[str, object]]()
    for name in args.models:
        work = workload(name, args.onnx, longest=args.longest)
        lengths = spread_lengths(args.longest, args.lengths)
        with tempfile.TemporaryDirectory() as folder:
            searches, times = _compared(work, lengths, Path(folder), args)
        console.print(table(name, searches, times))
        took = {side: {"trials": each.trials, "seconds": round(each.seconds, 1)} for side, each in searches.items()}
        for length, sides in times.items():
            ms = {side: [round(each * 1e3, 4) for each in found.seconds] for side, found in sides.items()}
            rows.append({"model": name, "length": length, "searches": took, "ms": ms})
    path = write_results("dynamic_tuning", circumstances | {"threads": args.threads}, rows, args.output)
    console.print(f"written to {path}")
    return 0


def table(name: str, searches: Mapping[str, Search], times: Mapping[int, Mapping[str, Times]]) -> Table:
    """A line a length, milliseconds; what the searches took is above them."""
    took = "; ".join(f"{side}: {each.trials} trials, {each.seconds:.0f} s" for side, each in searches.items())
    found = Table(title=f"{name}: {took}")
    sides = list(next(iter(times.values())))
    others = [side for side in sides if side != JOINT]
    for title in ("length", *(f"{side} ms" for side in sides), *(f"{JOINT} / {side}" for side in others)):
        found.add_column(title, justify="right")
    ratios = {side: [each[JOINT].ratios(each[side])[1] for each in times.values()] for side in others}
    for n, (length, each) in enumerate(times.items()):
        medians = (f"{each[side].median * 1e3:.3f}" for side in sides)
        found.add_row(str(length), *medians, *(f"{ratios[side][n]:.3f}" for side in others))
    means = (f"{geometric_mean(ratios[side]):.3f}" for side in others)
    found.add_row("mean", *("" for _ in sides), *means)
    return found


def _compared(
    work: Workload, lengths: Sequence[int], folder: Path, args: argparse.Namespace
) -> tuple[dict[str, Search], dict[int, dict[str, Times]]]:
    """The searches, and the times at each length."""
    symbol = next(e for shape in work.shapes.values() for e in shape if isinstance(e, treadle.Dim))
    step = symbol.multiple
    weights = {symbol.name: dict.fromkeys([length * step for length in lengths], 1.0)}
    joint = _search(work, work.shapes, folder / "joint", args, weights)
    found: dict[int, dict[str, Times]] = {}
    trials, seconds = 0, 0.0
    with ExitStack() as stack:
        compiled = partial(treadle.compile, work.path, "cpu", threads=args.threads, cached=False)
        range_model = stack.enter_context(compiled(shapes=work.shapes, database=folder / "joint"))
        default = stack.enter_context(compiled(shapes=work.shapes))
        for length in lengths:
            inputs = work.inputs(1, length)
            static = {name: array.shape for name, array in inputs.items()}
            search = _search(work, static, folder / str(length), args)
            trials, seconds = trials + search.trials, seconds + search.seconds
            with compiled(shapes=static, database=folder / str(length)) as model:
                sides: dict[str, Callable[[], object]] = {
                    JOINT: partial(range_model.run, inputs), SEPARATE: partial(model.run, inputs),
                    DEFAULT: partial(default.run, inputs), PEER: peer_call(PEER, work.path, inputs, args.threads),
                }  # fmt: skip
                rounds = max(5, int(args.seconds / (_BATCH_SECONDS * len(sides))))
                found[length] = dict(interleave(calls_of(sides), rounds, _BATCH_SECONDS))
    return {JOINT: joint, SEPARATE: Search(trials, seconds)}, found


def _search(
    work: Workload,
    shapes: Mapping[str, Sequence[Extent]],
    folder: Path,
    args: argparse.Namespace,
    weights: Mapping[str, Mapping[int, float]] | None = None,
) -> Search:
    start = time.perf_counter()
    groups = treadle.tune(
        work.path, folder, shapes, seconds=args.search, trials=args.trials, threads=args.threads, weights=weights
    )
    found = Search(sum(group.trials for group in groups), time.perf_counter() - start)
    print(f"{work.name} {folder.name}: {found.trials} trials in {found.seconds:.0f} s", flush=True)
    return found


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure one search for a range against one for each length.")
    parser.add_argument("--models", nargs="+", choices=LAYERS, default=("nt",), metavar="NAME")
    parser.add_argument("--onnx", type=Path, required=True, metavar="DIR", help="where the layers' files go")
    parser.add_argument("--longest", type=positive, default=128, metavar="N", help="of the range (default 128)")
    parser.add_argument("--lengths", type=positive, default=8, metavar="N", help="searches and timings (default 8)")
    parser.add_argument("--trials", type=positive, default=24, metavar="N", help="of each search (default 24)")
    parser.add_argument("--search", type=float, default=30.0, metavar="S", help="seconds of each (default 30)")
    parser.add_argument("--threads", type=positive, default=2, metavar="N", help="threads of all sides (default 2)")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="of timing a length (default 2)")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
