"""The Conv-BN-ReLU sub-graphs of ResNet-50 on the CPU against ONNX Runtime and OpenVINO: Hidet's figure 21.

    make bench ARGS="--conv-bn-relu"
    make bench ARGS="--conv-bn-relu --trials 64 --seconds 120 --layers 3x3-64-56 3x3-512-7"

Each distinct convolution of the model (batch 1, 224 x 224, with the stride in the 3x3 convolutions, as PyTorch has it)
is a model of its own, with batch norm, ReLU and random weights; in ResNet-50 some of them are added to another branch
before ReLU. With `--trials` Treadle is tuned as well, each sub-graph from an empty database. All sides run in one
process, float32, a batch of calls of each in turn, and their results are compared with a convolution in float64: the
largest difference over the largest magnitude is shown. The table shows medians, and the median of the best peer's time
divided by Treadle's, round by round; the raw numbers go to `benchmarks/results/`. Source: Hidet (ASPLOS 2023), section
6.3.4; ResNet-50 is He et al., Deep Residual Learning for Image Recognition (2016), table 1. Measure on a machine that
does nothing else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from rich.table import Table

import treadle
from benchmarks.arguments import positive
from benchmarks.cpu_peers import wide_console
from benchmarks.machine import describe_run
from benchmarks.measure import relative_error, results_of
from benchmarks.result_files import RESULTS, write_results
from treadle.bench.interleave import Times, interleave
from treadle.bench.model import OWN, Call, installed_peers, peer_call, repeated
from treadle.errors import TreadleError
from treadle.model import CompiledModel

Array = NDArray[Any]
TUNED = "tuned"
_EPSILON = 1e-5
_BATCH_SECONDS = 0.05


@dataclass(frozen=True)
class Layer:
    """A square convolution that keeps the size of its pictures but for the stride.

    size: rows and columns of the input; count: how often the model has it
    """

    channels: int
    size: int
    filters: int
    kernel: int
    stride: int = 1
    count: int = 1

    @property
    def name(self) -> str:
        """Kernel, channels, size; filters and stride where they are not those channels and 1."""
        filters = "" if self.filters == self.channels else f"-to-{self.filters}"
        return f"{self.kernel}x{self.kernel}-{self.channels}-{self.size}{filters}" + ("-s2" if self.stride == 2 else "")

    @property
    def pad(self) -> int:
        """On each side."""
        return self.kernel // 2

    def arrays(self) -> dict[str, Array]:
        """Input, weights, and the norm's scale, bias, mean and variance: always the same."""
        generator = np.random.default_rng(0)
        fan = self.channels * self.kernel**2
        x = generator.standard_normal((1, self.channels, self.size, self.size))
        weights = generator.standard_normal((self.filters, self.channels, self.kernel, self.kernel)) * (2 / fan) ** 0.5
        norm = {name: generator.random(self.filters) + 0.5 for name in ("scale", "bias", "mean", "variance")}
        return {name: each.astype(np.float32) for name, each in {"x": x, "weights": weights, **norm}.items()}

    def write(self, path: Path) -> None:
        """As a model of the input `x`."""
        arrays = self.arrays()
        nodes = [
            helper.make_node(
                "Conv", ["x", "weights"], ["convolved"], pads=[self.pad] * 4, strides=[self.stride] * 2,
                kernel_shape=[self.kernel] * 2,
            ),
            helper.make_node(
                "BatchNormalization", ["convolved", "scale", "bias", "mean", "variance"], ["normed"], epsilon=_EPSILON
            ),
            helper.make_node("Relu", ["normed"], ["y"]),
        ]  # fmt: skip
        extent = (self.size + 2 * self.pad - self.kernel) // self.stride + 1
        ends = [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, arrays["x"].shape),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, self.filters, extent, extent)),
        ]
        weights = [numpy_helper.from_array(each, name) for name, each in arrays.items() if name != "x"]
        graph = helper.make_graph(nodes, "conv_bn_relu", ends[:1], ends[1:], weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)

    def exact(self) -> Array:
        """The result in float64: a product for each element of the kernel."""
        arrays = {name: each.astype(np.float64) for name, each in self.arrays().items()}
        padded = np.pad(arrays["x"], [(0, 0), (0, 0), (self.pad,) * 2, (self.pad,) * 2])
        extent = (self.size + 2 * self.pad - self.kernel) // self.stride + 1
        total = np.zeros((1, self.filters, extent, extent))
        end = (extent - 1) * self.stride + 1
        for i in range(self.kernel):
            for j in range(self.kernel):
                window = padded[:, :, i : i + end : self.stride, j : j + end : self.stride]
                total += np.einsum("oc,nchw->nohw", arrays["weights"][:, :, i, j], window, optimize=True)
        scale, bias, mean, variance = (arrays[name][:, None, None] for name in ("scale", "bias", "mean", "variance"))
        return np.maximum((total - mean) / np.sqrt(variance + _EPSILON) * scale + bias, 0)


