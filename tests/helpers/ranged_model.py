"""ONNX models with ranges, called with several shapes and compared with ONNX Runtime.

Before each call one of the largest shape leaves its values in all buffers, so that what lies beyond the extents of the
next is no zero. Half of them are NaN where the input is of floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, zip_longest

import numpy as np
import onnxruntime
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

import treadle
from treadle.artifact.manifest import Tensor
from treadle.backends.cuda.emulator import CHECKS
from treadle.backends.reference.run_module import evaluate_module, find_function
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.frontends.onnx.importer import import_model
from treadle.shapes.dim import parse_dim
from treadle.shapes.dynamic import DynamicCalls

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
    opset: int = 17
    outputs: Sequence[str] = ("y",)

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
        graph = make_graph(
            list(self.nodes), "g", inputs, [ValueInfoProto(name=name) for name in self.outputs], constants
        )
        domains = [make_opsetid("", self.opset), make_opsetid("com.microsoft", 1)]
        return make_model(graph, opset_imports=domains, ir_version=8)

    @property
    def every_call(self) -> list[Call]:
        """All extents of all ranges."""
        extents = [range(dim.least, dim.greatest + 1, dim.multiple) for dim in self.dims]
        return [dict(zip(self.shapes, each, strict=True)) for each in product(*extents)]

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
        compiled.run(self.values(self.largest, poisoned=True))
        values = self.values(call)
        self._compare(call, compiled(**values), oracle.run(None, values))

    def check_compiled(self, calls: Iterable[Call], threads: int) -> None:
        """Calls of the model as compiled C against ONNX Runtime."""
        oracle = self.oracle()
        with treadle.compile(self.model(), shapes=self.shapes, threads=threads) as compiled:
            for call in calls:
                self.check(call, compiled, oracle)

    @property
    def largest(self) -> Call:
        return {dim.name: dim.greatest for dim in self.dims}

    def check_import(self, calls: Iterable[Call]) -> None:
        """Calls of what the importer gives, by its definition, against ONNX Runtime."""
        oracle, module = self.oracle(), import_model(self.model().SerializeToString(), self.shapes)
        binding = binding_of(find_function(module, "main"), self.dims)
        poison = list(self.values(self.largest, poisoned=True).values())
        for call in calls:
            binding.arguments(poison, binding.bind(poison))
            values = self.values(call)
            given = list(values.values())
            bound = binding.bind(given)
            with np.errstate(all="ignore"):
                got = evaluate_module(module, binding.arguments(given, bound))
            self._compare(call, binding.results(got, bound), oracle.run(None, values))

    def _compare(self, call: Call, results: Sequence[np.ndarray], expected: Sequence[object]) -> None:
        for name, got, wanted in zip(self.outputs, results, map(np.asarray, expected), strict=True):
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype), (name, call)
            np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=self.limit, err_msg=f"{name} {call}")

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


def binding_of(main: FuncOp, dims: Sequence[treadle.Dim]) -> DynamicCalls:
    """How calls of a function that was imported are bound, padded and cut out."""

    def tensors(names: str, types: Sequence[Attribute], which: str) -> list[Tensor]:
        known = [[text.data for text in each] for each in main.attributes[which]]  # pyright: ignore
        return [
            Tensor(name.data, type.get_shape(), numpy_dtype(type.get_element_type()).name, tuple(extents))  # pyright: ignore
            for name, type, extents in zip_longest(main.attributes[names], types, known, fillvalue=())  # pyright: ignore
        ]

    extents = [text.data for text in main.attributes["extents"]]  # pyright: ignore
    inputs = tensors("input_names", main.function_type.inputs.data, "input_extents")
    return DynamicCalls(
        dims, extents, inputs, tensors("output_names", main.function_type.outputs.data, "output_extents")
    )


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
