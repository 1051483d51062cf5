"""One drawn model: its nodes, the arrays of its inputs and constants, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper

Array = NDArray[Any]

IR_VERSION = 10


@dataclass(frozen=True)
class Case:
    """A model with its inputs; `types` gives the declared type and shape of each output."""

    opset: int
    nodes: Sequence[NodeProto]
    inputs: Mapping[str, Array]
    constants: Mapping[str, Array]
    outputs: Sequence[str]
    types: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]

    @property
    def operators(self) -> list[str]:
        return [node.op_type for node in self.nodes]

    def model(self) -> ModelProto:
        """The model, which holds the constants and not the inputs' values."""
        given = [_value(name, array.dtype, array.shape) for name, array in self.inputs.items()]
        results = [_value(name, *self.types[name]) for name in self.outputs]
        weights = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph(list(self.nodes), "drawn", given, results, weights)
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)

    def content(self) -> bytes:
        return self.model().SerializeToString()

    def text(self) -> str:
        """The model for a report: a line for each input, constant and node."""
        lines = [f"opset {self.opset}"]
        lines += [f"input {name} = {_described(array)}" for name, array in self.inputs.items()]
        lines += [f"constant {name} = {_described(array)}" for name, array in self.constants.items()]
        for node in self.nodes:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            lines.append(
                f"{', '.join(node.output)} = {node.op_type}({', '.join(node.input)}) {attributes or ''}".rstrip()
            )
        return "\n".join([*lines, f"return {', '.join(self.outputs)}"])


def _value(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> Any:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape))


def _described(array: Array) -> str:
    values = np.array2string(array.reshape(-1), threshold=12, separator=", ", max_line_width=10**6)
    return f"{array.dtype}{list(array.shape)} {values}"


__all__ = ["Array", "Case"]
