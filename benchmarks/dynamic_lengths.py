"""One artifact for a range of lengths against an artifact for each length, and against ONNX Runtime's dynamic model.

    make bench ARGS="--dynamic --onnx /tmp/models"
    make bench ARGS="--dynamic --onnx /tmp/models --models gpt2 --longest 128 --lengths 8 --batch 4 --shapes 60"
    make bench ARGS="--dynamic --onnx /tmp/models --longest 128 --construct greedy walk"
    make bench ARGS="--dynamic --onnx /tmp/models --models dense nt nn --longest 128 --lengths 128 --seconds 0.8 \\
        --turn 0.025"

BERT-base and GPT-2 are exported with any batch and any length (`benchmarks/paper_models.py`), as `NAME-dynamic.onnx` in
the folder `--onnx`; `--exporter` names a Python that has torch, transformers and onnxscript. `dense`, `nt` and `nn` are
the layers of DietCode's figures 10 and 12, written there, too: 16 T rows by 768 x 2304, and 192 products of T x 64 with
64 x T, and of T x T with T x 64. The range is 1 to `--longest` (and for models 1 to `--batch` rows; timed calls have
one). Outputs of `--shapes` random shapes and of all corners of the range are compared with ONNX Runtime's first.

Of a length, all sides run in one process, a batch of calls of each in turn, in `--seconds` at least five of `--turn`
seconds; the artifact of the range pays for padding its input and for cutting its output out. `largest` is the artifact
of the longest length alone, with padded inputs. Layers' artifacts for one length are compiled before anything is
timed, one on each processor, so that a table of every length of the three takes ten minutes or so. With `--construct`
the artifact of the range is there with constructed schedules, too, as `treadle compile --construct` makes them:
`greedy` as Roller's and `walk` as Gensor's are the sides of Gensor's figure 11. How long compiling for the range and
for the longest length takes (the median of `--compilations` of both in turn, with empty caches), and how large the
artifacts are, is printed as well. The raw numbers go to `benchmarks/results/`. Measure on a machine that does nothing
else.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, ValueInfoProto, save_model
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array
from rich.console import Console
from rich.table import Table

import treadle
from benchmarks.arguments import positive
from benchmarks.machine import describe_run
from benchmarks.paper_models import PAPER_MODELS
from benchmarks.result_files import RESULTS, write_results
from benchmarks.tuned_models import exported
from treadle.bench.interleave import Times, interleave, quartiles
from treadle.bench.model import peer_call
from treadle.target.options import CONSTRUCTIONS
from treadle.tools.certify_command import certify

Array = NDArray[Any]
Extent = treadle.Dim | int

MODELS, LAYERS = ("bert_base", "gpt2"), ("dense", "nt", "nn")
DYNAMIC, STATIC, LARGEST, PEER = "range", "one length", "largest", "onnxruntime"
_SEED = 7
_CLOSE = 1.15
"""Times of an artifact for one length that an artifact of a range may take at its worst length."""


@dataclass(frozen=True)
class Workload:
    """A model with inputs of a batch and a length."""

    name: str
    path: Path
    shapes: Mapping[str, Sequence[Extent]]

    def inputs(self, batch: int, length: int) -> dict[str, Array]:
        """Token ids, or numbers of a normal distribution."""
        generator, values = np.random.default_rng(_SEED), {"batch": batch, "length": length}
        shapes = {name: [_value(extent, values) for extent in shape] for name, shape in self.shapes.items()}
        if self.name in MODELS:
            return {name: generator.integers(0, 30000, shape) for name, shape in shapes.items()}
        return {name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def _value(extent: Extent, values: Mapping[str, int]) -> int:
    """An extent of a call; `rows` are 16 of the length."""
    if not isinstance(extent, treadle.Dim):
        return extent
    return 16 * values["length"] if extent.name == "rows" else values[extent.name]


@dataclass(frozen=True)
class Length:
    """The times of all sides for one length."""

    length: int
    times: Mapping[str, Times]

    def loss(self, other: str) -> float:
        """How many times another side's time the artifact of the range takes: the median of the rounds."""
        return self.times[DYNAMIC].ratios(self.times[other])[1]

    def row(self) -> dict[str, object]:
        """The numbers for JSON: milliseconds of every round."""
        ms = {side: [round(each * 1e3, 4) for each in times.seconds] for side, times in self.times.items()}
        return {"length": self.length, "ms": ms}


