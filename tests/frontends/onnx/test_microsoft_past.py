"""MultiHeadAttention and Attention of `com.microsoft` with a past that is a state, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.helper import make_graph, make_model, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array

import treadle
from tests.frontends.onnx.microsoft_cases import microsoft
from treadle.errors import TreadleError
from treadle.frontends.onnx.importer import import_model

Array = NDArray[Any]
RANDOM = np.random.default_rng(13)
HEADS, SIZE, ROOM = 4, 8, 12
WIDTH = HEADS * SIZE
RANGES = {"s": treadle.Dim("s", 1, 6), "p": treadle.Dim("p", 0, 20)}
WEIGHTS: dict[str, Array] = {
    "w": RANDOM.uniform(-0.5, 0.5, (12, 3 * WIDTH)).astype(np.float32),
    "b": RANDOM.uniform(-1, 1, 3 * WIDTH).astype(np.float32),
}
WHERE = pytest.mark.parametrize(
    "where", [{}, {"target": "sm_80", "device": "emulator", "checks": ("bounds", "init")}], ids=["cpu", "emulator"]
)


def floats(*shape: int) -> Array:
    return RANDOM.uniform(-1, 1, shape).astype(np.float32)


def model_of(node: NodeProto, shapes: Mapping[str, Sequence[int | str]]) -> ModelProto:
    inputs = [
        make_tensor_value_info(name, TensorProto.INT32 if name == "n" else TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    ]
    weights = [from_array(x, name) for name, x in WEIGHTS.items() if name in node.input]
    graph = make_graph([node], "g", inputs, [ValueInfoProto(name=name) for name in node.output], weights)
    return make_model(graph, opset_imports=[make_opsetid("", 18), make_opsetid("com.microsoft", 1)], ir_version=9)


def by_heads(past: int | str, rows: int | str, counted: bool) -> ModelProto:
    names, causal = "q k v _ _ _ pk pv" + (" n" if counted else ""), {"unidirectional": int(not counted)}
    node = microsoft("MultiHeadAttention", names, "y nk nv", num_heads=HEADS, **causal)
    shapes: dict[str, list[int | str]] = {name: [1, rows, WIDTH] for name in "qkv"}
    shapes |= {name: [1, HEADS, past, SIZE] for name in ("pk", "pv")}
    return model_of(node, {**shapes, "n": [1]} if counted else shapes)


def projected(past: int | str, rows: int | str, counted: bool) -> ModelProto:
    names = "x w b _ past" + (" _ n" if counted else "")
    shared = {"past_present_share_buffer": 1} if counted else {}
    node = microsoft("Attention", names, "y present", num_heads=HEADS, unidirectional=1, **shared)
    shapes: dict[str, list[int | str]] = {"x": [1, rows, 12], "past": [2, 1, HEADS, past, SIZE]}
    return model_of(node, {**shapes, "n": [1]} if counted else shapes)


def run(file: ModelProto, feed: Mapping[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(file.SerializeToString())
    return [np.asarray(y) for y in session.run(None, dict(feed))]


@WHERE
def test_heads_behind_a_past_that_grows(where: Mapping[str, Any]) -> None:
    file = by_heads("p", "s", False)
    with treadle.compile(file, shapes=RANGES, states={"pk": "nk", "pv": "nv"}, **where) as model:
        assert all(state.in_place for state in model.manifest.states)
        kept = [np.zeros((1, HEADS, 0, SIZE), np.float32)] * 2
        for rows in (4, 1, 6, 1):
            feed = {name: floats(1, rows, WIDTH) for name in "qkv"}
            wanted, *kept = run(file, {**feed, "pk": kept[0], "pv": kept[1]})
            np.testing.assert_allclose(model(**feed)[0], wanted, rtol=0, atol=3e-6)


@WHERE
def test_projections_behind_a_past_that_grows(where: Mapping[str, Any]) -> None:
    file = projected("p", "s", False)
    with treadle.compile(file, shapes=RANGES, states={"past": "present"}, **where) as model:
        assert all(state.in_place for state in model.manifest.states)
        kept = np.zeros((2, 1, HEADS, 0, SIZE), np.float32)
        for rows in (4, 1, 6, 1):
            x = floats(1, rows, 12)
            wanted, kept = run(file, {"x": x, "past": kept})
            np.testing.assert_allclose(model(x=x)[0], wanted, rtol=0, atol=5e-6)


@WHERE
def test_heads_behind_a_past_that_has_room(where: Mapping[str, Any]) -> None:
    """Of which ONNX Runtime takes single rows on CPUs."""
    file = by_heads(ROOM, 1, True)
    with treadle.compile(file, states={"pk": "nk", "pv": "nv"}, **where) as model:
        assert all(state.in_place for state in model.manifest.states)
        kept = [np.zeros((1, HEADS, ROOM, SIZE), np.float32)] * 2
        for past in range(5):
            feed: dict[str, Array] = {name: floats(1, 1, WIDTH) for name in "qkv"}
            feed["n"] = np.array([past], np.int32)
            wanted, *kept = run(file, {**feed, "pk": kept[0], "pv": kept[1]})
            np.testing.assert_allclose(model(**feed)[0], wanted, rtol=0, atol=3e-6)


@pytest.mark.parametrize("states", [None, {"past": "present"}])
def test_projections_behind_a_past_that_has_room(states: Mapping[str, str] | None) -> None:
    """As behind one that grows, which ONNX Runtime has on CPUs."""
    growing = projected("p", "s", False)
    with treadle.compile(projected(ROOM, "s", True), shapes={"s": RANGES["s"]}, states=states) as model:
        kept, whole = np.zeros((2, 1, HEADS, 0, SIZE), np.float32), np.zeros((2, 1, HEADS, ROOM, SIZE), np.float32)
        for rows in (3, 1, 5):
            x, n = floats(1, rows, 12), np.array([kept.shape[3]], np.int32)
            wanted, kept = run(growing, {"x": x, "past": kept})
            y, *rest = model(x=x, n=n) if states else model(x=x, n=n, past=whole)
            np.testing.assert_allclose(y, wanted, rtol=0, atol=5e-6)
            if not states:
                whole = rest[0]
                np.testing.assert_allclose(whole[..., : kept.shape[3], :], kept, rtol=0, atol=3e-6)


def test_room_that_changes_is_refused() -> None:
    with pytest.raises(TreadleError, match=r"a past of p <= 20 that has room; accepted: a static extent, or no"):
        import_model(by_heads("p", 1, True).SerializeToString(), {"p": RANGES["p"]})
