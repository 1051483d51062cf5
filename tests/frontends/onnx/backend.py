"""Treadle's importer and reference evaluator as an `onnx.backend`, for ONNX's own conformance tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper
from onnx.backend.base import Backend, BackendRep
from xdsl.dialects.builtin import ModuleOp

from tests.frontends.onnx.reference import run
from treadle.frontends.onnx import import_model

Array = NDArray[Any]

COMPILE_TIME_INPUTS: dict[str, Sequence[int]] = {
    "AffineGrid": (1,), "BlackmanWindow": (0,), "CenterCropPad": (1,), "HammingWindow": (0,), "HannWindow": (0,),
    "Loop": (0, 1), "Col2Im": (1, 2), "CumProd": (1,), "CumSum": (1,), "DFT": (1, 2), "MaxUnpool": (2,),
    "STFT": (1, 3), "TopK": (1,),
    "ConstantOfShape": (0,), "Dropout": (1, 2), "Expand": (1,), "OneHot": (1,), "Pad": (1, 3),
    "Range": (0, 1, 2), "Reshape": (1,), "Resize": (1, 2, 3), "Slice": (1, 2, 3, 4), "Split": (1,),
    "Squeeze": (1,), "Tile": (1,), "Trilu": (1,), "Unsqueeze": (1,), "Upsample": (1,),
}  # fmt: skip
"""Inputs that decide shapes: Treadle compiles for them, while the conformance tests feed them."""


class Prepared(BackendRep):
    """An imported model."""

    def __init__(self, module: ModuleOp):
        self.module = module

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        del kwargs
        return tuple(run(self.module, inputs))


class TreadleBackend(Backend):
    """`prepare` imports, `run` evaluates operators by their definitions."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        del device, kwargs
        module = import_model(model.SerializeToString())
        module.verify()
        return Prepared(module)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


def with_compile_time_inputs(
    model: ModelProto, inputs: Sequence[Array], whole: ModelProto | None = None
) -> tuple[ModelProto, list[Array]]:
    """The model with the inputs that decide its shapes made constant, and the inputs that remain.

    whole: of a model that is a function's expanded body, the model of the function itself
    """
    nodes = [*model.graph.node, *([] if whole is None else whole.graph.node)]
    fixed = {node.input[n] for node in nodes for n in _compile_time(node) if n < len(node.input) and node.input[n]}
    baked = onnx.ModelProto()
    baked.CopyFrom(model)
    left: list[Array] = []
    for position, entry in reversed(list(enumerate(model.graph.input))):
        if entry.name not in fixed:
            left.insert(0, inputs[position])
            continue
        baked.graph.initializer.append(numpy_helper.from_array(inputs[position], entry.name))
        del baked.graph.input[position]
    return baked, left


def _compile_time(node: onnx.NodeProto) -> Sequence[int]:
    return (1,) if node.op_type.startswith("Reduce") else COMPILE_TIME_INPUTS.get(node.op_type, ())
