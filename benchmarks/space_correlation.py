"""How well a GPU's cost model ranks whole spaces of schedules that were timed on a device; no GPU is needed.

    python -m benchmarks.space_correlation benchmarks/results/gpu-spaces-*.json
    python -m benchmarks.space_correlation --target 'sm_90a{memory_latency=500}' benchmarks/results/gpu-spaces-*.json

Takes what `benchmarks/run.py --gpu-spaces` wrote. Of every space: Spearman's rank correlation of predicted times and of
those after L2 was overwritten; how many times as long as the best schedule of all take the one that is predicted to be
fastest, the best of the ten first, the default, and what is chosen by prediction (`treadle compile --construct`), which
is the default where too little gain is predicted; what is chosen over the default; and the median of predicted over
measured times. For the analytic model, and for the learned one fitted to all other anchors' spaces. `all` has means,
geometric ones of times, and the largest of what is chosen over the default.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, mean, median
from typing import Any

from benchmarks.rank_correlation import spearman
from benchmarks.schedule_cases import Case, cases, group_of
from treadle.dialects.schedule import UseAttr
from treadle.passes.schedule.construct import is_worth_it
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.search.learned import Analytic, Learned
from treadle.schedules.work.gpu_work import AnyWork
from treadle.schedules.work.group import Group
from treadle.schedules.work.recorder import work_of
from treadle.target import Target

LEAST_SCHEDULES = 10
"""Of a space: the rank correlation of fewer says little."""


@dataclass(frozen=True)
class Space:
    """works, seconds: of each schedule, the default first"""

    gpu: str
    anchor: str
    target: Target
    works: Sequence[AnyWork]
    seconds: Sequence[float]


@dataclass(frozen=True)
class Quality:
    """See the module; times over the time of the best schedule."""

    correlation: float
    first: float
    of_ten: float
    default: float
    chosen: float
    worst: float
    factor: float


def spaces_of(path: Path, target: Target | None = None) -> list[Space]:
    """The spaces of a file of results whose anchors there still are, and that have enough schedules; predicted for
    another target than the file's if one is given."""
    content = json.loads(path.read_text())
    known, rows = cases(), content["results"]
    return [
        _space(str(content["gpu"]), row, known[row["case"]], target or Target.parse(row["target"]))
        for row in rows
        if row["case"] in known and len(row["schedules"]) >= LEAST_SCHEDULES
    ]


def _space(gpu: str, row: dict[str, Any], case: Case, target: Target) -> Space:
    group = Group(anchor_of(group_of(case.module())))
    works = [work_of(group, UseAttr.get(row["template"], _choices(each)), target) for each in row["schedules"]]
    return Space(gpu, row["case"], target, works, [each["cold_us"] * 1e-6 for each in row["schedules"]])


def _choices(schedule: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(each) if isinstance(each, list) else each for name, each in schedule["choices"].items()}


def quality(predicted: Sequence[float], seconds: Sequence[float]) -> Quality:
    """What predictions of one space are worth."""
    best, order = min(seconds), sorted(range(len(seconds)), key=lambda n: predicted[n])
    chosen = seconds[order[0] if is_worth_it(predicted[order[0]], predicted[0]) else 0]
    return Quality(
        spearman(predicted, seconds),
        seconds[order[0]] / best,
        min(seconds[n] for n in order[:10]) / best,
        seconds[0] / best,
        chosen / best,
        chosen / seconds[0],
        median(one / other for one, other in zip(predicted, seconds, strict=True)),
    )


def main(words: Sequence[str] | None = None) -> None:
    """Prints a line for each space and model, and the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--target", type=Target.parse, help="predict for it; default: what was timed")
    arguments = parser.parse_args(words)
    spaces = [space for path in arguments.results for space in spaces_of(path, arguments.target)]
    for name in ("analytic", "learned"):
        found = [quality(_predicted(name, space, spaces), space.seconds) for space in spaces]
        for space, each in zip(spaces, found, strict=True):
            print(f"{name:9}{space.gpu:22}{space.anchor:46}{_text(each)}")
        whole = Quality(
            mean(each.correlation for each in found),
            geometric_mean(each.first for each in found),
            geometric_mean(each.of_ten for each in found),
            geometric_mean(each.default for each in found),
            geometric_mean(each.chosen for each in found),
            max(each.worst for each in found),
            median(each.factor for each in found),
        )
        print(f"{name:9}{'all':68}{_text(whole)}")


def _predicted(name: str, space: Space, spaces: Sequence[Space]) -> Sequence[float]:
    if name == "analytic":
        return Analytic().seconds(space.works, space.target)
    model = Learned()
    others = [each for each in spaces if each.anchor != space.anchor]
    model.learn({f"{s.gpu} {s.anchor}": list(zip(s.works, s.seconds, strict=True)) for s in others}, space.target)
    return model.seconds(space.works, space.target)


def _text(each: Quality) -> str:
    times = f"first {each.first:.2f}  of ten {each.of_ten:.2f}  default {each.default:.2f}  chosen {each.chosen:.2f}"
    times += f"  over default {each.worst:.2f}"
    return f"correlation {each.correlation:.2f}  {times}  predicted/measured {each.factor:.2f}"


if __name__ == "__main__":
    main()
