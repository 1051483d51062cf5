"""loop-dense-arguments: calls of ranges between pages that are no memory, beside NumPy; in each stage's IR, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array

import treadle
from tests.helpers.guarded import guarded, guarded_outputs
from treadle.artifact.manifest import Manifest, Tensor
from treadle.backends.reference.run_module import run_module
from treadle.errors import TreadleError
from treadle.frontends.onnx import import_model
from treadle.ir import lower
from treadle.shapes.dim import Dim
from treadle.shapes.dynamic import DynamicCalls, ExtentExpression

Array = NDArray[Any]
Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class Layer:
    """A model of f32 inputs, how NumPy computes it, and which inputs and outputs are dense."""

    nodes: Sequence[NodeProto]
    inputs: Mapping[str, Shape]
    bounds: Mapping[str, int]
    reference: Callable[..., Array]
    dense: tuple[Sequence[int], Sequence[int]]

    def model(self) -> ModelProto:
        """Its outputs' shapes are not said."""
        given = [make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in self.inputs.items()]
        output = make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = make_graph(list(self.nodes), "layer", given, [output])
        return make_model(graph, opset_imports=[make_opsetid("", 18)], ir_version=8)

    @property
    def ranges(self) -> dict[str, Dim]:
        """From 1 to the bound of each name."""
        return {name: Dim(name, 1, bound) for name, bound in self.bounds.items()}

    def compiled(self, folder: Path) -> treadle.CompiledModel:
        """The artifact of the ranges."""
        path = folder / "layer.onnx"
        path.write_bytes(self.model().SerializeToString())
        return treadle.compile(path, "cpu", self.ranges, threads=2, cached=False)

    def arrays(self, values: Mapping[str, int]) -> list[Array]:
        """Inputs of a call."""
        rng = np.random.default_rng(list(values.values()))
        return [rng.standard_normal(_shape(shape, values)).astype(np.float32) for shape in self.inputs.values()]

    def check(self, values: Mapping[str, int], inputs: Sequence[Array], found: Array) -> None:
        """AssertionError unless a call's result is right."""
        wanted = self.reference(*(array.astype(np.float64) for array in inputs))
        assert found.shape == wanted.shape, values
        np.testing.assert_allclose(
            found, wanted, rtol=1e-5, atol=2e-5 * float(np.abs(wanted).max()), err_msg=f"{values}"
        )


def _shape(shape: Shape, values: Mapping[str, int]) -> list[int]:
    return [values[extent] if isinstance(extent, str) else extent for extent in shape]


def _softmax(x: Array) -> Array:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


LAYERS = {
    "nt": Layer(
        [make_node("Transpose", ["w"], ["t"], perm=[0, 2, 1]), make_node("MatMul", ["x", "t"], ["y"])],
        {"x": (3, "s", 24), "w": (3, "s", 24)}, {"s": 40}, lambda x, w: x @ w.transpose(0, 2, 1), ([0, 1], [0]),
    ),
    "nn": Layer(
        [make_node("MatMul", ["x", "w"], ["y"])],
        {"x": (3, "s", "s"), "w": (3, "s", 24)}, {"s": 40}, lambda x, w: x @ w, ([0, 1], [0]),
    ),
    "rows of a batch": Layer(
        [make_node("Softmax", ["x"], ["y"])], {"x": ("b", 3, "s")}, {"b": 4, "s": 37}, _softmax, ([0], [0]),
    ),
    "elements": Layer(
        [make_node("Exp", ["x"], ["y"])], {"x": ("b", "s")}, {"b": 16, "s": 64}, np.exp, ([0], [0]),
    ),
    "an extent that may be 0, as far as is known": Layer(
        [
            make_node("Constant", [], ["pads"], value=from_array(np.array([0, 0, 0, 3, 1, 3]))),
            make_node("Pad", ["x", "pads"], ["p"]),
            make_node("Exp", ["p"], ["y"]),
        ],
        {"x": ("b", "s", 1)}, {"b": 7, "s": 2},
        lambda x: np.exp(np.pad(x, ((0, 3), (0, 1), (0, 3)))), ([0], [0]),
    ),
    "merged": Layer(
        [make_node("Flatten", ["x"], ["f"], axis=2), make_node("Exp", ["f"], ["y"])],
        {"x": ("b", "s", 16)}, {"b": 4, "s": 8}, lambda x: np.exp(x.reshape(-1, 16)), ([0], [0]),
    ),
    "lanes that cross rows": Layer(
        [make_node("Exp", ["x"], ["y"])], {"x": ("b", "s")}, {"b": 200, "s": 50}, np.exp, ([], []),
    ),
    "columns": Layer(
        [make_node("Transpose", ["x"], ["t"]), make_node("Exp", ["t"], ["y"])],
        {"x": ("b", "s")}, {"b": 32, "s": 32}, lambda x: np.exp(x.T), ([], [0]),
    ),
}  # fmt: skip


