"""Every schedule of every template's space on a GPU: is the one that is chosen without a search a good one?

    python benchmarks/run.py --gpu-spaces [--case NAME ...] [--seconds 600] [--rounds 20]

The anchors are those of `docs/schedules.md`. Each space is compiled by processes, then its kernels take turns on the
device, timed by its events: *cold* after the L2 cache was overwritten, *warm* in a row. The table says where the
default stands; the numbers of every schedule go to `benchmarks/results/`, anchor by anchor, so that a run that is
stopped, or limited by `--seconds`, goes on where it was as long as the commit is the same. Without a GPU there is one
line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from xdsl.dialects.builtin import TensorType

from benchmarks.gpu import slug
from benchmarks.machine import describe_gpu, describe_run
from benchmarks.result_files import RESULTS, write_results
from benchmarks.schedule_cases import Case, cases, group_of
from benchmarks.space_kernels import space_kernels
from benchmarks.space_times import FLUSH, Bench, Timed, time_kernels
from treadle.backends.cuda.compiler import compile_cubin
from treadle.backends.cuda.driver import Driver
from treadle.backends.cuda.gpu_probe import why_no_gpu
from treadle.backends.cuda.open_driver import open_driver
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.environment import available_cores
from treadle.errors import TreadleError
from treadle.target import Target

Array = NDArray[Any]
Row = dict[str, Any]
_MIB = 1 << 20


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; 0 where there is no GPU, too, and 1 where the device failed on a case."""
    args = _arguments(argv)
    reason = why_no_gpu()
    if reason is not None:
        print(f"gpu-spaces skipped: {reason}")
        return 0
    console = Console()
    circumstances = describe_run() | describe_gpu()
    circumstances |= {"rounds": args.rounds, "flush_mib": args.flush_mib}
    what = f"gpu-spaces-{slug(str(circumstances['gpu']))}"
    done = {} if args.fresh else rows_of(args.output, what, str(circumstances["commit"]))
    rows = {name: done[name] for name in args.case if name in done}
    flush: bytes | None = None
    deadline = time.monotonic() + args.seconds

    def measure(name: str) -> None:
        nonlocal flush
        budget = (deadline - time.monotonic()) / (len(args.case) - len(rows))
        # A context of its own: the next case works, whatever a kernel of this one has broken.
        with closing(open_driver()) as driver:
            target = Target.for_capability(*driver.capability)
            flush = flush or compile_cubin(FLUSH, target).image
            rows[name] = _row(cases()[name], target, driver, flush, args, budget)
        write_results(what, circumstances, [rows[each] for each in args.case if each in rows], args.output)

    left = _each([name for name in args.case if name not in rows], measure, deadline)
    console.print(table([rows[name] for name in args.case if name in rows], str(circumstances["gpu"])))
    for name, row in rows.items():
        if "error" in row:
            console.print(f"{name}: {row['error']}", soft_wrap=True, highlight=False)
    if left:
        console.print(
            f"not measured within {args.seconds:g} s: {', '.join(left)}; run it again to go on", soft_wrap=True
        )
    return int(any("error" in row for row in rows.values()))


def _row(case: Case, target: Target, driver: Driver, flush: bytes, args: argparse.Namespace, seconds: float) -> Row:
    """The numbers of one space; where the device failed, the error instead."""
    try:
        with _bench(driver, case, flush, args.flush_mib * _MIB) as bench:
            return measured(case, target, bench, args.workers, args.rounds, seconds)
    except TreadleError as error:
        empty: Row = {"case": case.name, "template": case.default(target).template.data, "target": target.name}
        return empty | {"size": 0, "schedules": [], "failed": [], "error": str(error)}


def measured(case: Case, target: Target, bench: Bench, workers: int, rounds: int, seconds: float) -> Row:
    """The numbers of one space, for JSON; times in microseconds."""
    timed, failed = time_kernels(bench, space_kernels(case, target, workers), rounds, seconds)
    return {
        "case": case.name,
        "template": case.default(target).template.data,
        "target": target.name,
        "size": len(timed) + len(failed),
        "schedules": [_schedule(each) for each in timed],
        "failed": [{"choices": dict(each.choices), "error": each.error} for each in failed],
    }


