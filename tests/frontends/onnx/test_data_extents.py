"""Results whose extents depend on data, as compiled C and on the emulator, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.parser import parse_model

import treadle
from tests.frontends.onnx.models import model, node
from tests.helpers import emulated_batch
from tests.helpers.emulated_batch import EmulatedProgram
from tests.helpers.program_batch import CompiledProgram, compile_programs, print_program
from treadle.errors import TreadleError
from treadle.frontends.onnx import import_model

Array = NDArray[Any]
RNG = np.random.default_rng(6)
X = RNG.integers(0, 3, (4, 5, 6)).astype(np.float32)


def _chain() -> tuple[ModelProto, dict[str, Array]]:
    """The elements that are not zero, their sum, their mean and their number."""
    nodes = [
        node("NonZero", "x", "places"),
        node("Transpose", "places", "rows", perm=[1, 0]),
        node("GatherND", "x rows", "values"),
        node("ReduceMax", "values", "most", keepdims=0),
        node("ReduceMean", "values", "mean", keepdims=0),
        node("Shape", "places", "shape"),
    ]
    return model(nodes, {"x": X.shape}, ["places", "values", "most", "mean", "shape"]), {"x": X}


def _boxes(centred: bool, least: bool, most: int) -> tuple[ModelProto, dict[str, Array]]:
    """Two images of 8 boxes, of which many overlap, so that some of the three classes have no box for the last of a few
    rounds; a GPU repeats the code of each."""
    corners = RNG.uniform(0, 1, (2, 8, 2))
    sides = RNG.uniform(0.5, 2, (2, 8, 2))
    boxes = np.concatenate([corners, sides if centred else corners + sides], 2).astype(np.float32)
    scores = RNG.permutation(2 * 3 * 8).reshape(2, 3, 8).astype(np.float32) / 48
    weights = {"n": np.array(most), "t": np.array(0.3, np.float32), "s": np.array(0.4, np.float32)}
    inputs = "b c n t s" if least else "b c n t"
    operator = node("NonMaxSuppression", inputs, "y", center_point_box=int(centred))
    used = {name: weights[name] for name in inputs.split()[2:]}
    return model([operator], {"b": boxes.shape, "c": scores.shape}, weights=used), {"b": boxes, "c": scores}


def _compress() -> tuple[ModelProto, dict[str, Array]]:
    proto = model([node("Compress", "x c", "y", axis=1), node("Compress", "x c", "z")], {"x": X.shape}, ["y", "z"])
    proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, [4]))
    return proto, {"x": X, "c": np.array([True, False, True, True])}


def _unique(ordered: int) -> tuple[ModelProto, dict[str, Array]]:
    operator = node("Unique", "x", "y places inverse counts", sorted=ordered)
    x = RNG.integers(-3, 4, (4, 5)).astype(np.float32)
    return model([operator], {"x": x.shape}, ["y", "places", "inverse", "counts"]), {"x": x}


def _unique_slices(ordered: int, axis: int) -> tuple[ModelProto, dict[str, Array]]:
    """Slices that differ late, and some that are equal."""
    operator = node("Unique", "x", "y places inverse counts", sorted=ordered, axis=axis)
    x = RNG.integers(-1, 1, (2, 9, 2)).astype(np.float32)
    return model([operator], {"x": x.shape}, ["y", "places", "inverse", "counts"]), {"x": x}


def _slices(end: int, start: int = 1) -> tuple[ModelProto, dict[str, Array]]:
    """Up to an end that is an input's value."""
    nodes = [
        node("Cast", "e", "end", to=TensorProto.INT64),
        node("Slice", "x start end axis", "y"),
        node("ReduceSum", "y", "z", keepdims=0),
    ]
    weights = {"start": np.array([start]), "axis": np.array([-2])}
    return model(nodes, {"x": X.shape, "e": [1]}, ["y", "z"], weights), {"x": X, "e": np.array([end], np.float32)}


