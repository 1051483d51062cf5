"""How large the schedule spaces are, and how long all of one takes to build and compile.

    python benchmarks/spaces.py [--target sm_80] [--case NAME] [--workers 2] [--json FILE]

Every schedule of an anchor's space is instantiated, lowered, printed and compiled by NVRTC, on two processes by
default. A process gets the anchor as text, since modules do not travel between processes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.table import Table

from treadle.target import Target
from treadle.tools.schedule_cases import Case, Compiled, cases, compiled

_WIDTH = 160
"""Columns of the table where no terminal says how many there are."""


@dataclass(frozen=True)
class SpaceTime:
    """One space: combinations before and after the limits, seconds to compile the latter, and what they compile to."""

    case: str
    template: str
    target: str
    combinations: int
    size: int
    seconds: float
    schedules: tuple[Compiled, ...]


def measure(case: Case, target_name: str, workers: int) -> SpaceTime:
    """Compiles every schedule of a case's space."""
    target = Target.parse(target_name)
    space, template = case.space(target), case.default(target).template.data
    every, text = list(space), case.text()
    start = time.perf_counter()
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        arguments = [text] * len(every), [template] * len(every), every, [target_name] * len(every)
        done = tuple(pool.map(compiled, *arguments, chunksize=4))
    seconds = time.perf_counter() - start
    return SpaceTime(case.name, template, target_name, space.combinations, len(every), seconds, done)


def show(measured: Sequence[SpaceTime], workers: int) -> Table:
    """One row a space."""
    table = Table(title=f"Schedule spaces, compiled on {workers} processes")
    for heading in ("anchor", "template", "target"):
        table.add_column(heading)
    for heading in ("product", "size", "seconds", "each [ms]", "registers", "occupancy", "spilling"):
        table.add_column(heading, justify="right")
    for each in measured:
        registers = [s.registers for s in each.schedules]
        resident = [s.occupancy for s in each.schedules]
        table.add_row(
            each.case, each.template, each.target, str(each.combinations), str(each.size), f"{each.seconds:.1f}",
            f"{1000 * each.seconds / each.size:.0f}", f"{min(registers)} to {max(registers)}",
            f"{min(resident):.0%} to {max(resident):.0%}", str(sum(s.spills > 0 for s in each.schedules)),
        )  # fmt: skip
    return table


def main() -> int:
    """Measures and prints; with --json, writes the schedules' resources, too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", help="sm_80 and sm_90 by default")
    parser.add_argument("--case", action="append", choices=list(cases()), help="all anchors by default")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    measured: list[SpaceTime] = []
    for name in options.case or cases():
        for target in options.target or ("sm_80", "sm_90"):
            measured.append(measure(cases()[name], target, options.workers))
    console = Console()
    Console(width=None if console.is_terminal else _WIDTH).print(show(measured, options.workers))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(each) for each in measured], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
