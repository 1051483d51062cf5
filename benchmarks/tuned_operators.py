"""The twelve operators of MetaSchedule's table, tuned on this machine's processor: figure 8.

    python -m benchmarks.tuned_operators --operators GRP DEP --trials 200 --seconds 300
    python -m benchmarks.tuned_operators --trials 200 --seconds 300 --tvm PYTHON

Each operator is tuned alone, at the paper's size, from an empty database. Then kernels with the default schedules and
the best ones are timed in turn, without what a call from Python takes, which is more than the smallest kernels. With
`--tvm`, a Python that has TVM (`benchmarks/tvm_peer.py` says how to install one), TVM's MetaSchedule searches as long,
with as many trials and threads, and its best is timed in the same turns; weights are constants on both sides. The
table shows medians, and the median of the ratios round by round. Every side's result is compared with the operator's
definition in float64: the largest difference over the largest magnitude may be the longest sum's terms times the
machine epsilon (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). The raw numbers go to
`benchmarks/results/`, together with what they depend on. Measure on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

import treadle
from benchmarks.arguments import positive
from benchmarks.cpu_peers import wide_console
from benchmarks.machine import describe_run
from benchmarks.measure import relative_error
from benchmarks.paper_operators import OPERATORS
from benchmarks.result_files import RESULTS, write_results
from benchmarks.tvm_peer import WORKER, Searched, TvmPeer, tvm_peer
from treadle.backends.c.executor import CpuProgram
from treadle.backends.reference import evaluate_module
from treadle.bench.interleave import Run, Times, interleave
from treadle.bench.peaks import launches_of
from treadle.ir import print_text
from treadle.model import CompiledModel
from treadle.schedules.search.strategies import STRATEGIES
from treadle.tuning.group_search import Group

Array = NDArray[Any]
DEFAULT, BEST, TVM = "default", "best", "tvm"
_BATCH_SECONDS = 0.1


@dataclass(frozen=True)
class Tuned:
    """One operator: by side the seconds of its kernels, what the searches took and how large the errors are; and the
    programs that were best."""

    name: str
    times: Mapping[str, Times]
    searches: Mapping[str, Searched]
    errors: Mapping[str, float] = field(default_factory=dict[str, float])
    programs: tuple[str, ...] = ()

    def ratio(self, side: str) -> float:
        """How many times as long as the best schedules a side takes: the median of the rounds' ratios."""
        return self.times[side].ratios(self.times[BEST])[1]

    @property
    def wrong(self) -> list[str]:
        """The sides whose results differ too much from the definition's."""
        limit = OPERATORS[self.name].terms * float(np.finfo(np.float32).eps)
        return [side for side, error in self.errors.items() if not error <= limit]


def main(argv: Sequence[str] | None = None) -> int:
    """Tunes, prints and writes, after each operator what there is; 1 if a result is wrong."""
    args = _arguments(argv)
    console, circumstances = wide_console(), describe_run()
    settings = {name: getattr(args, name) for name in ("trials", "seconds", "strategy", "seed", "threads", "rounds")}
    tuned, path = list[Tuned](), args.output
    with ExitStack() as stack:
        peer = None if args.tvm is None else stack.enter_context(tvm_peer(args.tvm, args.threads, WORKER))
        settings |= {} if peer is None else {"peer": dict(peer.versions)}
        for name in args.operators:
            tuned.append(tuned_operator(name, args, peer))
            rows = [row_of(each) for each in tuned]
            path = write_results("tuned_operators", circumstances | settings | means_of(tuned), rows, args.output)
            console.print(summary_of(tuned[-1]))
    console.print(table_of(tuned, args.trials))
    console.print(f"written to {path}")
    return int(any(each.wrong for each in tuned))


def tuned_operator(name: str, args: argparse.Namespace, peer: TvmPeer | None) -> Tuned:
    """One operator at the paper's size, tuned from an empty database, and by a peer if there is one."""
    operator = OPERATORS[name]
    inputs = operator.arrays()[: operator.inputs]
    exact = evaluate_module(operator.module(dtype=np.float64), [each.astype(np.float64) for each in inputs])
    with TemporaryDirectory() as folder, ExitStack() as stack:
        path, database = Path(folder) / f"{name}.mlir", Path(folder) / "tuned"
        path.write_text(print_text(operator.module()))
        start = time.monotonic()
        groups = treadle.tune(
            path, database, trials=args.trials, seconds=args.seconds, strategy=args.strategy, seed=args.seed,
            threads=args.threads,
        )  # fmt: skip
        searches = {BEST: Searched(sum(group.trials for group in groups), time.monotonic() - start)}
        opened = partial(treadle.compile, path, "cpu", threads=args.threads)
        models = {DEFAULT: stack.enter_context(opened()), BEST: stack.enter_context(opened(database=database))}
        results = {side: np.asarray(model(*inputs)[0]) for side, model in models.items()}
        clock = KernelClock()
        sides = {side: clock.of(_kernels(model, inputs)) for side, model in models.items()}
        if peer is not None:
            searches[TVM] = peer.tune(name, args.trials, args.seconds, args.seed)
            results[TVM], sides[TVM] = peer.result(name, operator.arrays()), clock.of(peer.seconds)
        errors = {side: relative_error([result], exact) for side, result in results.items()}
        times = interleave(sides, args.rounds, _BATCH_SECONDS, clock)
        return Tuned(name, times, searches, errors, programs_of(groups))