CASES: dict[str, tuple[ModelProto, dict[str, Array]]] = {
    "what is not zero": _chain(),
    "boxes": _boxes(False, False, 3),
    "boxes by their centres, above a score": _boxes(True, True, 3),
    "compressed": _compress(),
    "unique": _unique(1),
    "unique in their order": _unique(0),
    "unique slices": _unique_slices(1, 1),
    "unique slices in their order": _unique_slices(0, -2),
    "a slice up to an end": _slices(3),
    "a slice up to an end beyond the last element": _slices(100, -3),
    "a slice up to an end counted from the last element": _slices(-1),
    "a slice whose end is before its start": _slices(-100),
}


@cache
def programs(target: str) -> Mapping[str, CompiledProgram | EmulatedProgram]:
    """All cases, from one call of the compiler; on the emulator with every check."""
    modules = {name: import_model(proto.SerializeToString()) for name, (proto, _) in CASES.items()}
    if target == "cpu":
        return compile_programs([print_program(*each, after="import") for each in modules.items()])
    printed = [emulated_batch.print_program(*each, after="import") for each in modules.items()]
    return emulated_batch.compile_programs(printed)


def _expected(proto: ModelProto, inputs: dict[str, Array]) -> list[Array]:
    return [np.asarray(y) for y in onnxruntime.InferenceSession(proto.SerializeToString()).run(None, inputs)]


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
@pytest.mark.parametrize("name", CASES)
def test_as_many_elements_as_the_data_says(name: str, target: str) -> None:
    proto, inputs = CASES[name]
    outputs = programs(target)[name].run(list(inputs.values()))
    for key, result, wanted in zip(proto.graph.output, outputs, _expected(proto, inputs), strict=True):
        assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype), key.name
        np.testing.assert_allclose(result, wanted, rtol=1e-6, err_msg=key.name)


def test_some_rounds_find_no_box() -> None:
    """Else the cases above would be of extents that are always the largest."""
    for name, (proto, inputs) in CASES.items():
        if name.startswith("boxes"):
            (found,) = _expected(proto, inputs)
            assert 0 < len(found) < 2 * 3 * 3


def test_a_model_for_a_gpu() -> None:
    """As a user compiles it, run on the emulator."""
    proto, inputs = CASES["compressed"]
    outputs = treadle.compile(proto, "sm_80", device="emulator").run(inputs)
    for key, wanted in zip(("y", "z"), _expected(proto, inputs), strict=True):
        np.testing.assert_array_equal(outputs[key], wanted)


def test_none_and_all(tmp_path: Path) -> None:
    """Also of an artifact that was saved and loaded."""
    treadle.compile(model([node("NonZero", "x", "y")], {"x": X.shape})).save(tmp_path / "m")
    loaded = treadle.load(tmp_path / "m")
    assert [str(output) for output in loaded.outputs] == ["y: int64[3, found0]"]
    for x in (0 * X, 0 * X + 1, X):
        (y,) = loaded(x)
        np.testing.assert_array_equal(y, np.stack(np.nonzero(x)))


def test_as_many_boxes_as_a_detector_has() -> None:
    corners, sides = RNG.uniform(0, 60, (1, 1917, 2)), RNG.uniform(0.5, 2, (1, 1917, 2))
    boxes = np.concatenate([corners, corners + sides], 2).astype(np.float32)
    scores = RNG.permutation(3 * 1917).reshape(1, 3, 1917).astype(np.float32) / 6000
    sizes, weights = {"b": boxes.shape, "c": scores.shape}, {"n": np.array(600), "t": np.array(0.3, np.float32)}
    proto, inputs = (
        model([node("NonMaxSuppression", "b c n t", "y")], sizes, weights=weights),
        {"b": boxes, "c": scores},
    )
    (wanted,) = _expected(proto, inputs)
    assert len(wanted) == 1800
    np.testing.assert_array_equal(treadle.compile(proto).run(inputs)["y"], wanted)


def test_no_boxes_are_asked_for() -> None:
    proto, inputs = _boxes(False, False, 3)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array(0), "n"))
    assert treadle.compile(proto).run(inputs)["y"].shape == (0, 3)


def _refused(proto: ModelProto, message: str) -> None:
    with pytest.raises(TreadleError, match=message):
        import_model(proto.SerializeToString())


