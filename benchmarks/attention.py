"""Attention in one kernel against the operators that it is made of, on this machine's processor.

    python -m benchmarks.attention --sizes 12x128x64 causal:12x128x64 masked:12x32x64 --choices keys=6 keys=4,vectors=3

A size is heads x queries x the size of a head, with as many keys as queries, or heads x queries x keys x size. Queries,
keys and values are slices of one product, as in a model, and heads are joined behind. The kernel has the template's
default schedule, and those that differ from it by each of `--choices`; all programs are compiled for this processor,
and called in turn. The table has medians, and quartiles of the ratios of calls that follow one another. The raw numbers
go to `benchmarks/results/`. Where the kernel is the default is decided in
`treadle/schedules/templates/attention_cpu.py`. Measure on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles

import numpy as np
from rich.console import Console
from rich.table import Table
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from benchmarks.arguments import positive
from benchmarks.machine import describe_run
from benchmarks.result_files import RESULTS, write_results
from treadle.backends.c.compiler import build_library
from treadle.backends.c.printer import print_host, print_kernels
from treadle.backends.program import Program, read_program
from treadle.compiler.pipeline import STAGE_NAMES, STAGES, lower, passes_of
from treadle.dialects.graph import AttentionOp, FusedOp, ReshapeOp, SliceOp, TransposeOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice, UseAttr
from treadle.ir import Entry, tensor_type
from treadle.passes.graph.graph_decompose_attention import written_out
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.template import Template
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target
from treadle.target.host import host_target
from treadle.tuning.measure import InterleavedTimer, Operands

_TEMPLATE = TEMPLATES["attention_cpu"]


@dataclass(frozen=True)
class Size:
    """One attention; `kind` is empty, causal, or masked: by a number for each key."""

    kind: str
    heads: int
    rows: int
    keys: int
    size: int

    @staticmethod
    def parse(text: str) -> Size:
        """`causal:12x128x64`; argparse's error for other text."""
        kind, _, extents = text.rpartition(":")
        parts = [positive(part) for part in extents.split("x")]
        if kind not in ("", "causal", "masked") or len(parts) not in (3, 4):
            raise argparse.ArgumentTypeError(f"{text!r} is not [causal:|masked:]HEADSxQUERIES[xKEYS]xSIZE")
        return Size(kind, *parts[:2], *parts[-2:])

    def __str__(self) -> str:
        extents = f"{self.heads}x{self.rows}x{self.keys}x{self.size}"
        return f"{self.kind}:{extents}" if self.kind else extents

    def module(self, *, whole: bool) -> ModuleOp:
        """The program, behind the passes of graphs: attention as one operator, or written out."""
        width, longest = self.heads * self.size, max(self.rows, self.keys)
        inputs = {"x": tensor_type("float32", (1, longest, 3 * width))}
        if self.kind == "masked":
            inputs["mask"] = tensor_type("float32", (1, 1, 1, self.keys))
        entry = Entry(inputs)

        def part(number: int, rows: int) -> SSAValue:
            taken = entry.add(SliceOp(entry["x"], [0, 0, number * width], [1, rows, width], [1, 1, 1]))
            return entry.add(TransposeOp(entry.add(ReshapeOp(taken, [1, rows, self.heads, self.size])), [0, 2, 1, 3]))

        q, k, v = part(0, self.rows), part(1, self.keys), part(2, self.keys)
        mask = entry["mask"] if self.kind == "masked" else None
        op = AttentionOp(q, k, v, mask, scale=self.size**-0.5, causal=self.kind == "causal")
        *_, result = [entry.add(step) for step in ([op] if whole else written_out(op))]
        if not whole:
            op.erase()
        joined = entry.add(TransposeOp(result, [0, 2, 1, 3]))
        return entry.module({"y": entry.add(ReshapeOp(joined, [1, self.rows, width]))})


