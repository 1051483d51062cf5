"""Convolutions of 3x3 filters, computed directly and by Winograd's F(2x2) and F(4x4), on this machine's processor.

    python -m benchmarks.winograd --onnx /tmp/models --models resnet50 inception_v3 --rounds 20

Each model is compiled three times, all of its convolutions that have tiles in one way, and the three run in turn. Of
each such convolution the times of its launches in the model are summed: the stored border, the transforms and the
product, with the epilogues. Layers of one geometry are added. The table has the median of the direct way, how many
times as fast the others are (the median of the rounds' ratios), how many times as fast the estimate by which
`graph-block-channels` chooses says they are, and the largest errors of random layers of that geometry against float64,
in parts of the root mean square of the result. The raw numbers go to `benchmarks/results/`. Measure on a machine that
does nothing else.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, TensorType, f32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region

import treadle
from benchmarks.arguments import positive
from benchmarks.machine import describe_run
from benchmarks.paper_models import PAPER_MODELS
from benchmarks.result_files import RESULTS, write_results
from benchmarks.tuned_models import exported, shapes_of
from treadle.backends.c.executor import CpuProgram
from treadle.bench.peaks import launches_of
from treadle.compiler.pipeline import STAGES, passes_of
from treadle.compiler.request import CompileRequest, lowered_module
from treadle.dialects.graph import ConvOp
from treadle.dialects.location import describe_nodes
from treadle.dialects.registry import treadle_context
from treadle.model import CompiledModel
from treadle.passes.graph.graph_block_channels import GraphBlockChannelsPass
from treadle.passes.graph.layout.blocked_channels import BlockedChannels
from treadle.passes.graph.layout.blocked_tiles import estimated_work, has_tiles
from treadle.passes.graph.layout.images import Images
from treadle.passes.graph.rewriting import constant_op, shape_of
from treadle.shapes.dim import normalized
from treadle.target.host import host_target
from treadle.target.options import CompileOptions

Array = NDArray[Any]
WAYS: Mapping[str, int | None] = {"direct": None, "F(2x2)": 2, "F(4x4)": 4}
"""The outputs of a tile along a dimension, by name."""


@dataclass(frozen=True)
class Geometry:
    """What a convolution's time depends on: the image, the result's channels and the padding."""

    image: tuple[int, ...]
    channels: int
    pads: tuple[int, ...]

    @staticmethod
    def of(op: ConvOp) -> Geometry:
        """That of a convolution."""
        return Geometry(shape_of(op.x), op.shape[1], tuple(op.pads.get_values()))

    def conv(self, block: Block, x: int, weights: Array) -> ConvOp:
        """A convolution of an argument of a block, appended to it."""
        filters = constant_op(weights)
        conv = ConvOp(block.args[x], filters.result, [1, 1], self.pads, [1, 1], 1)
        block.add_ops([filters, conv])
        return conv

    @property
    def weights(self) -> tuple[int, ...]:
        """The shape of the filters."""
        return self.channels, self.image[1], 3, 3


@dataclass(frozen=True)
class Layer:
    """The layers of one geometry in a model: seconds of each round, estimates and errors by way."""

    model: str
    geometry: Geometry
    count: int
    seconds: Mapping[str, Sequence[float]]
    estimates: Mapping[str, float]
    errors: Mapping[str, float]

    def ratio(self, way: str) -> float:
        """How many times as fast as the direct way."""
        return median(a / b for a, b in zip(self.seconds["direct"], self.seconds[way], strict=True))

    def expected(self, way: str) -> float:
        """The same, as it is estimated."""
        return self.estimates["direct"] / self.estimates[way]


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(PAPER_MODELS), default=["resnet50", "inception_v3"])
    parser.add_argument("--onnx", type=Path, required=True, help="a folder of models, or where they are exported to")
    parser.add_argument("--exporter", default="python", help="a Python that can export the models")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--rounds", type=positive, default=20)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    layers: list[Layer] = []
    for name in args.models:
        path, inputs = exported(name, args.onnx, args.exporter), PAPER_MODELS[name].inputs
        layers += measured(name, path, inputs, args.threads, args.rounds)
    Console().print(table(layers))
    rows: list[dict[str, object]] = [row(each) for each in layers]
    settings = {"threads": args.threads, "rounds": args.rounds}
    print(f"written to {write_results('winograd', describe_run() | settings, rows, args.output)}")


def measured(name: str, path: Path, inputs: Mapping[str, Array], threads: int, rounds: int) -> list[Layer]:
    """The layers of a model, and the whole model as a last one without an image."""
    found: dict[str, Geometry] = {}
    models = {way: compiled(path, inputs, outputs, threads, found) for way, outputs in WAYS.items()}
    launches = {way: launches_of(model.artifact) for way, model in models.items()}
    nodes = {way: [_node(launch.nodes, found) for launch in launches[way]] for way in WAYS}
    programs: dict[str, CpuProgram] = {}
    for way, model in models.items():
        program = model.open()
        assert isinstance(program, CpuProgram)
        programs[way] = program
    ordered = [inputs[tensor.name] for tensor in models["direct"].inputs]
    samples: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for turn in range(rounds):
        ways = [*WAYS][turn % 3 :] + [*WAYS][: turn % 3]
        for way in ways:
            programs[way].run(ordered)
            samples[way].append(programs[way].launch_seconds(ordered, len(launches[way])))
    geometries = list(dict.fromkeys(found.values()))
    errors = largest_errors(geometries)

    def layer(geometry: Geometry | None) -> Layer:
        mine = [node for node in found if geometry in (None, found[node])]
        seconds = {
            way: [
                sum(s for s, node in zip(sample, nodes[way], strict=True) if geometry is None or node in mine)
                for sample in samples[way]
            ]
            for way in WAYS
        }
        if geometry is None:
            return Layer(name, Geometry((), 0, ()), 1, seconds, dict.fromkeys(WAYS, 1.0), dict.fromkeys(WAYS, 0.0))
        return Layer(name, geometry, len(mine), seconds, estimates(geometry), errors[geometry])

    return [*map(layer, geometries), layer(None)]


def _node(nodes: str, found: Mapping[str, Geometry]) -> str | None:
    """The convolution among the nodes of a launch that is measured."""
    return next((node for node in found if node in nodes.split(", ")), None)


def compiled(
    path: Path, inputs: Mapping[str, Array], outputs: int | None, threads: int, found: dict[str, Geometry]
) -> CompiledModel:
    """A model all of whose convolutions that have tiles are computed in one way; notes their geometries in `found`."""
    request = CompileRequest(path, host_target(), shapes=normalized(shapes_of(inputs)))
    module = lowered_module(request, to="import")
    return treadle.compile(in_one_way(module, outputs, found), host_target(), after="graph", threads=threads)


def in_one_way(module: ModuleOp, outputs: int | None, found: dict[str, Geometry] | None = None) -> ModuleOp:
    """The module after stage `graph`, all of its convolutions that have tiles in one way."""

    def outputs_of(op: ConvOp) -> int | None:
        if found is not None and has_tiles(op):
            found[describe_nodes(op.location)] = Geometry.of(op)
        return outputs

    graph = next(stage for stage in STAGES if stage.name == "graph")
    for step in passes_of(graph, host_target(), CompileOptions()):
        if isinstance(step, GraphBlockChannelsPass):
            function = next(op for op in module.body.block.ops if isinstance(op, FuncOp))
            Images(function.body.block, BlockedChannels(host_target().lanes, outputs_of)).run()
        else:
            step.apply(treadle_context(), module)
    return module


def estimates(geometry: Geometry) -> dict[str, float]:
    """The estimated work of each way."""
    block = Block(arg_types=[TensorType(f32, geometry.image)])
    conv = geometry.conv(block, 0, np.zeros(geometry.weights, np.float32))
    assert has_tiles(conv)
    return {way: estimated_work(conv, outputs) for way, outputs in WAYS.items()}


def largest_errors(geometries: Sequence[Geometry]) -> dict[Geometry, dict[str, float]]:
    """The largest errors of random layers whose images are results of `relu`, against float64, divided by the root mean
    square of the result."""
    random = np.random.default_rng(0)
    images = [np.maximum(random.standard_normal(g.image), 0).astype(np.float32) for g in geometries]
    weights = [(random.standard_normal(g.weights) / prod(g.weights[1:]) ** 0.5).astype(np.float32) for g in geometries]
    exact = [convolved(x, w, g.pads) for x, w, g in zip(images, weights, geometries, strict=True)]
    errors: dict[Geometry, dict[str, float]] = {g: {} for g in geometries}
    for way, outputs in WAYS.items():
        block = Block(arg_types=[TensorType(f32, g.image) for g in geometries])
        convs = [g.conv(block, n, weights[n]) for n, g in enumerate(geometries)]
        block.add_op(ReturnOp(*(conv.result for conv in convs)))
        types = list(block.arg_types), [conv.type for conv in convs]
        function = FuncOp("main", types, Region(block))
        names = [f"x{n}" for n in range(len(images))]
        function.attributes["input_names"] = ArrayAttr(map(StringAttr, names))
        function.attributes["output_names"] = ArrayAttr(StringAttr(f"y{n}") for n in range(len(images)))
        model = treadle.compile(in_one_way(ModuleOp([function]), outputs), host_target(), after="graph")
        got = model.run(dict(zip(names, images, strict=True)))
        for geometry, y, wanted in zip(geometries, got.values(), exact, strict=True):
            errors[geometry][way] = float(np.abs(y - wanted).max() / np.square(wanted).mean() ** 0.5)
    return errors


def convolved(x: Array, weights: Array, pads: Sequence[int]) -> Array:
    """The convolution of stride 1 in float64."""
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    windows = np.lib.stride_tricks.sliding_window_view(padded, weights.shape[2:], axis=(2, 3))
    n, _, height, width, *_ = windows.shape
    rows = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * height * width, -1)
    result = rows @ weights.astype(np.float64).reshape(len(weights), -1).T
    return result.reshape(n, height, width, -1).transpose(0, 3, 1, 2)


def row(layer: Layer) -> dict[str, object]:
    """A line of the file."""
    geometry = layer.geometry
    return {
        "model": layer.model, "image": geometry.image, "channels": geometry.channels, "pads": geometry.pads,
        "count": layer.count,
        **{f"{way} us": round(median(seconds) * 1e6, 1) for way, seconds in layer.seconds.items()},
        **{f"{way} ratio": round(layer.ratio(way), 3) for way in [*WAYS][1:]},
        **{f"{way} estimate": round(layer.expected(way), 3) for way in [*WAYS][1:]},
        **{f"{way} error": float(f"{error:.2g}") for way, error in layer.errors.items()},
    }  # fmt: skip


def table(layers: Sequence[Layer]) -> Table:
    """A line for each geometry, and one for each model."""
    result = Table(title="Median in us of the direct way, how many times as fast the others are, and largest errors")
    for head in ("model", "image", "channels", "count", "direct", *[*WAYS][1:]):
        result.add_column(head, justify="left" if head in ("model", "image") else "right")
    for head in ("estimates", "errors"):
        result.add_column(head, justify="right")
    for each in layers:
        image = "x".join(map(str, each.geometry.image)) or "the whole model"
        ratios = [f"{each.ratio(way):.2f}" for way in [*WAYS][1:]]
        expected = " ".join(f"{each.expected(way):.2f}" for way in [*WAYS][1:])
        errors = " ".join(f"{error:.1e}" for error in each.errors.values())
        direct = f"{median(each.seconds['direct']) * 1e6:.0f}"
        channels = str(each.geometry.channels or "")
        result.add_row(each.model, image, channels, str(each.count), direct, *ratios, expected, errors)
    return result


if __name__ == "__main__":
    main()
