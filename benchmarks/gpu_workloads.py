"""What is measured on a GPU: the models of Hidet's paper and of the tests' catalog, and single operators as ONNX models
of one node."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from benchmarks.paper_models import PAPER_MODELS
from tests.helpers.random_weights import with_random_weights
from tests.models.catalog import MODELS

Array = NDArray[Any]
Shape = tuple[int, ...]
TorchModel = Callable[[Any], Callable[..., Any]]
"""Given the module `torch`, the same computation on tensors in the order of the inputs."""

OPSET = 17
_NARROW: Mapping[str, tuple[int, Any]] = {
    "f16": (TensorProto.FLOAT16, np.float16), "bf16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
}  # fmt: skip
"""The type of elements of a precision, as ONNX and NumPy know it."""


@dataclass(frozen=True)
class Workload:
    """One computation.

    write:        writes or finds the ONNX model, given a folder for it; ImportError where a library is missing for it
    draw:         makes the inputs, by name, the same at every call
    torch:        the same in PyTorch; None where nobody has written it
    triton:       the function of `benchmarks.triton_kernels` that computes it; None where nobody has written one
    same_weights: whether `torch` computes the same values, so that its results can be compared
    """

    name: str
    kind: Literal["model", "operator"]
    write: Callable[[Path], Path]
    draw: Callable[[], Mapping[str, Array]]
    torch: TorchModel | None = None
    same_weights: bool = True
    triton: str | None = None

    @cached_property
    def inputs(self) -> Mapping[str, Array]:
        """What it is computed from, drawn when it is asked for: the largest product's operands take 128 MiB."""
        return self.draw()


def in_precision(workload: Workload, path: Path, precision: str) -> tuple[Path, Mapping[str, Array]]:
    """The model and its inputs for a precision: an operator's tensors have the narrow type, as those of PyTorch do, so
    that no cast of float32 is part of what is measured. A model's inputs are what its file says."""
    narrow = _NARROW.get(precision)
    if narrow is None or workload.kind != "operator":
        return path, workload.inputs
    element, dtype = narrow
    model = onnx.load(path)
    for each in (*model.graph.input, *model.graph.output):
        each.type.tensor_type.elem_type = element
    onnx.checker.check_model(model)
    narrowed = path.with_suffix(f".{precision}.onnx")
    onnx.save(model, narrowed)
    return narrowed, {name: array.astype(dtype) for name, array in workload.inputs.items()}


def _normal(*shape: int) -> Array:
    return np.random.default_rng([7, *shape]).standard_normal(shape, np.float32)


def _operator(
    name: str, op: str, inputs: Mapping[str, Shape], output: Shape, torch: TorchModel, **attributes: Any
) -> Workload:
    def write(folder: Path) -> Path:
        tensors = [helper.make_tensor_value_info(key, TensorProto.FLOAT, shape) for key, shape in inputs.items()]
        result = helper.make_tensor_value_info("out", TensorProto.FLOAT, output)
        graph = helper.make_graph([helper.make_node(op, list(inputs), ["out"], **attributes)], name, tensors, [result])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        onnx.checker.check_model(model)
        path = folder / f"{name}.onnx"
        onnx.save(model, path)
        return path

    def draw() -> dict[str, Array]:
        return {key: _normal(*shape) for key, shape in inputs.items()}

    return Workload(name, "operator", write, draw, torch, triton=name.rsplit("_", 1)[0])


def _matmul(n: int) -> Workload:
    inputs = {"a": (n, n), "b": (n, n)}
    return _operator(f"matmul_{n}", "MatMul", inputs, (n, n), lambda torch: torch.matmul)


def _softmax(rows: int, columns: int) -> Workload:
    return _operator(
        f"softmax_{rows}x{columns}",
        "Softmax",
        {"x": (rows, columns)},
        (rows, columns),
        lambda torch: lambda x: torch.softmax(x, -1),
        axis=-1,
    )


def _layer_norm(rows: int, columns: int) -> Workload:
    return _operator(
        f"layer_norm_{rows}x{columns}",
        "LayerNormalization",
        {"x": (rows, columns), "scale": (columns,), "bias": (columns,)},
        (rows, columns),
        lambda torch: lambda x, scale, bias: torch.nn.functional.layer_norm(x, (columns,), scale, bias),
        axis=-1,
        epsilon=1e-5,
    )


def _model(name: str, torch: TorchModel | None = None, random_weights: bool = False) -> Workload:
    entry = MODELS[name]

    def write(folder: Path) -> Path:
        return with_random_weights(entry.path(), folder / f"{name}.onnx") if random_weights else entry.path()

    return Workload(name, "model", write, entry.sample_inputs, torch, same_weights=False)


def _paper_model(name: str) -> Workload:
    model = PAPER_MODELS[name]

    def build(torch: Any) -> Callable[..., Any]:
        del torch
        return model.module().cuda()

    return Workload(name, "model", lambda folder: model.write(folder / f"{name}.onnx"), lambda: model.inputs, build)


def _light_resnet50(torch: Any) -> Callable[..., Any]:
    """The same architecture, its weights drawn by torchvision."""
    del torch
    return importlib.import_module("torchvision.models").resnet50().eval().cuda()


def _minilm(torch: Any) -> Callable[..., Any]:
    """paraphrase-MiniLM-L3's architecture, its weights drawn by transformers."""
    del torch
    bert = importlib.import_module("transformers")
    config = bert.BertConfig(
        hidden_size=384, num_hidden_layers=3, num_attention_heads=12, intermediate_size=1536, vocab_size=30522
    )
    return bert.BertModel(config, add_pooling_layer=False).eval().cuda()


WORKLOADS: Mapping[str, Workload] = {
    each.name: each
    for each in (
        *map(_paper_model, PAPER_MODELS),
        _model("ppocrv4_rec"),
        _model("ppocr_cls"),
        _model("minilm", _minilm),
        _model("light_resnet50", _light_resnet50, random_weights=True),
        *(_matmul(n) for n in (128, 256, 512, 1024, 2048, 4096)),
        _softmax(4096, 1024),
        _softmax(128, 8192),
        _layer_norm(4096, 768),
        _layer_norm(128, 8192),
    )
}
"""By name, in the order of the table."""