def programs_of(groups: Sequence[Group]) -> tuple[str, ...]:
    """The programs of the best schedules that are not defaults."""
    return tuple(group.best.program for group in groups if group.best is not None)


class KernelClock:
    """A clock that counts the seconds that sides say of themselves, instead of all that pass."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def of(self, seconds: Callable[[int], float]) -> Run:
        """A side, given the seconds of so many runs."""

        def run(count: int) -> None:
            self._now += seconds(count)

        return run


def _kernels(model: CompiledModel, inputs: Sequence[Array]) -> Callable[[int], float]:
    """The seconds of a model's launches in so many calls, together."""
    program, arguments = model.open(), model.arguments({t.name: a for t, a in zip(model.inputs, inputs, strict=True)})
    assert isinstance(program, CpuProgram)
    launches = len(launches_of(model.artifact))
    return lambda count: sum(sum(program.launch_seconds(arguments, launches)) for _ in range(count))


def means_of(tuned: Sequence[Tuned]) -> dict[str, object]:
    """The geometric means of the ratios of all operators, by side."""
    sides = [side for side in tuned[0].times if side != BEST]
    return {"geometric_means": {side: geometric_mean([each.ratio(side) for each in tuned]) for side in sides}}


def summary_of(each: Tuned) -> str:
    """A line while the others are tuned."""
    took = ", ".join(f"{side} {times.median * 1e3:.3f} ms" for side, times in each.times.items())
    wrong = f"; wrong: {', '.join(each.wrong)}" if each.wrong else ""
    return f"{each.name}: {took}{wrong}"


def table_of(tuned: Sequence[Tuned], trials: int) -> Table:
    """One line an operator, milliseconds, with the seconds of the searches, and the geometric means."""
    table = Table(title=f"MetaSchedule's operators on the CPU, {trials} trials each: milliseconds")
    sides, others = list(tuned[0].times), [side for side in tuned[0].times if side != BEST]
    table.add_column("operator", no_wrap=True)
    searched = [f"{side}: trials, s" for side in tuned[0].searches]
    for title in (*sides, *(f"{side} / best" for side in others), *searched, "error"):
        table.add_column(title, justify="right")
    table.add_column("best programs")
    for each in tuned:
        times = [f"{each.times[side].median * 1e3:.3f}" for side in sides]
        ratios = [f"{each.ratio(side):.2f}" for side in others]
        searches = [f"{search.trials}, {search.seconds:.0f}" for search in each.searches.values()]
        error = f"{max(each.errors.values(), default=0.0):.0e}" + (f" {', '.join(each.wrong)}" if each.wrong else "")
        table.add_row(each.name, *times, *ratios, *searches, error, ", ".join(each.programs))
    means = [f"{geometric_mean([each.ratio(side) for each in tuned]):.2f}" for side in others]
    table.add_row("geometric mean", *("" for _ in sides), *means)
    return table


def row_of(each: Tuned) -> dict[str, object]:
    """An operator's numbers for JSON, in milliseconds of every round."""
    return {
        "operator": each.name,
        "title": OPERATORS[each.name].title,
        "ms": {side: [round(second * 1e3, 5) for second in times.seconds] for side, times in each.times.items()},
        "ratios": {side: round(each.ratio(side), 4) for side in each.times if side != BEST},
        "searches": {side: [search.trials, round(search.seconds, 1)] for side, search in each.searches.items()},
        "errors": dict(each.errors),
        "wrong": each.wrong,
        "programs": list(each.programs),
    }


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--operators", nargs="+", choices=list(OPERATORS), default=list(OPERATORS), metavar="NAME")
    parser.add_argument("--trials", type=int, default=200, help="candidates that are timed for each operator")
    parser.add_argument("--seconds", type=float, default=600.0, help="limit for each operator")
    parser.add_argument("--strategy", choices=list(STRATEGIES), default=next(iter(STRATEGIES)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=positive, default=2, metavar="N", help="of all sides (default 2)")
    parser.add_argument("--rounds", type=positive, default=20, metavar="N", help="batches of each side (default 20)")
    parser.add_argument("--tvm", metavar="PYTHON", help="a Python with TVM, whose MetaSchedule is the peer")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