def test_what_is_refused() -> None:
    _refused(model([node("NonZero", "x", "y")], {"x": [0, 2]}), r"an operand of shape \(0, 2\); accepted: rank 1 and")
    _refused(
        model([node("Compress", "x x", "y")], {"x": [3]}), "a condition tensor<3xf32>; accepted: a vector of bools"
    )
    _refused(
        model([node("Unique", "x", "y", axis=2)], {"x": [3, 2]}), "axis 2 of a tensor of rank 2; accepted: -2 to 1"
    )
    boxes = node("NonMaxSuppression", "x x n", "y")
    _refused(model([boxes], {"x": [1, 2, 3]}, weights={"n": np.array(1)}), "boxes tensor<1x2x3xf32> and scores")


def test_an_extent_that_is_computed_from_a_found_one() -> None:
    nodes = [
        node("NonZero", "x", "places"),
        node("Concat", "places places", "twice", axis=1),
        node("ReduceSum", "twice", "y", keepdims=0),
    ]
    _refused(model(nodes, {"x": [3]}), "found0")


def _beside_a_range() -> ModelProto:
    return model([node("NonZero", "x", "y"), node("Relu", "z", "r")], {"x": [6], "z": ["n", 3]}, ["y", "r"])


def test_beside_a_range_of_shapes() -> None:
    x, z = X[0, 0], np.array([[1, -1, 2], [3, 4, -5]], np.float32)
    compiled = treadle.compile(_beside_a_range(), shapes={"z": (treadle.Dim("n", 1, 4), 3)})
    y, r = compiled(x, z)
    np.testing.assert_array_equal(y, np.stack(np.nonzero(x)))
    np.testing.assert_array_equal(r, np.maximum(z, 0))


def test_a_dimension_of_the_same_name() -> None:
    with pytest.raises(TreadleError, match="dimension 'found0' has the name of an extent that depends on data"):
        treadle.compile(_beside_a_range(), shapes={"z": (treadle.Dim("found0", 1, 4), 3)})


GROWING = """<ir_version: 8, opset_import: ["" : 17]>
g (float[6] x) => (float[N] y) <int64 most = {6}, bool yes = {1}, float[1] none = {0}> {
  y = Loop (most, yes, none) <body = b (int64 i, bool c, float[A] v) => (bool d, float[B] u) <float half = {0.5}> {
    places = NonZero(x)
    shape = Shape(places)
    found = ReduceProd<keepdims=0>(shape)
    count = Cast<to=1>(found)
    sum = Add(v, count)
    a = Mul(sum, half)
    a1 = Mul(a, half)
    a2 = Mul(a1, half)
    u = Concat<axis=0>(v, a2)
    d = Identity(c)
  }>
}"""


def test_a_loop_that_grows_its_state_and_finds_extents() -> None:
    """It is written out; each iteration has one extent of its own."""
    proto = parse_model(GROWING)
    names = import_model(proto.SerializeToString()).walk()
    (found,) = [op.attributes["found"] for op in names if "found" in op.attributes]
    assert str(found).count("found") == 6
    x = np.array([1, 0, 2, 0, 3, -1], np.float32)
    (wanted,) = _expected(proto, {"x": x})
    np.testing.assert_allclose(treadle.compile(proto).run({"x": x})["y"], wanted, rtol=1e-6)


def test_a_slice_up_to_the_larger_of_a_number_and_an_extent() -> None:
    """Which one it is depends on the call: the end counts as data."""
    proto = parse_model("""<ir_version: 8, opset_import: ["" : 17]>
g (float[n] x) => (float[m, 2] y) <int64[1] four = {4}, int64[1] zero = {0}, float[9, 2] t = {
  0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}> {
  length = Shape(x)
  end = Max(length, four)
  y = Slice(t, zero, end, zero)
}""")
    compiled = treadle.compile(proto, shapes={"x": (treadle.Dim("n", 1, 9),)})
    for n in range(1, 10):
        x = np.zeros(n, np.float32)
        (wanted,) = _expected(proto, {"x": x})
        np.testing.assert_array_equal(compiled.run({"x": x})["y"], wanted)
