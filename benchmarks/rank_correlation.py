"""How well cost models rank schedules: rank correlation with measured times, on groups that they have not learned from.

    python -m benchmarks.rank_correlation tuned
    python -m benchmarks.rank_correlation benchmarks/records/random/*

Takes databases, say one for each model: `treadle tune MODEL --database tuned --strategy random` measures candidates
that no cost model has chosen. `benchmarks/records/random` has 2,816 of four models on Zen 4, and 275 of two models on a
Xeon.
For each machine that one of them has records of, prints a table for docs/tuning.md. Of every group it has Spearman's
rank correlation of predicted and measured times for the analytic model, for the learned one fitted to all other groups
of that machine (leave one group out), and for the learned one fitted to the other databases (leave one database, that
is one model, out); then how much slower the candidate that each of them likes best is than the best one that was
measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from treadle.errors import TreadleError
from treadle.schedules.search.database import TARGET, Database
from treadle.schedules.search.database_files import digest_of, slug
from treadle.schedules.search.learned import Learned
from treadle.schedules.work.gpu_work import AnyWork
from treadle.target import Target
from treadle.target.host import hardware_of, host_target

LEAST_TRIALS = 10
"""Of a group: the rank correlation of fewer says little."""
_COLUMNS = ("analytic", "learned, other groups", "other databases")

Measured = Sequence[tuple[AnyWork, float]]


@dataclass(frozen=True)
class Group:
    """A group's measured candidates, and the folder of the database that they are in."""

    folder: str
    name: str
    trials: Measured


@dataclass(frozen=True)
class Quality:
    """A rank correlation, and the time of the favourite over that of the fastest."""

    correlation: float
    favourite: float


def main(words: Sequence[str] | None = None) -> None:
    """Prints a table for each machine."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("databases", type=Path, nargs="+")
    folders = [Database(each) for each in arguments.parse_args(words).databases]
    for hardware in sorted({name for folder in folders for name in folder.measured()}):
        groups = [
            Group(folder.folder.name, name, trials)
            for folder in folders
            for name, trials in folder.measured_works(hardware).items()
            if len(trials) >= LEAST_TRIALS
        ]
        print(f"{hardware}\n\n{table(groups, _target(folders, hardware))}\n")


def table(groups: Sequence[Group], target: Target) -> str:
    """The models on each group; then their medians over each database's groups, and over all."""
    columns = [*_COLUMNS, *(f"favourite of {column}" for column in _COLUMNS)]
    lines = [f"| group | trials | {' | '.join(columns)} |", "|---|" + "---:|" * (1 + len(columns))]
    rows = [(group, qualities(group, groups, target)) for group in groups]
    lines += [_line(group.name, len(group.trials), found) for group, found in rows]
    folders = dict.fromkeys(group.folder for group in groups)
    for folder in folders if len(folders) > 1 else ():
        lines.append(_medians(f"median of {folder}", [row for row in rows if row[0].folder == folder]))
    if rows:
        lines.append(_medians("median", rows))
    return "\n".join(lines)


def qualities(group: Group, groups: Sequence[Group], target: Target) -> list[Quality | None]:
    """How each of the models ranks a group's kernels; None where there is no other database. Equal groups of two
    databases are one."""
    others = [each for each in groups if digest_of(each.name) != digest_of(group.name)]
    elsewhere = [each for each in others if each.folder != group.folder]
    fitted = [Learned(), _fitted(others, target), _fitted(elsewhere, target) if elsewhere else None]
    return [None if model is None else quality(model, group.trials, target) for model in fitted]


def quality(model: Learned, trials: Measured, target: Target) -> Quality:
    """How a model ranks one group's kernels."""
    predicted = list(model.seconds([work for work, _ in trials], target))
    seconds = [each for _, each in trials]
    return Quality(spearman(predicted, seconds), seconds[predicted.index(min(predicted))] / min(seconds))


def _fitted(groups: Sequence[Group], target: Target) -> Learned:
    model, records = Learned(), dict[str, list[tuple[AnyWork, float]]]()
    for group in groups:
        records.setdefault(digest_of(group.name), []).extend(group.trials)
    model.learn(records, target)
    return model


def _target(folders: Sequence[Database], hardware: str) -> Target:
    """What the records are records of: as one of the databases says, else this machine if they are its own."""
    named = [target for folder in folders if (target := folder.target(hardware)) is not None]
    if named:
        return named[0]
    if slug(hardware_of(host_target())) != hardware:
        raise TreadleError(f"the records of {hardware} do not say what target it is", "rank correlation", TARGET)
    return host_target()


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """The rank correlation of two lists."""
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def _ranks(values: Sequence[float]) -> list[float]:
    """The place of each value in ascending order; equal ones share the mean of theirs."""
    order = sorted(values)
    first = {value: order.index(value) for value in set(values)}
    return [first[value] + (order.count(value) - 1) / 2 for value in values]


def _medians(name: str, rows: Sequence[tuple[Group, Sequence[Quality | None]]]) -> str:
    columns = zip(*(found for _, found in rows), strict=True)
    return _line(name, sum(len(group.trials) for group, _ in rows), [_median(column) for column in columns])


def _median(column: Sequence[Quality | None]) -> Quality | None:
    found = [each for each in column if each is not None]
    return Quality(median(q.correlation for q in found), median(q.favourite for q in found)) if found else None


def _line(name: str, trials: int, found: Sequence[Quality | None]) -> str:
    correlations = ["-" if each is None else f"{each.correlation:.2f}" for each in found]
    favourites = ["-" if each is None else f"{each.favourite:.2f}x" for each in found]
    return f"| {name} | {trials} | {' | '.join([*correlations, *favourites])} |"


if __name__ == "__main__":
    main()
