"""Whole spaces of products on this machine's processor: the default, the best, and the best of random draws.

    python -m benchmarks.cpu_spaces --products 128x768x3072 784x512x128 [--right weights] [--threads 2]
    python -m benchmarks.cpu_spaces --default-only --products 2039x2039x2039 2048x2048x2048
    python -m benchmarks.cpu_spaces --rows 4 5 6 --products 128x256x256 196x1024x256

Every candidate of `matmul_cpu` is compiled and timed, interleaved, as Hidet enumerates its space (ASPLOS 2023, section
4.3), and so are as many random combinations of all values of the knobs that the limits allow, which tells whether the
space leaves out what is faster. The five best of each are timed again, in more rounds. The table has microseconds of
the default, of the best of the space and of the draws, how many schedules there are, and the seconds that enumerating
them took. With `--rows`, the default schedule is timed with other heights of its register tile instead. Measure on a
machine that does nothing else.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from rich.console import Console
from rich.table import Table

from benchmarks.arguments import positive
from benchmarks.machine import describe_run
from benchmarks.prefetch import medians
from benchmarks.register_tiles import texts_of, varied
from benchmarks.result_files import RESULTS, write_results
from treadle.dialects.graph import MatmulOp
from treadle.schedules.register_tile import MOST_ROWS
from treadle.schedules.template import Choices
from treadle.schedules.templates import TEMPLATES
from treadle.target.host import host_target
from treadle.target.options import CompileOptions
from treadle.tuning.model import tasks_of_model
from treadle.tuning.tasks import GroupTask

_TEMPLATE = "matmul_cpu"
_ROUNDS, _AGAIN = 5, 21
"""Samples of each schedule, and of the best ones."""
_BEST = 5
_TRIES = 1000
"""Draws for each schedule that is wanted; small products have few different ones."""
_TURNS = 3
"""In which default schedules are timed: the least time counts."""


@dataclass(frozen=True)
class Space:
    """One product: microseconds of the default schedule, of the best of the space and of as many random draws.

    seconds: that it took to compile and time the space
    """

    product: str
    right: str
    schedules: int
    default_us: float
    best_us: float
    drawn_us: float | None
    seconds: float
    default: str
    best: str
    drawn: str | None

    @property
    def gflops(self) -> float:
        """Of the default schedule, in 1e9 operations a second."""
        m, k, n = map(int, self.product.split("x"))
        return 2 * m * k * n / self.default_us / 1e3


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--products", nargs="+", required=True, metavar="MxKxN")
    parser.add_argument("--right", choices=("weights", "input"), default="weights", help="what the right operand is")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the random draws")
    parser.add_argument("--default-only", action="store_true", help="time the default schedules alone")
    parser.add_argument("--rows", nargs="+", type=positive, help="time the default schedules with these rows")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    if args.rows:
        for product in args.products:
            print(product, heights(product, args.right, args.threads, args.rows))
        return
    if args.default_only:
        rows = defaults(args.products, args.right, args.threads)
    else:
        rows = [enumerated(product, args.right, args.threads, args.seed) for product in args.products]
    Console().print(table(rows))
    settings: dict[str, Any] = {"threads": args.threads, "seed": args.seed}
    written = write_results("cpu_spaces", describe_run() | settings, [asdict(each) for each in rows], args.output)
    print(f"written to {written}")


def task_of(product: str, right: str) -> GroupTask:
    """The group of a product, `M x K x N`, whose right operand is a constant or an input."""
    m, k, n = (int(each) for each in product.split("x"))
    weights: NDArray[Any] = np.random.default_rng(0).standard_normal((k, n), dtype=np.float32)
    inputs = [helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [m, k])]
    if right == "input":
        inputs.append(helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [k, n]))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["c"])],
        "product",
        inputs,
        [helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, [m, n])],
        [numpy_helper.from_array(weights, "b")] if right == "weights" else [],
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "product.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
        tasks = tasks_of_model(path, host_target(), {}, CompileOptions())
        return next(task for task in tasks if task.default.program == _TEMPLATE)


def enumerated(product: str, right: str, threads: int, seed: int) -> Space:
    """Times a product's whole space, and as many random draws."""
    task, target = task_of(product, right), host_target()
    template, anchor = TEMPLATES[_TEMPLATE], task.search.anchor
    usual = template.canonical(anchor, template.default(anchor, target), target)
    start = time.monotonic()
    space = list(template.candidates(anchor, target))
    times = timed(task, space, threads)
    seconds = time.monotonic() - start
    random = drawn(task, len(space), seed)
    others = timed(task, random, threads)
    near, far = fastest(space, times), fastest(random, others)
    default_us, *again = timed(task, [usual, *near, *far], threads, _AGAIN)
    (best_us, best), (drawn_us, other) = (
        min(zip(us, map(str, schedules), strict=True))
        for us, schedules in ((again[: len(near)], near), (again[len(near) :], far))
    )
    return Space(product, right, len(space), default_us, best_us, drawn_us, round(seconds, 1), str(usual), best, other)


