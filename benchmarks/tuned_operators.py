"""The twelve operators of MetaSchedule's table, tuned on this machine's processor, against their default schedules.

    python -m benchmarks.tuned_operators --operators GRP DEP --trials 200 --seconds 300

Each operator is tuned alone, at the paper's size, from an empty database. At the end of a search its best schedule and
the default are timed alternately, and these times are shown: the median of each, summed over the kernels that the
operator becomes, and their ratio. The raw numbers go to `benchmarks/results/`, together with what they depend on.
Measure on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import track
from rich.table import Table

import treadle
from benchmarks.machine import describe_run
from benchmarks.paper_operators import OPERATORS
from benchmarks.result_files import RESULTS, write_results
from treadle.ir import print_text
from treadle.schedules.search.strategies import STRATEGIES
from treadle.tuning.group_search import Group


@dataclass(frozen=True)
class Tuned:
    """One operator's times in seconds, summed over its kernels, and the programs that were best."""

    name: str
    default: float
    best: float
    trials: int
    programs: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """How many times as fast as the default the best schedules are."""
        return self.default / self.best


def main(argv: Sequence[str] | None = None) -> int:
    """Tunes, prints and writes."""
    args = _arguments(argv)
    console, circumstances = Console(), describe_run()
    names = track(args.operators, console=console, transient=True)
    tuned = [tuned_operator(name, args.trials, args.seconds, args.strategy, args.seed) for name in names]
    console.print(table_of(tuned, args.trials))
    settings = {"trials": args.trials, "seconds": args.seconds, "strategy": args.strategy, "seed": args.seed}
    path = write_results("tuned_operators", circumstances | settings, [row_of(each) for each in tuned], args.output)
    console.print(f"written to {path}")
    return 0


def tuned_operator(name: str, trials: int, seconds: float, strategy: str, seed: int) -> Tuned:
    """One operator at the paper's size, tuned from an empty database."""
    with TemporaryDirectory() as folder:
        model = Path(folder) / f"{name}.mlir"
        model.write_text(print_text(OPERATORS[name].module()))
        groups = treadle.tune(
            model, Path(folder) / "tuned", trials=trials, seconds=seconds, strategy=strategy, seed=seed
        )
        return summed(name, groups)


def summed(name: str, groups: Sequence[Group]) -> Tuned:
    """The times of all kernels of an operator."""
    timed = [group for group in groups if group.default_seconds is not None and group.best_seconds is not None]
    assert len(timed) == len(groups), f"{name} was not timed"
    default = sum(group.task.count * (group.default_seconds or 0.0) for group in timed)
    best = sum(group.task.count * (group.best_seconds or 0.0) for group in timed)
    programs = tuple(group.best.program for group in timed if group.best is not None)
    return Tuned(name, default, best, sum(group.trials for group in timed), programs)


def table_of(tuned: Sequence[Tuned], trials: int) -> Table:
    """One line an operator, milliseconds."""
    table = Table(title=f"MetaSchedule's operators on the CPU, {trials} trials each: milliseconds")
    table.add_column("operator", no_wrap=True)
    for title in ("default", "best", "ratio", "trials"):
        table.add_column(title, justify="right")
    table.add_column("best programs")
    for each in tuned:
        times = f"{each.default * 1e3:.3f}", f"{each.best * 1e3:.3f}", f"{each.ratio:.2f}"
        table.add_row(f"{each.name} {OPERATORS[each.name].title}", *times, str(each.trials), ", ".join(each.programs))
    return table


def row_of(each: Tuned) -> dict[str, object]:
    """An operator's numbers for JSON, in milliseconds."""
    return {
        "operator": each.name,
        "default_ms": round(each.default * 1e3, 4),
        "best_ms": round(each.best * 1e3, 4),
        "ratio": round(each.ratio, 3),
        "trials": each.trials,
        "programs": list(each.programs),
    }


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--operators", nargs="+", choices=list(OPERATORS), default=list(OPERATORS), metavar="NAME")
    parser.add_argument("--trials", type=int, default=200, help="candidates that are timed for each operator")
    parser.add_argument("--seconds", type=float, default=600.0, help="limit for each operator")
    parser.add_argument("--strategy", choices=list(STRATEGIES), default=next(iter(STRATEGIES)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
