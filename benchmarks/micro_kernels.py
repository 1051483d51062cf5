"""What several kernels for a range gain: predicted, and measured.

    python -m benchmarks.micro_kernels --onnx /tmp/models
    python -m benchmarks.micro_kernels --onnx /tmp/models --models nt --lengths 1 8 64 --seconds 1

For each of DietCode's layers (`benchmarks/dynamic_lengths.py`) that gets a `#schedule.dispatch`, an artifact with that
decision, one with each of its kernels alone, and one with the default schedule run in turn. The table has the median
milliseconds of a call, and what was predicted of each kernel at the nearest point: a call also copies its inputs and
outputs. The threshold of ADR 0046 is from such tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

import treadle
from benchmarks.arguments import positive
from benchmarks.dynamic_lengths import LAYERS, Workload, calls_of, workload
from treadle.bench.interleave import interleave
from treadle.dialects.graph import FusedOp
from treadle.dialects.schedule import DispatchAttr, UseAttr
from treadle.passes.schedule.ranged_schedule import RangedSchedules
from treadle.shapes.decision_tree import tree_text

Schedule = UseAttr | DispatchAttr
SIDE_SECONDS = 0.05


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    args = _arguments(argv)
    console = Console(width=140)
    for name in args.models:
        work = workload(name, args.onnx, longest=args.longest)
        found: dict[str, DispatchAttr] = {}
        with _model(work, args, found=found) as dispatched:
            if not found:
                console.print(f"{name}: one kernel a group")
                continue
            console.print(_measured(work, dispatched, found, args))
    return 0


@contextmanager
def _model(
    work: Workload,
    args: argparse.Namespace,
    *,
    found: dict[str, DispatchAttr] | None = None,
    fixed: Mapping[str, UseAttr] | None = None,
) -> Generator[treadle.CompiledModel]:
    """The artifact of the range. found: takes the dispatches, by labels; fixed: decisions in their place, by labels,
    with the default one for others."""
    choose = RangedSchedules.of

    def of(self: RangedSchedules, fused: FusedOp, default: UseAttr) -> Schedule:
        if fixed is not None:
            return fixed.get(fused.label.data, default)
        schedule = choose(self, fused, default)
        if found is not None and isinstance(schedule, DispatchAttr):
            found[fused.label.data] = schedule
        return schedule

    with patch.object(RangedSchedules, "of", of):
        model = treadle.compile(work.path, "cpu", work.shapes, threads=args.threads, cached=False)
    with model:
        yield model


def _measured(
    work: Workload, dispatched: treadle.CompiledModel, found: Mapping[str, DispatchAttr], args: argparse.Namespace
) -> Table:
    label, schedule = next(iter(found.items()))
    kernels = [each for each in schedule.alternatives.data if isinstance(each, UseAttr)]
    with ExitStack() as stack:
        models = {"dispatch": dispatched, "default": stack.enter_context(_model(work, args, fixed={}))}
        for number, kernel in enumerate(kernels):
            models[f"kernel {number}"] = stack.enter_context(_model(work, args, fixed={label: kernel}))
        title = f"{work.name}, {label}: {tree_text(schedule.tree.data)}"
        table = Table(title=title, caption="\n".join(map(str, kernels)))
        for title in ("length", *(f"{side} ms" for side in models), "predicted ms"):
            table.add_column(title, justify="right")
        for length in args.lengths:
            inputs = work.inputs(1, length)
            calls = calls_of({side: partial(model.run, inputs) for side, model in models.items()})
            rounds = max(5, int(args.seconds / (SIDE_SECONDS * len(calls))))
            times = interleave(calls, rounds, SIDE_SECONDS)
            extent = inputs["x"].shape[0 if work.name == "dense" else 1]
            nearest = min(schedule.predicted.data, key=lambda each, at=extent: abs(each.extents[0] - at))
            predicted = " ".join(f"{each * 1e3:.3f}" for each in nearest.seconds[:-1])
            table.add_row(str(length), *(f"{each.median * 1e3:.3f}" for each in times.values()), predicted)
    return table


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what several kernels for a range gain.")
    parser.add_argument("--onnx", type=Path, required=True, metavar="DIR", help="where the layers' files go")
    parser.add_argument("--models", nargs="+", choices=LAYERS, default=LAYERS, metavar="NAME")
    parser.add_argument("--longest", type=positive, default=128, metavar="N", help="of the range (default 128)")
    parser.add_argument("--lengths", nargs="+", type=positive, default=[1, 4, 8, 11, 17, 32, 64, 128], metavar="N")
    parser.add_argument("--threads", type=positive, default=2, metavar="N", help="threads (default 2)")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="for each length (default 2)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
