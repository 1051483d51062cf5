"""How large the schedule spaces are, how long all of one takes to build and compile, and what its schedules need.

    python benchmarks/spaces.py [--target sm_80] [--case NAME] [--workers 2] [--output DIR]

Every schedule of an anchor's space is instantiated, lowered, printed and compiled by NVRTC, on two processes by
default. A process gets the anchor as text, since modules do not travel between processes. With `--output`, a line of
numbers for each space is written to a file there as soon as it is known.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_run
from benchmarks.result_files import write_results
from benchmarks.schedule_cases import Case, Compiled, cases, compiled
from treadle.target import Target

_WIDTH = 180
"""Columns of the table where no terminal says how many there are."""


@dataclass(frozen=True)
class SpaceTime:
    """One space: combinations before and after the limits, seconds to compile the latter, and what they compile to.

    load: processes that wanted a core, the mean of the last minute, in which others may have had a part
    """

    case: str
    template: str
    target: str
    combinations: int
    size: int
    seconds: float
    load: float
    schedules: tuple[Compiled, ...]

    @property
    def spilling(self) -> int:
        """Schedules that spill, all of them since ptxas wanted one block more."""
        return sum(each.spills > 0 for each in self.schedules)

    def row(self) -> dict[str, object]:
        """The numbers, for JSON."""
        registers, resident = _registers(self), _occupancy(self)
        return {
            "case": self.case,
            "template": self.template,
            "target": self.target,
            "combinations": self.combinations,
            "size": self.size,
            "seconds": round(self.seconds, 1),
            "load": round(self.load, 1),
            "registers": [min(registers), max(registers)],
            "occupancy": [min(resident), max(resident)],
            "spilling": self.spilling,
            "lacking_registers": sum(each.lacks_registers for each in self.schedules),
            "most_spilled_bytes": max(each.spills for each in self.schedules),
            "with_conflicts": sum(each.conflicts > 0 for each in self.schedules),
            "with_excess_sectors": sum(each.excess_sectors > 0 for each in self.schedules),
            "instructions": _shared_by_all(self.schedules),
        }


def _registers(space: SpaceTime) -> list[int]:
    return [each.registers for each in space.schedules]


def _occupancy(space: SpaceTime) -> list[float]:
    return [each.occupancy for each in space.schedules]


def _shared_by_all(schedules: Sequence[Compiled]) -> list[str]:
    """The telling instructions that every schedule has."""
    return sorted(set[str].intersection(*(set(each.instructions) for each in schedules)))


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
    load = os.getloadavg()[0]
    return SpaceTime(case.name, template, target_name, space.combinations, len(every), seconds, load, done)


def show(measured: Sequence[SpaceTime], workers: int) -> Table:
    """One row a space."""
    table = Table(title=f"Schedule spaces, compiled on {workers} processes")
    for heading in ("anchor", "template", "target"):
        table.add_column(heading)
    for heading in ("product", "size", "seconds", "each [ms]", "registers", "occupancy", "spilling", "conflicts"):
        table.add_column(heading, justify="right")
    table.add_column("all have")
    for each in measured:
        registers, resident = _registers(each), _occupancy(each)
        table.add_row(
            each.case, each.template, each.target, str(each.combinations), str(each.size), f"{each.seconds:.1f}",
            f"{1000 * each.seconds / each.size:.0f}", f"{min(registers)} to {max(registers)}",
            f"{min(resident):.0%} to {max(resident):.0%}", str(each.spilling),
            str(sum(s.conflicts > 0 for s in each.schedules)), " ".join(_shared_by_all(each.schedules)),
        )  # fmt: skip
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints; with --output, writes the spaces' numbers, too."""
    args = _arguments(argv)
    measured: list[SpaceTime] = []
    circumstances = describe_run() | {"workers": args.workers}
    for name in args.case or cases():
        for target in args.target or ("sm_80", "sm_90"):
            measured.append(measure(cases()[name], target, args.workers))
            if args.output is not None:
                write_results("spaces", circumstances, [each.row() for each in measured], args.output)
    console = Console()
    Console(width=None if console.is_terminal else _WIDTH).print(show(measured, args.workers))
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compile every schedule of the spaces.")
    parser.add_argument("--target", action="append", help="sm_80 and sm_90 by default")
    parser.add_argument("--case", action="append", choices=list(cases()), help="all anchors by default")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, metavar="DIR", help="where to write spaces-DATE.json")
    return parser.parse_args(argv)