@dataclass(frozen=True)
class Cost:
    """What compiling took, how large the artifact is, and how many kernels groups have that have several."""

    seconds: float
    num_bytes: int
    kernels: tuple[int, ...] = ()

    def against(self, other: Cost) -> str:
        """How many times as much as another one."""
        seconds, size = self.seconds / other.seconds, self.num_bytes / other.num_bytes
        return f"{seconds:.2f} times the time to compile, {size:.2f} times as large"

    def row(self) -> dict[str, float]:
        """For JSON."""
        return {"seconds": round(self.seconds, 2), "bytes": self.num_bytes, "kernels": max(self.kernels, default=1)}


def _costs(
    sides: Mapping[str, tuple[Workload, Mapping[str, Sequence[Extent]]]], args: argparse.Namespace
) -> dict[str, Cost]:
    """What each side costs: the median of some compilations of all sides in turn, after a first one that does not
    count, since it imports the compiler."""
    rounds = [{side: _cost(*what, args) for side, what in sides.items()} for _ in range(args.compilations + 1)][1:]
    return {side: replace(rounds[0][side], seconds=median(each[side].seconds for each in rounds)) for side in sides}


def _cost(work: Workload, shapes: Mapping[str, Sequence[Extent]], args: argparse.Namespace) -> Cost:
    """With an empty cache, which would have the C compiler's results of an earlier compilation."""
    with (
        tempfile.TemporaryDirectory() as cache,
        patch.dict("os.environ", {"TREADLE_CACHE_DIR": cache}),
    ):
        return _cost_here(work, shapes, args)


def _cost_here(work: Workload, shapes: Mapping[str, Sequence[Extent]], args: argparse.Namespace) -> Cost:
    start = time.perf_counter()
    with treadle.compile(work.path, "cpu", shapes, threads=args.threads, cached=False) as model:
        seconds = time.perf_counter() - start
        size = sum(file.stat().st_size for file in model.folder.rglob("*") if file.is_file())
        return Cost(seconds, size, tuple(len(each.kernels) for each in certify(model.artifact)))


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes."""
    args = _arguments(argv)
    console, circumstances = Console(width=120), describe_run()
    rows: list[dict[str, object]] = []
    for name in args.models:
        work = workload(name, args.onnx, longest=args.longest, batch=args.batch, exporter=args.exporter)
        longest = {each: array.shape for each, array in work.inputs(args.batch, args.longest).items()}
        costs = _costs({DYNAMIC: (work, work.shapes), LARGEST: (work, longest)}, args)
        for side, cost in costs.items():
            kernels = ", ".join(map(str, cost.kernels)) or "one each"
            size = f"{cost.num_bytes / 1e6:.3f} MB"
            console.print(f"{name}, {side}: {cost.seconds:.2f} s to compile, {size}, kernels of groups: {kernels}")
        console.print(f"{name}, {DYNAMIC} / {LARGEST}: {costs[DYNAMIC].against(costs[LARGEST])}")
        with (
            tempfile.TemporaryDirectory() as cache,
            patch.dict("os.environ", {"TREADLE_CACHE_DIR": cache}),
            ExitStack() as stack,
        ):
            ranged = {DYNAMIC: stack.enter_context(_ranged(work, args, None))}
            ranged |= {each: stack.enter_context(_ranged(work, args, each)) for each in args.construct}
            for side, model in ranged.items() if args.shapes else ():
                worst, count = _agreement(work, model, args), args.shapes
                console.print(f"{name}, {side}: of {count} shapes and the corners, at most {worst:.2g} from {PEER}")
            lengths = _all_measured(work, ranged, args)
        console.print(table(name, lengths))
        for line in summary(name, lengths):
            console.print(line, soft_wrap=True)
        about = {"model": name, "range": f"1 to {args.longest}", "compiled": {s: c.row() for s, c in costs.items()}}
        rows += [about | each.row() for each in lengths]
    what = "dynamic_lengths_constructed" if args.construct else "dynamic_lengths"
    path = write_results(what, circumstances | {"threads": args.threads}, rows, args.output)
    console.print(f"written to {path}")
    return 0


def table(name: str, lengths: Sequence[Length]) -> Table:
    """One line a length, milliseconds, and what the artifact of the range loses."""
    others = [side for side in lengths[0].times if side != DYNAMIC]
    found = Table(title=f"{name}: median latency in ms")
    found.add_column("length", justify="right")
    for title in (DYNAMIC, *others, *(f"{DYNAMIC} / {side}" for side in others)):
        found.add_column(title, justify="right")
    for each in lengths:
        times = (f"{each.times[side].median * 1e3:.3f}" for side in (DYNAMIC, *others))
        found.add_row(str(each.length), *times, *(f"{each.loss(side):.3f}" for side in others))
    for title, total in (("geometric mean", geometric_mean), ("largest", max)):
        losses = (total([each.loss(side) for each in lengths]) for side in others)
        found.add_row(title, "", *("" for _ in others), *(f"{loss:.3f}" for loss in losses))
    return found


def summary(name: str, lengths: Sequence[Length]) -> list[str]:
    """What the artifact of the range loses to each other side over all lengths, for documentation."""
    lines: list[str] = []
    for side in (side for side in lengths[0].times if side != DYNAMIC):
        losses = [each.loss(side) for each in lengths]
        low, middle, high = quartiles(losses)
        close = sum(loss <= _CLOSE for loss in losses)
        lines.append(
            f"{name}, {DYNAMIC} / {side}: {geometric_mean(losses):.3f} in the geometric mean of {len(losses)} lengths, "
            f"{min(losses):.3f} to {max(losses):.3f}, quartiles {low:.3f}, {middle:.3f} and {high:.3f}; "
            f"{close} at most {_CLOSE}"
        )
    return lines


def workload(name: str, onnx: Path, *, longest: int, batch: int = 1, exporter: str = sys.executable) -> Workload:
    """A model or a layer with a length from 1 to the longest; its file is written or exported if it is missing."""
    length = treadle.Dim("length", 1, longest)
    if name in MODELS:
        rows = treadle.Dim("batch", 1, batch) if batch > 1 else 1
        shapes: dict[str, Sequence[Extent]] = {PAPER_MODELS[name].input: (rows, length)}
        return Workload(name, exported(f"{name}-dynamic", onnx, exporter), shapes)
    if name == "dense":
        shapes = {"x": (treadle.Dim("rows", 16, 16 * longest, 16), 768)}
    elif name == "nt":
        shapes = {"x": (192, length, 64), "w": (192, length, 64)}
    else:
        shapes = {"x": (192, length, length), "w": (192, length, 64)}
    return Workload(name, _layer(name, shapes, onnx), shapes)


def _layer(name: str, shapes: Mapping[str, Sequence[Extent]], folder: Path) -> Path:
    """One of DietCode's layers as a file."""
    inputs = [
        make_tensor_value_info(each, TensorProto.FLOAT, [e.name if isinstance(e, treadle.Dim) else e for e in shape])
        for each, shape in shapes.items()
    ]
    weights = np.random.default_rng(_SEED).standard_normal((768, 2304), np.float32)
    constants = [from_array(weights, "w")] if name == "dense" else []
    product = make_node("MatMul", ["x", "t" if name == "nt" else "w"], ["y"])
    nodes = [make_node("Transpose", ["w"], ["t"], perm=[0, 2, 1]), product] if name == "nt" else [product]
    graph = make_graph(nodes, name, inputs, [ValueInfoProto(name="y")], constants)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"dietcode-{name}.onnx"
    save_model(make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8), str(path))
    return path