def _calls(bounds: Mapping[str, int]) -> list[dict[str, int]]:
    """Ones, primes, tiles' borders, the bounds; one short beside one long."""
    each = [{name: min(bound, value) for name, bound in bounds.items()} for value in (1, 2, 7, 15, 16, 17, 31)]
    first = next(iter(bounds))
    return [*each, dict(bounds), dict(bounds) | {first: 1}, dict.fromkeys(bounds, 1) | {first: bounds[first]}]


@pytest.mark.parametrize("name", LAYERS)
def test_calls_touch_their_own_memory_only(name: str, tmp_path: Path) -> None:
    """Inputs are read-only, and end or begin at pages that nobody may touch, as outputs do."""
    layer = LAYERS[name]
    with layer.compiled(tmp_path) as model:
        manifest = model.manifest
        dense = [[n for n, t in enumerate(each) if t.dense] for each in (manifest.inputs, manifest.outputs)]
        assert dense == [list(each) for each in layer.dense]
        for at_end in (True, False):
            with guarded_outputs(at_end):
                for values in _calls(layer.bounds):
                    inputs = layer.arrays(values)
                    (found,) = model(*(guarded(array, at_end) for array in inputs))
                    layer.check(values, inputs, found)


@pytest.mark.parametrize("stage", ["kernels", "plan", "loops"])
@pytest.mark.parametrize("name", LAYERS)
def test_values_in_ir(name: str, stage: str) -> None:
    """Callers of the evaluator know the largest shapes, and what lies beyond extents is not a number."""
    layer = LAYERS[name]
    small = {key: min(bound, 16) for key, bound in layer.bounds.items()}
    layer = Layer(layer.nodes, layer.inputs, small, layer.reference, layer.dense)
    module = import_model(layer.model().SerializeToString(), layer.ranges)
    texts = [text.data for text in module.body.block.first_op.attributes["extents"].data]  # pyright: ignore
    order = [ExtentExpression(text, list(small)) for text in texts]
    lower(module, "avx512", to=stage)
    for values in [{key: min(bound, 5) for key, bound in small.items()}, dict(small)]:
        inputs = layer.arrays(values)
        padded: list[Array] = []
        for array, whole in zip(inputs, layer.arrays(small), strict=True):
            padded.append(np.full_like(whole, np.nan))
            padded[-1][tuple(map(slice, array.shape))] = array
        (found,) = run_module(module, [*padded, *(np.array(key.value(values), np.int64) for key in order)])
        wanted = layer.reference(*inputs)
        is_merged = name == "merged"
        parts = _shape(layer.inputs["x"], values) if is_merged else wanted.shape
        whole = _shape(layer.inputs["x"], small) if is_merged else found.shape
        inside = found.reshape(whole)[tuple(map(slice, parts))].reshape(wanted.shape)
        layer.check(values, inputs, inside)


