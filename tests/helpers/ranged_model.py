"""ONNX models with ranges, called with several shapes and compared with ONNX Runtime.

Before each call one of the largest shape leaves its values in all buffers, so that what lies beyond the extents of the
next is no zero. Half of them are NaN where the input is of floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnxruntime
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array

import treadle
from treadle.backends.cuda.emulator import CHECKS
from treadle.shapes import parse_dim

RANDOM = np.random.default_rng(7)
Call = Mapping[str, int]
"""The extent of each symbol."""


@dataclass(frozen=True)
class Case:
    """Nodes from inputs (`x: float[n, 3]`) to `y`, the ranges of their dimensions, and the calls that are compared."""

    nodes: Sequence[NodeProto]
    inputs: Mapping[str, Sequence[int | str]]
    ranges: Sequence[str]
    calls: Sequence[Call] = ()
    constants: Mapping[str, np.ndarray] | None = None
    integers: int = 0
    """Inputs named `i...` are integers below it."""
    whole: bool = False
    """Whether floats are whole numbers from -3 to 3, whose products and sums are exact in few bits, too."""
    limit: float = 4e-6
    """How far results may be from ONNX Runtime's."""

    @property
    def dims(self) -> list[treadle.Dim]:
        return [parse_dim(text) for text in self.ranges]

    @property
    def shapes(self) -> dict[str, treadle.Dim]:
        """The ranges as `treadle.compile` takes them."""
        return {dim.name: dim for dim in self.dims}

    def model(self) -> ModelProto:
        inputs = [
            make_tensor_value_info(name, TensorProto.INT64 if name.startswith("i") else TensorProto.FLOAT, shape)
            for name, shape in self.inputs.items()
        ]
        constants = [from_array(array, name) for name, array in (self.constants or {}).items()]
        graph = make_graph(list(self.nodes), "g", inputs, [ValueInfoProto(name="y")], constants)
        return make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8)

    def values(self, call: Call, poisoned: bool = False) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for name, shape in self.inputs.items():
            extents = [call[e] if isinstance(e, str) else e for e in shape]
            if name.startswith("i"):
                found[name] = RANDOM.integers(0, self.integers, extents)
                continue
            drawn = RANDOM.integers(-3, 4, extents) if self.whole else RANDOM.uniform(-1, 1, extents)
            found[name] = drawn.astype(np.float32)
            if poisoned:
                found[name][RANDOM.random(extents) < 0.5] = np.nan
        return found

    def oracle(self) -> onnxruntime.InferenceSession:
        return onnxruntime.InferenceSession(self.model().SerializeToString())

    def check(self, call: Call, compiled: treadle.CompiledModel, oracle: onnxruntime.InferenceSession) -> None:
        """One call against ONNX Runtime, after one of the largest shape."""
        compiled.run(self.values({dim.name: dim.greatest for dim in self.dims}, poisoned=True))
        values = self.values(call)
        wanted = np.asarray(oracle.run(None, values)[0])
        (got,) = compiled(**values)
        assert got.shape == wanted.shape and got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=self.limit, err_msg=str(call))

    def check_emulated(self, calls: Iterable[Call], target: str = "sm_80", precision: str = "f32") -> None:
        """Calls on the emulator with all checks, which find nothing."""
        model, oracle, checks = self.model(), self.oracle(), tuple(CHECKS)
        with treadle.compile(
            model, target, self.shapes, device="emulator", checks=checks, precision=precision
        ) as compiled:
            for call in calls:
                self.check(call, compiled, oracle)
                found = [str(finding) for report in compiled.reports for finding in report.findings]
                assert found == [], call


def weights(*shape: int) -> np.ndarray:
    """Constants of a model, from -1 to 1."""
    return RANDOM.uniform(-1, 1, shape).astype(np.float32)


def whole_weights(*shape: int) -> np.ndarray:
    """Constants of a model that are whole numbers from -3 to 3."""
    return RANDOM.integers(-3, 4, shape).astype(np.float32)


def shape_of(x: str, axis: int, name: str) -> list[NodeProto]:
    """Nodes that give one extent of a tensor, as a list of one."""
    return [
        make_node("Shape", [x], [f"{name}_all"]),
        make_node("Slice", [f"{name}_all", f"c{axis}", f"c{axis + 1}"], [name]),
    ]


def drawn(dim: treadle.Dim, generator: np.random.Generator) -> int:
    """An extent of a range."""
    return int(generator.integers(dim.least // dim.multiple, dim.greatest // dim.multiple + 1)) * dim.multiple
