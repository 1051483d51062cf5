"""What a rule adds to a space: MetaSchedule's figure 10a by predicted times, for products of float16.

    python -m benchmarks.composition [--target sm_80] [--draws 400] [--products 1024x1024x4096 ...]

Prints predicted microseconds: of the best of all candidates of `matmul_mma`; of the best of random candidates of the
default rules' nests without tensor cores, and of those with `tensorized`, which has tiles, stages and tensor cores in
one program. Source: MetaSchedule (NeurIPS 2022), section 6.3 and figure 10a, whose operator is 1024 x 1024 x 4096, a
dense layer of BERT-large.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from random import Random

import numpy as np

from treadle import ir
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp, MatmulOp
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.rules import Rule, cross_thread, fused, programs, staged, templates, tensorized, tiled, unrolled
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.predict import Forecast
from treadle.schedules.template import Anchor
from treadle.target import Target

PRODUCTS = (
    "1024x1024x1024", "1024x1024x4096", "4096x4096x4096", "128x768x3072", "12x128x64x128", "2000x1000x1500",
    "96x8192x96", "7x512x512",
)  # fmt: skip
"""[batch x] M x K x N."""
AFTER: tuple[Rule, ...] = (staged("shared", ahead=True), unrolled)
CUDA_CORES: tuple[Rule, ...] = (fused, cross_thread, tiled("SRSSRRSRS"), tiled("SSSRRSRS"), *AFTER)
TENSOR_CORES: tuple[Rule, ...] = (tensorized("SRSRRS"), tensorized("SSRRS"), *AFTER)


@dataclass(frozen=True)
class Best:
    """The least predicted seconds, of which candidate, and of how many that were legal."""

    seconds: float
    candidate: Candidate | None
    legal: int


def product(text: str, target: Target) -> Anchor:
    """The product of a text as it is scheduled for a target."""
    *batch, m, k, n = map(int, text.split("x"))
    entry = ir.Entry({"a": ir.tensor_type(np.float16, (*batch, m, k)), "b": ir.tensor_type(np.float16, (*batch, k, n))})
    module = entry.module({"c": entry.add(MatmulOp(entry["a"], entry["b"]))})
    lower(treadle_context(), module, target, to="schedule")
    (group,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    return anchor_of(group)


def best(task: Task, candidates: Iterable[Candidate]) -> Best:
    """The best of some candidates."""
    forecast, found = Forecast(task), Best(inf, None, 0)
    for candidate in candidates:
        with suppress(TreadleError):
            seconds = forecast.seconds(candidate)
            found = Best(
                *min((seconds, candidate), (found.seconds, found.candidate), key=lambda x: x[0]), found.legal + 1
            )
    return found


def of_templates(anchor: Anchor, target: Target) -> Best:
    """The best of all that templates for products give."""
    task = Task(anchor, target, tuple(p for p in programs(anchor, target, [templates]) if "generic" not in str(p)))
    return best(task, task.of_templates())


def of_nests(anchor: Anchor, target: Target, rules: Sequence[Rule], draws: int, seed: int = 0) -> Best:
    """The best of random candidates of the programs of some rules."""
    task, draw = Task(anchor, target, programs(anchor, target, rules)), Random(seed)
    names = list(task.by_name)
    drawn = ((name, task.samplers[name].draw(draw)) for name in (draw.choice(names) for _ in range(draws)))
    return best(task, (Candidate(name, decisions) for name, decisions in drawn if decisions is not None))


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each product."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="sm_80")
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--products", nargs="*", default=list(PRODUCTS))
    given = parser.parse_args(arguments)
    target = Target.parse(given.target)
    print(f"{'product':20}{'matmul_mma':>12}{'nests':>12}{'with mma':>12}   best nest on tensor cores")
    for text in given.products:
        anchor = product(text, target)
        whole, plain = of_templates(anchor, target), of_nests(anchor, target, CUDA_CORES, given.draws)
        composed = of_nests(anchor, target, TENSOR_CORES, given.draws)
        times = "".join(f"{each.seconds * 1e6:12.2f}" for each in (whole, plain, composed))
        print(f"{text:20}{times}   {composed.candidate}", flush=True)


if __name__ == "__main__":
    main()
