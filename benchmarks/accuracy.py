"""The errors of the papers' models in f32 on the CPU against float64, beside ONNX Runtime's.

    python -m benchmarks.accuracy --onnx /tmp/models

A model's float64 outputs are those of ONNX's reference evaluator, for the graph with all its f32 tensors converted to
f64: nothing of Treadle takes part. Each model is compiled once for each way to compute convolutions, where it has
some. The table has the largest errors of the outputs and their root mean squares, in parts of the output's root mean
square, and the largest error in parts of its element's limit, which comes from the imported graph
(`treadle/tools/oracle.py`). The models are those of `benchmarks/paper_models.py`, exported to the folder `--onnx`
unless they are there; the numbers go to `benchmarks/results/`. The load of the machine does not change them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from rich.console import Console
from rich.table import Table

import treadle
from benchmarks.machine import describe_run
from benchmarks.paper_models import PAPER_MODELS
from benchmarks.result_files import RESULTS, write_results
from benchmarks.tuned_models import exported, shapes_of
from treadle.tools.oracle import Definition, Expected, compare_all, reference_outputs

Array = NDArray[Any]
WAYS = ("direct", "winograd2", "winograd4")
"""Treadle's, by the values of its option."""
PEER = "onnxruntime"


class GatherElements(OpRun):
    """ONNX's operator, whose own evaluation in onnx 1.23 fails for a matrix of one row."""

    op_domain = ""

    def _run(self, data: Array, indices: Array, axis: int = 0) -> tuple[Array]:
        return (np.take_along_axis(data, indices, axis),)


@dataclass(frozen=True)
class Errors:
    """Those of one side's outputs; of several outputs, of the worst.

    largest, mean: the largest one, and the root mean square of all, in parts of the output's root mean square
    of_limit: the largest one in parts of its element's limit
    """

    largest: float
    mean: float
    of_limit: float

    @staticmethod
    def of(actual: Mapping[str, Array], exact: Mapping[str, Array], limits: Expected) -> Errors:
        """Of outputs by name."""
        parts = [_relative(actual[name], each) for name, each in exact.items()]
        largest, mean = (float(f"{max(each):.3g}") for each in zip(*parts, strict=True))
        return Errors(largest, mean, float(f"{max(each.worst for each in compare_all(actual, limits)):.3g}"))


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluates, prints and writes; 1 if an error of Treadle's is beyond its limit, or more than `--most` times ONNX
    Runtime's."""
    args = _arguments(argv)
    console, circumstances = Console(), describe_run()
    found: dict[str, dict[str, Errors]] = {}
    for name in args.models:
        found[name] = errors_of(exported(name, args.onnx, args.exporter), PAPER_MODELS[name].inputs)
        console.print(f"{name}: {', '.join(f'{side} {each.largest:.1e}' for side, each in found[name].items())}")
    console.print(table(found))
    rows: list[dict[str, object]] = [
        {"model": name, **{side: asdict(each) for side, each in sides.items()}} for name, sides in found.items()
    ]
    console.print(f"written to {write_results('accuracy', circumstances, rows, args.output)}")
    return int(any(is_worse(sides, args.most) for sides in found.values()))


def errors_of(path: Path, inputs: Mapping[str, Array]) -> dict[str, Errors]:
    """The errors of each side, by name."""
    model = onnx.load(path)
    names, has_filters = [each.name for each in model.graph.output], any(n.op_type == "Conv" for n in model.graph.node)
    limits = Definition.of_file(path, inputs).outputs()
    exact = dict(zip(names, outputs_in_float64(model, inputs), strict=True))
    found: dict[str, Errors] = {}
    for way in WAYS if has_filters else WAYS[:1]:
        with treadle.compile(path, "cpu", shapes_of(inputs), convolution=way) as compiled:
            found[way] = Errors.of(compiled.run(inputs), exact, limits)
    return {**found, PEER: Errors.of(reference_outputs(path, inputs, names), exact, limits)}


def is_worse(sides: Mapping[str, Errors], most: float) -> bool:
    """Whether an error of any way is beyond its limit, or more than `most` times ONNX Runtime's."""
    ours = [each for side, each in sides.items() if side != PEER]
    return any(each.of_limit > 1 or each.largest > most * sides[PEER].largest for each in ours)


def outputs_in_float64(model: ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    """What the model computes where all its f32 tensors, and so its inputs, are f64. The model is changed."""
    _widen(model.graph)
    for function in model.functions:
        for node in function.node:
            _widen_attributes(node.attribute)
    wide = {name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in inputs.items()}
    found = [np.asarray(each) for each in ReferenceEvaluator(model, new_ops=[GatherElements]).run(None, wide)]
    assert all(each.dtype != np.float32 for each in found)
    return found


def _widen(graph: GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in graph.node:
        _widen_attributes(node.attribute)
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE


def _widen_attributes(attributes: Sequence[AttributeProto]) -> None:
    for attribute in attributes:
        if attribute.type == AttributeProto.TENSOR:
            _widen_tensor(attribute.t)
        if attribute.type == AttributeProto.GRAPH:
            _widen(attribute.g)


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


def _relative(actual: Array, exact: Array) -> tuple[float, float]:
    """The largest error and the root mean square of all, in parts of the root mean square of the exact values."""
    assert actual.shape == exact.shape
    error, scale = np.abs(actual.astype(np.float64) - exact), np.square(exact).mean() ** 0.5
    return float(error.max() / scale), float(np.square(error).mean() ** 0.5 / scale)


def table(found: Mapping[str, Mapping[str, Errors]]) -> Table:
    """A line for each model: the errors of each side."""
    result = Table(title="Largest error and root mean square, in parts of the output's, and largest part of a limit")
    result.add_column("model", no_wrap=True)
    for side in (*WAYS, PEER):
        result.add_column(side, justify="right")
    for name, sides in found.items():
        texts = {side: f"{each.largest:.1e} {each.mean:.1e} {each.of_limit:.2g}" for side, each in sides.items()}
        result.add_row(name, *(texts.get(side, "") for side in (*WAYS, PEER)))
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=tuple(PAPER_MODELS), default=tuple(PAPER_MODELS), metavar="NAME")
    parser.add_argument("--onnx", type=Path, required=True, metavar="DIR", help="where the .onnx files are, or go")
    parser.add_argument("--exporter", default=sys.executable, metavar="PYTHON", help="what exports missing ones")
    parser.add_argument("--most", type=float, default=float("inf"), metavar="RATIO", help="fail if a ratio is larger")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