def test_a_dense_output_is_read_where_it_lies(tmp_path: Path) -> None:
    """By a kernel that comes after the one that writes it."""
    nodes = [make_node("Softmax", ["x"], ["y"]), make_node("ReduceSum", ["y", "axes"], ["z"], keepdims=0)]
    x = make_tensor_value_info("x", TensorProto.FLOAT, ["b", "s"])
    outputs = [make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "z")]
    graph = make_graph(nodes, "layer", [x], outputs, [from_array(np.array([0]), "axes")])
    path = tmp_path / "layer.onnx"
    path.write_bytes(make_model(graph, opset_imports=[make_opsetid("", 18)], ir_version=8).SerializeToString())
    with treadle.compile(path, "cpu", {"b": Dim("b", 1, 6), "s": Dim("s", 1, 24)}, cached=False) as model:
        assert [tensor.dense for tensor in model.manifest.outputs] == [True, True]
        for shape in [(1, 1), (2, 13), (5, 24), (6, 24)]:
            given = np.random.default_rng(shape).standard_normal(shape).astype(np.float32)
            with guarded_outputs():
                y, z = model(guarded(given))
            np.testing.assert_allclose(y, _softmax(given), rtol=1e-5)
            np.testing.assert_allclose(z, _softmax(given).sum(0), rtol=1e-5)


def test_inputs_with_gaps_are_copied(tmp_path: Path) -> None:
    layer = LAYERS["nt"]
    with layer.compiled(tmp_path) as model:
        x, w = layer.arrays({"s": 11})
        wide = np.full((3, 22, 24), np.nan, np.float32)
        wide[:, ::2] = x
        layer.check({"s": 11}, [x, w], model(wide[:, ::2], np.asfortranarray(w))[0])


def _tensors() -> tuple[Sequence[Dim], Sequence[Tensor], Sequence[Tensor]]:
    inputs = Tensor("x", (4, 8), "float32", ("n", "s"), True), Tensor("extent(n)", (), "int64")
    return (Dim("n", 1, 4), Dim("s", 1, 8)), inputs, (Tensor("y", (32,), "float32", ("n<=4, s<=8",), True),)


def test_nothing_dense_is_copied_or_cut() -> None:
    symbols, inputs, outputs = _tensors()
    calls = DynamicCalls(symbols, ["n"], inputs, outputs)
    x = np.zeros((3, 5), np.float32)
    values = calls.bind([x])
    given, extent = calls.arguments([x], values)
    assert given is x and extent == 3
    assert calls.shapes(values) == [(15,)]
    y = np.arange(15, dtype=np.float32)
    assert calls.results([y], values)[0] is y
    np.testing.assert_array_equal(calls.results([np.arange(32)], values)[0], np.arange(15))


def test_a_manifest_that_denies_it_is_refused(tmp_path: Path) -> None:
    """The code reads as many elements as a call has."""
    with LAYERS["elements"].compiled(tmp_path) as model:
        manifest = model.manifest
        model.save(tmp_path / "saved")
    path = tmp_path / "saved" / "manifest.json"
    text = path.read_text()
    for old, new in (
        ('"dense": true', '"dense": false'),
        ('"b",\n    "s"', '"s",\n    "b"'),
        ('"extents": [\n  "', '"extents": [\n  "2 * '),
    ):
        assert old in text and isinstance(manifest, Manifest)
        path.write_text(text.replace(old, new))
        with pytest.raises(TreadleError, match="manifest"), treadle.load(tmp_path / "saved") as loaded:
            loaded(np.zeros((2, 2), np.float32))


def test_only_what_changes_is_dense(tmp_path: Path) -> None:
    with LAYERS["elements"].compiled(tmp_path) as model:
        model.save(tmp_path / "saved")
    path = tmp_path / "saved" / "manifest.json"
    for old, new, message in (
        ('"dense": false', '"dense": true', "dense is true of a tensor whose shape is the same in every call"),
        ('"dense": true', '"dense": 1', "dense is 1; accepted: true or false"),
    ):
        text = path.read_text()
        path.write_text(text.replace(old, new))
        with pytest.raises(TreadleError, match="damaged") as caught:
            treadle.load(tmp_path / "saved")
        assert message in str(caught.value)
        path.write_text(text)