def _layers() -> list[Layer]:
    """In the model's order."""
    found, channels, size = [Layer(3, 224, 64, 7, 2)], 64, 56
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        stride = 1 if width == 64 else 2
        wide, after = 4 * width, size // stride
        if stride == 1:  # the branch beside the first block is the same convolution as the block's last
            found += [Layer(channels, size, width, 1), Layer(width, size, width, 3, 1, blocks)]
            found += [Layer(width, size, wide, 1, 1, blocks + 1)]
        else:
            found += [Layer(channels, size, width, 1), Layer(width, size, width, 3, 2)]
            found += [Layer(width, after, wide, 1, 1, blocks), Layer(channels, size, wide, 1, 2)]
            found += [Layer(width, after, width, 3, 1, blocks - 1)]
        found += [Layer(wide, after, width, 1, 1, blocks - 1)]
        channels, size = wide, after
    return found


LAYERS: Mapping[str, Layer] = {layer.name: layer for layer in _layers()}
"""By name: the 23 distinct ones of the model's 53 convolutions."""


@dataclass(frozen=True)
class Measured:
    """A layer's times by side, in rounds, and each side's error."""

    layer: Layer
    times: Mapping[str, Times]
    errors: Mapping[str, float]

    @property
    def own(self) -> list[str]:
        """Treadle's sides."""
        return [side for side in (OWN, TUNED) if side in self.times]

    @property
    def best_peer(self) -> str:
        """That with the smallest median."""
        return min((side for side in self.times if side not in self.own), key=lambda side: self.times[side].median)

    def ratio(self, side: str) -> float:
        """How many times as fast as the best peer one of Treadle's sides is: the median of the rounds' ratios."""
        return self.times[self.best_peer].ratios(self.times[side])[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints, and writes after each layer what there is."""
    args = _arguments(argv)
    console, circumstances, peers = wide_console(), describe_run(), installed_peers()
    if not peers:
        raise TreadleError("no peer is installed", "--conv-bn-relu", "pip install onnxruntime openvino")
    settings = {name: getattr(args, name) for name in ("trials", "seconds", "threads", "rounds", "seed")}
    measured, path = list[Measured](), args.output
    for name in args.layers:
        measured.append(measure(LAYERS[name], list(peers), args))
        ratios = ", ".join(f"{side} {measured[-1].ratio(side):.3f}" for side in measured[-1].own)
        console.print(f"{name}: of {measured[-1].best_peer}'s speed {ratios}")
        rows = [row_of(each) for each in measured]
        head = circumstances | settings | {"peers": peers, "geometric_means": means_of(measured)}
        path = write_results("conv_bn_relu", head, rows, args.output)
    console.print(table_of(measured, args.threads))
    console.print(f"written to {path}")
    return 0


def measure(layer: Layer, peers: Sequence[str], args: argparse.Namespace) -> Measured:
    """One layer, tuned if there are trials."""
    inputs = {"x": layer.arrays()["x"]}
    with TemporaryDirectory() as folder, ExitStack() as stack:
        path, database = Path(folder) / f"{layer.name}.onnx", Path(folder) / "tuned"
        layer.write(path)
        opened = partial(treadle.compile, path, "cpu", threads=args.threads)
        models = {OWN: stack.enter_context(opened())}
        if args.trials:
            limits = {"trials": args.trials, "seconds": args.seconds, "threads": args.threads, "seed": args.seed}
            treadle.tune(path, database, **limits)
            models[TUNED] = stack.enter_context(opened(database=database))
        calls: dict[str, Call] = {side: _call(model, inputs) for side, model in models.items()}
        calls |= {peer: peer_call(peer, path, inputs, args.threads) for peer in peers}
        exact = layer.exact()
        errors = {side: relative_error(results_of(call()), [exact]) for side, call in calls.items()}
        sides = {side: repeated(call) for side, call in calls.items()}
        return Measured(layer, interleave(sides, args.rounds, _BATCH_SECONDS), errors)


def _call(model: CompiledModel, inputs: Mapping[str, Array]) -> Call:
    return partial(model.open().run, model.arguments(inputs))


def means_of(measured: Sequence[Measured]) -> dict[str, float]:
    """The geometric means over layers of how many times as fast as the best peer Treadle's sides are."""
    return {side: geometric_mean([each.ratio(side) for each in measured]) for side in measured[0].own}


def totals_of(measured: Sequence[Measured]) -> dict[str, float]:
    """Seconds of all of the model's convolutions that were measured, each as often as the model has it, by side."""
    return {side: sum(each.layer.count * each.times[side].median for each in measured) for side in measured[0].times}


def table_of(measured: Sequence[Measured], threads: int) -> Table:
    """One line a layer, milliseconds, with the sums and the geometric means."""
    table = Table(title=f"Conv-BN-ReLU of ResNet-50: median latency in ms on the CPU with {threads} threads, batch 1")
    sides, own = list(measured[0].times), measured[0].own
    table.add_column("layer", no_wrap=True)
    for title in ("count", *sides, *(f"best peer / {side}" for side in own), "error"):
        table.add_column(title, justify="right")
    for each in measured:
        times = [f"{each.times[side].median * 1e3:.3f}" for side in sides]
        ratios = [f"{each.ratio(side):.3f}" for side in own]
        error = f"{max(each.errors.values()):.0e}"
        table.add_row(each.layer.name, str(each.layer.count), *times, *ratios, error)
    totals, means = totals_of(measured), means_of(measured)
    count = sum(each.layer.count for each in measured)
    sums = [f"{totals[side] * 1e3:.2f}" for side in sides]
    table.add_row("sum, geometric mean", str(count), *sums, *(f"{means[side]:.3f}" for side in own), "")
    return table


def row_of(each: Measured) -> dict[str, object]:
    """A layer's numbers for JSON: milliseconds of every round."""
    return {
        "layer": each.layer.name,
        "count": each.layer.count,
        "best_peer": each.best_peer,
        "ratios": {side: round(each.ratio(side), 4) for side in each.own},
        "ms": {side: [round(second * 1e3, 5) for second in times.seconds] for side, times in each.times.items()},
        "errors": dict(each.errors),
    }


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", nargs="+", choices=tuple(LAYERS), default=tuple(LAYERS), metavar="NAME")
    parser.add_argument("--trials", type=int, default=0, metavar="N", help="candidates that are timed for each layer")
    parser.add_argument("--seconds", type=float, default=120.0, metavar="S", help="limit of each search (default 120)")
    parser.add_argument("--threads", type=positive, default=2, metavar="N", help="of all sides (default 2)")
    parser.add_argument("--rounds", type=positive, default=20, metavar="N", help="batches of each side (default 20)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the searches (default 0)")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
