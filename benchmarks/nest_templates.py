"""Which CPU templates nests replace: the fastest of some nests for each group of models beside its default schedule.

    python -m benchmarks.nest_templates minilm mtcnn_onet --drawn 128 --timed 6
    python -m benchmarks.nest_templates resnet50.onnx

Of each group that a nest can schedule, random nests of the rules are drawn and predicted, and the first of them are
timed in turns with the template's default. A template is replaced where nests take at most 1.02 of its time. The table
has for each template the groups, the geometric mean of (nest / default) and the share of groups within 1.02, weighted
by nothing; the raw numbers go to `benchmarks/results/`. Measure on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import geometric_mean

from rich.console import Console
from rich.table import Table

from benchmarks.arguments import positive
from benchmarks.machine import describe_run
from benchmarks.result_files import RESULTS, write_results
from tests.models.catalog import MODELS
from treadle.errors import TreadleError
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.predict import Forecast
from treadle.target import Target
from treadle.target.host import host_target
from treadle.target.options import CompileOptions
from treadle.tuning.candidates import built, printed
from treadle.tuning.measure import Comparison, LocalMeasurer
from treadle.tuning.model import tasks_of_model
from treadle.tuning.tasks import GroupTask

WITHIN = 1.02
_TRIES = 8
"""Random decisions for each nest that is wanted, at most."""


@dataclass(frozen=True)
class Row:
    """A group: microseconds of its default, of a template, and of its fastest nest."""

    model: str
    group: str
    template: str
    default_us: float
    nest_us: float
    nest: str

    @property
    def ratio(self) -> float:
        """How many times as long the nest takes."""
        return self.nest_us / self.default_us


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description="The fastest of some nests beside each group's default schedule.")
    parser.add_argument("models", nargs="+", help="names of the tests' catalogue, or ONNX files of static shapes")
    parser.add_argument("--drawn", type=positive, default=128, help="nests that are drawn and predicted")
    parser.add_argument("--timed", type=positive, default=6, help="nests that are timed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    rows, target, measurer = list[Row](), host_target(), LocalMeasurer()
    try:
        for name in args.models:
            known = MODELS.get(name)
            path, shapes = (Path(name), {}) if known is None else (known.path(), known.input_shapes)
            for task in tasks_of_model(path, target, shapes, CompileOptions()):
                row = compared(Path(name).stem, task, target, measurer, args)
                if row is not None:
                    rows.append(row)
                    print(f"{row.template:16} {row.ratio:5.2f}  {row.model}: {row.group}", flush=True)
    finally:
        measurer.close()
    Console().print(table(rows))
    settings = {"models": [Path(name).name for name in args.models], "drawn": args.drawn, "timed": args.timed}
    written = write_results("nest_templates", describe_run() | settings, [asdict(row) for row in rows], args.output)
    print(f"written to {written}")
    return 0


def compared(
    model: str, task: GroupTask, target: Target, measurer: LocalMeasurer, args: argparse.Namespace
) -> Row | None:
    """The times of a group; None where no nest schedules it."""
    nests = _nests(task, args.drawn, args.timed, args.seed)
    if not nests:
        return None
    programs = {name: str(program) for name, program in task.search.by_name.items()}
    candidates = [task.default, *nests]
    builds = [built(printed(task.text, programs, each, str(target)), str(target)) for each in candidates]
    whole = [(c, b) for c, b in zip(candidates, builds, strict=True) if b.error is None]
    comparison = Comparison(
        task.text, tuple(b.library for _, b in whole), max(b.arena_bytes for _, b in whole), task.inputs, task.outputs,
        task.constants, target.cores, 0.25 * len(whole),
    )  # fmt: skip
    timings = measurer.measure(comparison)
    seconds = {str(c): t.seconds for (c, _), t in zip(whole, timings, strict=True) if t.seconds is not None}
    default = seconds.pop(str(task.default), None)
    if default is None or not seconds:
        return None
    best = min(seconds, key=seconds.__getitem__)
    return Row(model, str(task), task.default.program, default * 1e6, seconds[best] * 1e6, best)


def _nests(task: GroupTask, drawn: int, timed: int, seed: int) -> list[Candidate]:
    """Nests of the least predicted times."""
    random, forecast, found = Random(seed), Forecast(task.search), dict[Candidate, float]()
    names = [name for name, program in task.search.by_name.items() if program.template is None]
    for name in names:
        for candidate in _candidates(task, name, random, _TRIES * drawn // len(names)):
            if len(found) == drawn:
                break
            try:
                found[candidate] = forecast.seconds(candidate)
            except TreadleError:
                continue
    return sorted(found, key=found.__getitem__)[:timed]


def _candidates(task: GroupTask, name: str, random: Random, tries: int) -> Iterator[Candidate]:
    for _ in range(tries):
        decisions = task.search.samplers[name].draw(random)
        if decisions is not None:
            yield Candidate(name, decisions)


def table(rows: Sequence[Row]) -> Table:
    """A line for each template."""
    found = Table(title=f"Nests beside templates; a template is replaced within {WITHIN}")
    for head in ("template", "groups", "nest / default", "within", "worst"):
        found.add_column(head, justify="left" if head == "template" else "right")
    for template in sorted({row.template for row in rows}):
        ratios = [row.ratio for row in rows if row.template == template]
        share = sum(ratio <= WITHIN for ratio in ratios) / len(ratios)
        found.add_row(template, str(len(ratios)), f"{geometric_mean(ratios):.2f}", f"{share:.0%}", f"{max(ratios):.2f}")
    return found


if __name__ == "__main__":
    sys.exit(main())