def _schedule(timed: Timed) -> Row:
    kernel = timed.kernel
    return {
        "choices": dict(kernel.choices),
        "cold_us": round(timed.median_cold * 1e6, 3),
        "warm_us": round(timed.median_warm * 1e6, 3),
        "rounds": len(timed.cold),
        "registers": kernel.registers,
        "spills": kernel.spills,
        "difference": timed.difference,
    }


def standing(row: Row, kind: str) -> tuple[int, float]:
    """The rank of the default, the first schedule of a row, from 1; and its time divided by the best's.

    kind: "cold_us" or "warm_us"
    """
    default, *others = (schedule[kind] for schedule in row["schedules"])
    return 1 + sum(each < default for each in others), default / min([default, *others])


def table(rows: Sequence[Row], device: str) -> Table:
    """One line a space."""
    result = Table(title=f"Schedules on {device}: the default among all of its space")
    result.add_column("anchor")
    result.add_column("template")
    for heading in ("default cold µs", "rank", "/ best", "default warm µs", "rank", "/ best", "difference"):
        result.add_column(heading, justify="right")
    for row in rows:
        if not row["schedules"]:
            why = "failed" if "error" in row else f"none of {row['size']} compiles"
            result.add_row(row["case"], row["template"], why)
            continue
        cells: list[str] = []
        for kind in ("cold_us", "warm_us"):
            rank, ratio = standing(row, kind)
            cells += [f"{row['schedules'][0][kind]:.1f}", f"{rank} of {row['size']}", f"{ratio:.2f}"]
        worst = max(schedule["difference"] for schedule in row["schedules"])
        result.add_row(row["case"], row["template"], *cells, f"{worst:.1e}")
    return result


def rows_of(folder: Path, what: str, commit: str) -> Mapping[str, Row]:
    """What a run of the same commit has written, by the anchor's name; nothing for a tree with changes."""
    found: dict[str, Row] = {}
    for path in sorted(folder.glob(f"{what}-????-??-??.json")):
        content = json.loads(path.read_text())
        if content["commit"] == commit and not commit.endswith("with changes"):
            found |= {row["case"]: row for row in content["results"]}
    return found


def _each(names: Sequence[str], measure: Callable[[str], None], deadline: float) -> list[str]:
    """Measures one anchor after the other, and returns those for which there was no time."""
    for n, name in enumerate(names):
        if time.monotonic() >= deadline:
            return list(names[n:])
        measure(name)
    return []


def _bench(driver: Driver, case: Case, flush: bytes, flush_bytes: int) -> Bench:
    """The case's operands, normally distributed, on the device."""
    inputs = [
        np.random.default_rng([n, *shape]).standard_normal(shape, np.float32).astype(case.dtype)
        for n, shape in enumerate(case.shapes)
    ]
    type = group_of(case.module()).results[0].type
    assert isinstance(type, TensorType)
    output = np.zeros(type.get_shape(), numpy_dtype(type.get_element_type()))
    return Bench(driver, inputs, output, flush, flush_bytes)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time every schedule of the spaces on a GPU.")
    parser.add_argument(
        "--case",
        nargs="+",
        choices=tuple(cases()),
        default=tuple(cases()),
        metavar="NAME",
        help="all anchors by default",
    )
    parser.add_argument("--seconds", type=float, default=1800.0, metavar="S", help="for all of them (default 1800)")
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="launches of each, at most (default 20)")
    parser.add_argument("--workers", type=int, default=available_cores(), metavar="N", help="processes that compile")
    parser.add_argument("--flush-mib", type=int, default=256, metavar="MIB", help="overwritten between cold launches")
    parser.add_argument("--fresh", action="store_true", help="measure again what this commit has measured")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    return parser.parse_args(argv)