def _agreement(work: Workload, dynamic: treadle.CompiledModel, args: argparse.Namespace) -> float:
    """The largest difference of an output from ONNX Runtime's, as a part of the output's largest magnitude."""
    session = importlib.import_module("onnxruntime").InferenceSession(str(work.path))
    generator, worst = np.random.default_rng(_SEED), 0.0
    corners = itertools.product((1, args.batch), (1, args.longest))
    drawn = (generator.integers(1, (args.batch + 1, args.longest + 1)) for _ in range(args.shapes))
    for batch, length in (*corners, *drawn):
        inputs = work.inputs(int(batch), int(length))
        for got, wanted in zip(dynamic.run(inputs).values(), session.run(None, inputs), strict=True):
            if got.shape != wanted.shape:
                raise SystemExit(f"{work.name} {batch} x {length}: {got.shape} is not {wanted.shape}")
            worst = max(worst, float(np.abs(got - wanted).max() / np.abs(wanted).max()))
    return worst


def spread_lengths(longest: int, count: int) -> list[int]:
    """As many lengths as were asked for, spread over the range by their logarithms in one half and evenly in the
    other, so that short ones and odd ones are among them."""
    half = count // 2
    short = np.geomspace(1, longest, half, endpoint=False)
    even = np.linspace(longest / (count - half), longest, count - half)
    found = sorted({round(each) for each in (*short, *even)})
    spare = (each for each in range(longest, 0, -1) if each not in found)
    return sorted([*found, *itertools.islice(spare, count - len(found))])


def _all_measured(
    work: Workload, ranged: Mapping[str, treadle.CompiledModel], args: argparse.Namespace
) -> list[Length]:
    """All lengths, one after another. Layers' artifacts are compiled before, which would disturb the times."""
    lengths = spread_lengths(args.longest, args.lengths)
    if work.name not in LAYERS:
        return [_measured(work, ranged, length, args) for length in lengths]
    shapes = [_shapes(work.inputs(1, length)) for length in {*lengths, args.longest}]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for _ in pool.map(partial(_compile_ahead, work.path, args.threads), shapes):
            pass
    return [_measured(work, ranged, length, args) for length in lengths]


