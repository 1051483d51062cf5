"""How well cost models rank schedules: rank correlation with measured times, on groups that they have not learned from.

    python -m benchmarks.rank_correlation tuned
    python -m benchmarks.rank_correlation benchmarks/records/random --hardware HARDWARE

For each group of a database (`treadle tune MODEL --database tuned --strategy random` measures candidates that no model
has chosen; `benchmarks/records/random` has 275 of MobileNet-V2 and ResNet-50, of the one machine that its folder is
named after, 2026-11-23) the learned model is fitted to all other groups. Prints the table for docs/tuning.md:
Spearman's rank correlation, and how much slower the candidate that the model likes best is than the best one that was
measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from treadle.host import hardware_of, host_target
from treadle.schedules.search.database import Database
from treadle.schedules.search.learned import Learned
from treadle.schedules.search.work import Work
from treadle.target import Target

LEAST_TRIALS = 10
"""Of a group: the rank correlation of fewer says little."""

Measured = Sequence[tuple[Work, float]]
Quality = tuple[float, float]
"""A rank correlation, and the time of the favourite over that of the fastest."""


def main(words: Sequence[str] | None = None) -> None:
    """Prints a line for each group, and the medians."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("database", type=Path)
    arguments.add_argument("--hardware", help="a folder of the database; default: this machine's")
    chosen = arguments.parse_args(words)
    target = host_target()
    groups = Database(chosen.database).measured_works(chosen.hardware or hardware_of(target))
    print(table({name: trials for name, trials in groups.items() if len(trials) >= LEAST_TRIALS}, target))


def table(groups: dict[str, Measured], target: Target) -> str:
    """Both models on each group."""
    lines = [
        "| group | trials | analytic | learned | favourite of analytic | of learned |",
        "|---|" + "---:|" * 5,
    ]
    rows: list[tuple[Quality, Quality]] = []
    for name, trials in groups.items():
        model = Learned()
        model.learn([trial for other, each in groups.items() if other != name for trial in each], target)
        rows.append((quality(Learned(), trials, target), quality(model, trials, target)))
        lines.append(_line(name, str(len(trials)), *rows[-1]))
    if rows:
        middle = [(median(r[m][0] for r in rows), median(r[m][1] for r in rows)) for m in (0, 1)]
        lines.append(_line("median", str(sum(map(len, groups.values()))), middle[0], middle[1]))
    return "\n".join(lines)


def quality(model: Learned, trials: Measured, target: Target) -> Quality:
    """How a model ranks one group's kernels."""
    predicted = list(model.seconds([work for work, _ in trials], target))
    seconds = [each for _, each in trials]
    correlation = float(np.corrcoef(_ranks(predicted), _ranks(seconds))[0, 1])
    return correlation, seconds[predicted.index(min(predicted))] / min(seconds)


def _ranks(values: Sequence[float]) -> list[float]:
    """The place of each value in ascending order; equal ones share the mean of theirs."""
    order = sorted(values)
    first = {value: order.index(value) for value in set(values)}
    return [first[value] + (order.count(value) - 1) / 2 for value in values]


def _line(name: str, trials: str, analytic: Quality, learned: Quality) -> str:
    return f"| {name} | {trials} | {analytic[0]:.2f} | {learned[0]:.2f} | {analytic[1]:.2f}x | {learned[1]:.2f}x |"


if __name__ == "__main__":
    main()
