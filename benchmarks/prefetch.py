"""Kernels with prefetched lines against the same kernels without, on this machine's processor.

    python -m benchmarks.prefetch --onnx /tmp/models --models resnet50 bert_base

Of every group of a model whose default kernel prefetches, the text with its prefetches and without is compiled, and
called in turn. The table has the median of each and the ratio of the medians, and the sum over the groups, as often as
the model has them; the raw numbers go to `benchmarks/results/`. What is prefetched is decided in
`treadle/passes/loop/loop_prefetch.py`. Measure on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.arguments import positive
from benchmarks.machine import describe_run
from benchmarks.paper_models import PAPER_MODELS
from benchmarks.result_files import RESULTS, write_results
from benchmarks.tuned_models import NAMES, exported, shapes_of
from treadle.backends.c.compiler import Unit
from treadle.shapes.dim import normalized
from treadle.target.host import host_target
from treadle.target.options import CompileOptions, parse_precision
from treadle.tuning.candidates import Printed, built, printed
from treadle.tuning.measure import CACHE_BYTES, InterleavedTimer, Operands, random_inputs
from treadle.tuning.model import tasks_of_model
from treadle.tuning.tasks import GroupTask

_PREFETCH = re.compile(r"^ *TREADLE_PREFETCH\(.*\n", re.MULTILINE)


@dataclass(frozen=True)
class Kernel:
    """One group's default kernel: medians in microseconds, and how often the model has it."""

    model: str
    group: str
    count: int
    schedule: str
    plain_us: float
    prefetched_us: float

    @property
    def ratio(self) -> float:
        """How many times as fast it is with prefetches."""
        return self.plain_us / self.prefetched_us


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--onnx", type=Path, required=True, help="a folder of models, or where they are exported to")
    parser.add_argument("--exporter", default="python", help="a Python that can export the models")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--rounds", type=positive, default=40)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    found: list[Kernel] = []
    for name in args.models:
        path, inputs = exported(name, args.onnx, args.exporter), PAPER_MODELS[name].inputs
        options = CompileOptions(parse_precision("f32"))
        tasks = tasks_of_model(path, host_target(), normalized(shapes_of(inputs)), options, ())
        found += kernels(name, tasks, args.threads, args.rounds)
    Console().print(table(found))
    settings = {"threads": args.threads, "rounds": args.rounds}
    rows: list[dict[str, object]] = [{**asdict(each), "ratio": round(each.ratio, 3)} for each in found]
    print(f"written to {write_results('prefetch', describe_run() | settings, rows, args.output)}")


def kernels(model: str, tasks: Sequence[GroupTask], threads: int, rounds: int) -> Iterator[Kernel]:
    """The kernels of a model that prefetch, timed."""
    target = str(host_target())
    for task in tasks:
        text = printed(task.text, {n: str(p) for n, p in task.search.by_name.items()}, task.default, target)
        if not any(_PREFETCH.search(unit.text) for unit in text.units):
            continue
        bare = replace(text, units=tuple(_without(unit) for unit in text.units))
        plain, prefetched = medians(task, [bare, text], threads, rounds)
        schedule = str(task.default)
        yield Kernel(model, task.label, task.count, schedule, round(plain * 1e6, 2), round(prefetched * 1e6, 2))


def _without(unit: Unit) -> Unit:
    return replace(unit, text=_PREFETCH.sub("", unit.text), code=None)


def medians(task: GroupTask, texts: Sequence[Printed], threads: int, rounds: int) -> list[float]:
    """The seconds of a call of each text's library, in turn."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        libraries = [each.library for each in pool.map(lambda text: built(text, str(host_target())), texts)]
    operands = Operands(random_inputs(task.inputs), task.outputs, task.constants, CACHE_BYTES)
    timer = InterleavedTimer(libraries, max(text.arena_bytes for text in texts), operands, threads)
    try:
        timer.run(rounds, float("inf"))
        return [each.median for each in timer.timed]
    finally:
        timer.close()


def table(found: Sequence[Kernel]) -> Table:
    """A line for each kernel, and one for each model."""
    result = Table(title="Median in us of a kernel without and with prefetches")
    for head in ("model", "group", "count", "plain", "prefetched", "ratio"):
        result.add_column(head, justify="left" if head in ("model", "group") else "right")
    for each in found:
        numbers = f"{each.plain_us:.0f}", f"{each.prefetched_us:.0f}", f"{each.ratio:.2f}x"
        result.add_row(each.model, each.group, str(each.count), *numbers)
    for model in dict.fromkeys(each.model for each in found):
        mine = [each for each in found if each.model == model]
        plain, prefetched = (sum(k.count * us for k, us in zip(mine, times, strict=True)) for times in _times(mine))
        result.add_row(model, "all of these", "", f"{plain:.0f}", f"{prefetched:.0f}", f"{plain / prefetched:.2f}x")
    return result


def _times(found: Sequence[Kernel]) -> tuple[list[float], list[float]]:
    return [each.plain_us for each in found], [each.prefetched_us for each in found]


if __name__ == "__main__":
    main()