def _ranged(work: Workload, args: argparse.Namespace, construct: str | None) -> treadle.CompiledModel:
    """The artifact of the range, with default schedules or with constructed ones."""
    return treadle.compile(work.path, "cpu", work.shapes, threads=args.threads, construct=construct)


def _compile_ahead(path: Path, threads: int, shapes: Mapping[str, Sequence[int]]) -> None:
    """Puts an artifact into the cache."""
    treadle.compile(path, "cpu", shapes, threads=threads).close()


def _shapes(inputs: Mapping[str, Array]) -> dict[str, Sequence[int]]:
    return {name: array.shape for name, array in inputs.items()}


def _measured(
    work: Workload, ranged: Mapping[str, treadle.CompiledModel], length: int, args: argparse.Namespace
) -> Length:
    inputs, sides = work.inputs(1, length), dict[str, Callable[[], object]]()
    is_layer = work.name in LAYERS
    with ExitStack() as stack:
        # The cache keeps no models for one length, which are large and used once.
        static = stack.enter_context(_static(work, inputs, args, cached=is_layer))
        sides |= {side: partial(model.run, inputs) for side, model in ranged.items()}
        sides[STATIC] = partial(static.run, inputs)
        if is_layer:
            longest = stack.enter_context(_static(work, work.inputs(1, args.longest), args, cached=True))
            sides[LARGEST] = partial(_padded_run, longest, inputs)
        sides[PEER] = peer_call(PEER, work.path, inputs, args.threads)
        rounds = max(5, int(args.seconds / (args.turn * len(sides))))
        times = interleave(calls_of(sides), rounds, args.turn)
    found = Length(length, times)
    medians = ", ".join(f"{side} {times[side].median * 1e3:.3f}" for side in sides)
    print(f"{work.name} {length}: ms {medians}; {found.loss(STATIC):.3f}, {found.loss(PEER):.3f}", flush=True)
    return found


def _static(
    work: Workload, inputs: Mapping[str, Array], args: argparse.Namespace, *, cached: bool
) -> treadle.CompiledModel:
    """An artifact for these shapes alone."""
    return treadle.compile(work.path, "cpu", _shapes(inputs), threads=args.threads, cached=cached)


def _padded_run(model: treadle.CompiledModel, inputs: Mapping[str, Array]) -> object:
    """A call of an artifact for a larger shape with zeros behind the inputs, and the rows that were asked for."""
    padded = {tensor.name: np.zeros(tensor.shape, tensor.dtype) for tensor in model.inputs}
    for name, array in inputs.items():
        padded[name][tuple(map(slice, array.shape))] = array
    return [np.ascontiguousarray(array[..., : inputs["x"].shape[-2], :]) for array in model.run(padded).values()]


def calls_of(sides: Mapping[str, Callable[[], object]]) -> dict[str, Callable[[int], None]]:
    """Each side as a batch of calls, after a first one."""
    for call in sides.values():
        call()
    return {side: _repeated(call) for side, call in sides.items()}


def _repeated(call: Callable[[], object]) -> Callable[[int], None]:
    def run(count: int) -> None:
        for _ in range(count):
            call()

    return run


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure artifacts for a range of lengths.")
    parser.add_argument("--models", nargs="+", choices=(*MODELS, *LAYERS), default=("bert_base",), metavar="NAME")
    parser.add_argument("--onnx", type=Path, required=True, metavar="DIR", help="where the .onnx files are, or go")
    parser.add_argument("--exporter", default=sys.executable, metavar="PYTHON", help="what exports missing ones")
    parser.add_argument("--construct", nargs="+", choices=CONSTRUCTIONS[1:], default=(), metavar="NAME", help="sides")
    parser.add_argument("--longest", type=positive, default=512, metavar="N", help="tokens (default 512)")
    parser.add_argument("--batch", type=positive, default=1, metavar="N", help="rows of the range (default 1)")
    parser.add_argument("--lengths", type=positive, default=16, metavar="N", help="how many are timed (default 16)")
    parser.add_argument("--shapes", type=int, default=0, metavar="N", help="random shapes compared first (default 0)")
    parser.add_argument("--threads", type=positive, default=2, metavar="N", help="threads of all sides (default 2)")
    parser.add_argument("--seconds", type=float, default=6.0, metavar="S", help="for each length (default 6)")
    parser.add_argument("--turn", type=float, default=0.1, metavar="S", help="of a side in each round (default 0.1)")
    parser.add_argument("--compilations", type=positive, default=3, metavar="N", help="timed ones (default 3)")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