@dataclass(frozen=True)
class Measured:
    """One size: medians in microseconds of the operators, and of the kernel with each schedule; and the quartiles of
    the operators' time divided by the kernel's."""

    size: str
    written_out_us: float
    kernel_us: Mapping[str, float]
    ratios: Mapping[str, tuple[float, ...]]


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=Size.parse, required=True)
    parser.add_argument("--choices", nargs="+", default=[], metavar="KNOB=N", help="joined by commas")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--rounds", type=positive, default=40)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    variants = {name: changes(name) for name in args.choices}
    found = [measured(size, {"default": {}} | variants, args.threads, args.rounds) for size in args.sizes]
    Console().print(table(found))
    settings = {"threads": args.threads, "rounds": args.rounds}
    rows: list[dict[str, object]] = [asdict(each) for each in found]
    print(f"written to {write_results('attention', describe_run() | settings, rows, args.output)}")


def changes(text: str) -> dict[str, Choice]:
    """`keys=6,vectors=2` as choices."""
    return {knob: int(value) for knob, _, value in (word.partition("=") for word in text.split(","))}


def measured(size: Size, variants: Mapping[str, Mapping[str, Choice]], threads: int, rounds: int) -> Measured:
    """Times one size."""
    programs = [built(size.module(whole=False), None), *(built(size.module(whole=True), v) for v in variants.values())]
    rng = np.random.default_rng(0)
    (_, program) = programs[0]
    inputs = [rng.standard_normal(spec.shape).astype(spec.dtype) for spec in program.inputs]
    arena = max(program.arena_bytes for _, program in programs)
    operands = Operands(inputs, program.outputs, (), 0)
    constants = [constant.array() for constant in program.constants]
    timer = InterleavedTimer([Path(path).read_bytes() for path, _ in programs], arena, operands, threads, constants)
    try:
        timer.run(rounds, float("inf"))
        operators, *kernels = timer.timed
    finally:
        timer.close()
    ratios = {
        name: quartiles([a / b for a, b in zip(operators.seconds, each.seconds, strict=True)])
        for name, each in zip(variants, kernels, strict=True)
    }
    times = {name: round(each.median * 1e6, 2) for name, each in zip(variants, kernels, strict=True)}
    return Measured(str(size), round(operators.median * 1e6, 2), times, ratios)


def quartiles(ratios: Sequence[float]) -> tuple[float, ...]:
    """Three numbers, rounded."""
    return tuple(round(each, 3) for each in quantiles(ratios, n=4))


def built(module: ModuleOp, wanted: Mapping[str, Choice] | None, template: Template = _TEMPLATE) -> tuple[str, Program]:
    """The library of a program, with a schedule of a template if one is wanted, and what running it takes."""
    target, context = host_target(), treadle_context()
    for step in passes_behind("graph-decompose-attention", target):
        step.apply(context, module)
    lower(context, module, target, after="graph", to="fuse")
    if wanted is not None:
        (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
        anchor = anchor_of(fused)
        choices = {**template.default(anchor, target), **wanted}
        template.check(anchor, choices, target, "the benchmark's choices")
        fused.schedule = UseAttr.get(template.name, choices)
    lower(context, module, target, after="fuse")
    library = build_library([*print_kernels(module), print_host(module)], target=target)
    return str(library), read_program(module)


def passes_behind(name: str, target: Target) -> list[ModulePass]:
    """The passes of graphs that follow one."""
    passes = passes_of(STAGES[STAGE_NAMES.index("graph")], target)
    return list(passes[[each.name for each in passes].index(name) + 1 :])


def table(found: Sequence[Measured]) -> Table:
    """A line for each size and schedule."""
    result = Table(title="Medians in us, and the quartiles of how many times as fast the kernel is")
    for head in ("size", "schedule", "operators", "kernel", "ratio"):
        result.add_column(head, justify="left" if head in ("size", "schedule") else "right")
    for each in found:
        for name, us in each.kernel_us.items():
            ratios = " ".join(f"{ratio:.2f}" for ratio in each.ratios[name])
            result.add_row(each.size, name, f"{each.written_out_us:.0f}", f"{us:.0f}", ratios)
    return result


if __name__ == "__main__":
    main()
