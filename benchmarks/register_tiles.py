"""Products with other register tiles and passes than the default ones, on this machine's processor.

    python -m benchmarks.register_tiles --onnx /tmp/models --models resnet50 bert_base --variants rows=7 depth=256

Of every group of a model that `matmul_cpu` schedules by default, that schedule and its variants are compiled, and
called in turn; of each group the quickest of several turns counts. A variant has other `rows`, or as many `passes` as
make their depth nearest to a number of terms; what is none, or is the default, counts as the default. The table has the
median of the default, and how many times as fast each variant is; its last line the sums over the groups, as often as
the models have them. The raw numbers go to `benchmarks/results/`. What is chosen by default is decided in
`treadle/schedules/register_tile.py`. Measure on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.arguments import positive
from benchmarks.machine import describe_run
from benchmarks.paper_models import PAPER_MODELS
from benchmarks.prefetch import medians
from benchmarks.result_files import RESULTS, write_results
from benchmarks.tuned_models import NAMES, exported, shapes_of
from treadle.dialects.graph import MatmulOp
from treadle.dialects.schedule import Choice
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.template import Choices
from treadle.schedules.templates import TEMPLATES
from treadle.shapes.dim import normalized
from treadle.target import Target
from treadle.target.host import host_target
from treadle.target.options import CompileOptions, parse_precision
from treadle.tuning.candidates import Printed, printed
from treadle.tuning.model import tasks_of_model
from treadle.tuning.tasks import GroupTask

_TEMPLATE = "matmul_cpu"


@dataclass(frozen=True)
class Product:
    """One group: its extents, how often the model has it, and the medians in microseconds of the default schedule, and
    of the variants by name."""

    model: str
    group: str
    extents: tuple[int, ...]
    count: int
    schedule: str
    default_us: float
    variants_us: Mapping[str, float]

    def ratio(self, variant: str) -> float:
        """How many times as fast as the default it is."""
        return self.default_us / self.variants_us[variant]

    @property
    def total_us(self) -> float:
        """Of the default and all variants."""
        return self.default_us + sum(self.variants_us.values())


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--variants", nargs="+", required=True, metavar="rows=N|depth=N", help="joined by commas")
    parser.add_argument("--onnx", type=Path, required=True, help="a folder of models, or where they are exported to")
    parser.add_argument("--exporter", default="python", help="a Python that can export the models")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--rounds", type=positive, default=20, help="of a group, in a turn")
    parser.add_argument("--turns", type=positive, default=3, help="in which all groups are measured")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    found: list[Product] = []
    for name in args.models:
        path, inputs = exported(name, args.onnx, args.exporter), PAPER_MODELS[name].inputs
        options = CompileOptions(parse_precision("f32"))
        tasks = tasks_of_model(path, host_target(), normalized(shapes_of(inputs)), options, ())
        products = [task for task in tasks if task.default.program == _TEMPLATE]
        found += quickest(
            [
                [measured(name, task, args.variants, args.threads, args.rounds) for task in products]
                for _ in range(args.turns)
            ]
        )
    Console().print(table(found, args.variants))
    settings = {"threads": args.threads, "rounds": args.rounds, "turns": args.turns}
    rows: list[dict[str, object]] = [asdict(each) for each in found]
    print(f"written to {write_results('register_tiles', describe_run() | settings, rows, args.output)}")


def quickest(turns: Sequence[Sequence[Product]]) -> list[Product]:
    """Of each group the turn that took the least. On a virtual machine all kernels of one or two groups of a run took
    twice as long, other groups each time, while the process had both processors by its own accounting; it may be that
    the host ran both on one core."""
    return [min(same, key=lambda each: each.total_us) for same in zip(*turns, strict=True)]


def measured(model: str, task: GroupTask, variants: Sequence[str], threads: int, rounds: int) -> Product:
    """Times the default schedule of a group and its variants."""
    target = host_target()
    anchor = task.search.anchor
    assert isinstance(anchor, MatmulOp)
    template = TEMPLATES[_TEMPLATE]
    usual = dict(template.canonical(anchor, template.default(anchor, target), target))
    wanted = {name: varied(anchor, usual, name, target) for name in variants}
    different = [usual, *(choices for choices in wanted.values() if choices != usual)]
    texts = texts_of(task, different)
    times = iter(round(seconds * 1e6, 2) for seconds in medians(task, texts, threads, rounds))
    default = next(times)
    us = {name: default if choices == usual else next(times) for name, choices in wanted.items()}
    extents = (*anchor.shape[:-1], anchor.reduction_extent, anchor.shape[-1])
    return Product(model, task.label, extents, task.count, str(task.default), default, us)


def texts_of(task: GroupTask, schedules: Sequence[Choices]) -> list[Printed]:
    """The texts of a product with some schedules of `matmul_cpu`."""
    program, labels = str(task.search.by_name[_TEMPLATE]), task.default.decisions.keys()
    candidates = [Candidate(_TEMPLATE, {name: each[name] for name in labels}) for each in schedules]
    return [printed(task.text, {_TEMPLATE: program}, each, str(host_target())) for each in candidates]


def varied(anchor: MatmulOp, usual: Choices, variant: str, target: Target) -> dict[str, Choice]:
    """The default with what a variant says, about as many rows a block, and even blocks; the default itself where the
    template does not allow it."""
    template = TEMPLATES[_TEMPLATE]
    choices = dict(usual)
    for word in variant.split(","):
        knob, _, value = word.partition("=")
        if knob == "depth":
            choices["passes"] = max(1, round(anchor.reduction_extent / int(value)))
        else:
            choices[knob] = int(value)
    chunk, rows = (int(str(choices[name])) for name in ("chunk", "rows"))
    choices["chunk"] = max(1, chunk // rows) * rows
    choices = dict(template.canonical(anchor, choices, target))
    return choices if choices in template.legal(anchor, target) else dict(usual)


def table(found: Sequence[Product], variants: Sequence[str]) -> Table:
    """A line for each product, and one for all."""
    result = Table(title="Median in us of the default, and how many times as fast the variants are")
    for head in ("model", "product", "count", "default", *variants):
        result.add_column(head, justify="left" if head in ("model", "product") else "right")
    for each in found:
        ratios = (f"{each.ratio(name):.3f}" for name in variants)
        extents = "x".join(map(str, each.extents))
        result.add_row(each.model, f"{each.group} {extents}", str(each.count), f"{each.default_us:.0f}", *ratios)
    total = sum(each.count * each.default_us for each in found)
    sums = (sum(each.count * each.variants_us[name] for each in found) for name in variants)
    result.add_row("", "all of these", "", f"{total:.0f}", *(f"{total / us:.3f}" for us in sums))
    return result


if __name__ == "__main__":
    main()