def fastest(schedules: Sequence[Choices], times: Sequence[float]) -> list[Choices]:
    """The schedules of the least times."""
    return [schedules[n] for n in sorted(range(len(schedules)), key=times.__getitem__)[:_BEST]]


def heights(product: str, right: str, threads: int, rows: Sequence[int]) -> dict[int, float]:
    """Microseconds of a product's default schedule with other rows of its register tile."""
    task, target = task_of(product, right), host_target()
    anchor, template = task.search.anchor, TEMPLATES[_TEMPLATE]
    assert isinstance(anchor, MatmulOp)
    usual = template.canonical(anchor, template.default(anchor, target), target)
    found = [varied(anchor, usual, f"rows={each}", target) for each in rows]
    return dict(zip(rows, timed(task, found, threads, _AGAIN), strict=True))


def defaults(products: Sequence[str], right: str, threads: int) -> list[Space]:
    """Times the default schedules of products in turn."""
    tasks, target, found = [task_of(product, right) for product in products], host_target(), list[Space]()
    template = TEMPLATES[_TEMPLATE]
    chosen = [template.canonical(t.search.anchor, template.default(t.search.anchor, target), target) for t in tasks]
    pairs = list(zip(tasks, chosen, strict=True))
    turns = [[timed(task, [each], threads)[0] for task, each in pairs] for _ in range(_TURNS)]
    for product, choices, us in zip(products, chosen, (min(each) for each in zip(*turns, strict=True)), strict=True):
        found.append(Space(product, right, 1, us, us, None, 0.0, str(choices), str(choices), None))
    return found


def drawn(task: GroupTask, count: int, seed: int) -> list[Choices]:
    """Different kernels by random values of all knobs, within the limits."""
    template, anchor, target = TEMPLATES[_TEMPLATE], task.search.anchor, host_target()
    random, found = Random(seed), dict[str, Choices]()
    legal, m = template.legal(anchor, target).pinned(**template.decided(anchor, target)), anchor.shape[-2]
    for _ in range(_TRIES * count):
        if len(found) == count:
            break
        rows = random.randint(1, min(m, MOST_ROWS))
        tiles = random.randint(1, ceil(m / rows))
        choices = {knob.name: random.choice(knob.values) for knob in legal.knobs} | {"rows": rows}
        choices["chunk"] = rows * tiles
        if choices in legal:
            kept = template.canonical(anchor, choices, target)
            found[str(kept)] = kept
    return list(found.values())


def timed(task: GroupTask, schedules: Sequence[Choices], threads: int, rounds: int = _ROUNDS) -> list[float]:
    """Microseconds of a call of each schedule's kernel, in turn."""
    return [round(seconds * 1e6, 2) for seconds in medians(task, texts_of(task, schedules), threads, rounds)]


def table(rows: Sequence[Space]) -> Table:
    """A line for each product."""
    found = Table(title="Microseconds of products")
    for head in ("product", "schedules", "default", "GFLOP/s", "best", "default/best", "drawn/best", "seconds"):
        found.add_column(head, justify="right")
    for each in rows:
        ratio = "" if each.drawn_us is None else f"{each.drawn_us / each.best_us:.2f}"
        found.add_row(
            each.product, str(each.schedules), f"{each.default_us:.0f}", f"{each.gflops:.0f}", f"{each.best_us:.0f}",
            f"{each.default_us / each.best_us:.2f}", ratio, f"{each.seconds:.0f}",
        )  # fmt: skip
    return found


if __name__ == "__main__":
    main()
