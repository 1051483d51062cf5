"""Attention and TensorScatter of ONNX's own domain with caches that are states, against ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.reference import ReferenceEvaluator
from xdsl.dialects.builtin import ModuleOp

import treadle
from treadle.dialects.graph import AppendOp, AttentionOp, MatmulOp
from treadle.errors import TreadleError
from treadle.frontends.onnx.importer import import_model

Array = NDArray[Any]
RANDOM = np.random.default_rng(11)
HEADS, GROUPS, SIZE, ROOM = 4, 2, 16, 24
KEPT = {"pk": "nk", "pv": "nv"}
WHERE = pytest.mark.parametrize(
    "where", [{}, {"target": "sm_80", "device": "emulator", "checks": ("bounds", "init")}], ids=["cpu", "emulator"]
)
RANGES = {"s": treadle.Dim("s", 1, 6), "p": treadle.Dim("p", 0, 20)}


def floats(*shape: int) -> Array:
    return RANDOM.uniform(-1, 1, shape).astype(np.float32)


def model_of(nodes: Sequence[NodeProto], shapes: Mapping[str, Sequence[int | str]], outputs: str) -> ModelProto:
    kinds = {"at": TensorProto.INT64, "count": TensorProto.INT64, "seen": TensorProto.BOOL}
    inputs = [make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), shape) for name, shape in shapes.items()]
    graph = make_graph(nodes, "g", inputs, [ValueInfoProto(name=name) for name in outputs.split()])
    return make_model(graph, opset_imports=[make_opsetid("", 24)], ir_version=11)


def run(oracle: ReferenceEvaluator, feed: Mapping[str, Array]) -> list[Array]:
    return [np.asarray(y) for y in cast("list[Any]", oracle.run(None, dict(feed)))]


def growing(softcap: float) -> ModelProto:
    node = make_node(
        "Attention", ["q", "k", "v", "", "pk", "pv"], ["y", "nk", "nv"], name="n", is_causal=1, q_num_heads=HEADS,
        kv_num_heads=GROUPS, softcap=softcap,
    )  # fmt: skip
    rows, past = [1, "s", GROUPS * SIZE], [1, GROUPS, "p", SIZE]
    shapes = {"q": [1, "s", HEADS * SIZE], "k": rows, "v": rows, "pk": past, "pv": past}
    return model_of([node], shapes, "y nk nv")


@WHERE
@pytest.mark.parametrize("softcap", [0.0, 0.75])
def test_a_past_that_grows(softcap: float, where: Mapping[str, Any]) -> None:
    file = growing(softcap)
    oracle = ReferenceEvaluator(file)
    with treadle.compile(file, shapes=RANGES, states=KEPT, **where) as model:
        assert all(state.in_place for state in model.manifest.states)
        kept = [np.zeros((1, GROUPS, 0, SIZE), np.float32)] * 2
        for rows in (4, 1, 6, 1):
            feed = {name: floats(1, rows, (HEADS if name == "q" else GROUPS) * SIZE) for name in "qkv"}
            wanted, *kept = run(oracle, {**feed, "pk": kept[0], "pv": kept[1]})
            np.testing.assert_allclose(model(**feed)[0], wanted, rtol=0, atol=3e-6)


def scattered(mode: str, rows: int | str) -> ModelProto:
    """As the definition of TensorScatter proposes: it writes a cache, of which Attention reads what there is."""
    nodes = [
        make_node("TensorScatter", [f"p{name}", name, "at"], [f"n{name}"], axis=2, mode=mode) for name in "kv"
    ]  # fmt: skip
    nodes.append(make_node("Attention", ["q", "nk", "nv", "", "", "", "count"], ["y"], name="n", is_causal=1))
    shapes: dict[str, list[int | str]] = {name: [1, GROUPS, rows, SIZE] for name in "kv"}
    shapes |= {name: [1, GROUPS, ROOM, SIZE] for name in ("pk", "pv")}
    return model_of(nodes, {"q": [1, HEADS, rows, SIZE], "at": [1], "count": [1], **shapes}, "y nk nv")


@WHERE
@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_a_cache_that_is_written_where_it_lies(mode: str, where: Mapping[str, Any]) -> None:
    file = scattered(mode, "s" if mode == "linear" else 1)
    oracle = ReferenceEvaluator(file)
    with treadle.compile(file, shapes={"s": RANGES["s"]} if mode == "linear" else None, states=KEPT, **where) as model:
        assert all(state.in_place for state in model.manifest.states)
        kept, past = [np.zeros((1, GROUPS, ROOM, SIZE), np.float32)] * 2, 0
        for rows in (5, 1, 6, 1) if mode == "linear" else [1] * 3:
            feed: dict[str, Array] = {
                name: floats(1, HEADS if name == "q" else GROUPS, rows, SIZE) for name in "qkv"
            }  # fmt: skip
            begin = past if mode == "linear" else past + ROOM  # a lap later
            feed |= {"at": np.array([begin]), "count": np.array([past + rows])}
            wanted, *kept = run(oracle, {**feed, "pk": kept[0], "pv": kept[1]})
            np.testing.assert_allclose(model(**feed)[0], wanted, rtol=0, atol=3e-6)
            past += rows


@pytest.mark.parametrize("softcap", [0.0, 0.75])
def test_rows_that_see_nothing_are_zeros(softcap: float) -> None:
    node = make_node("Attention", ["q", "k", "v", "seen"], ["y"], softcap=softcap)
    shapes: dict[str, list[int | str]] = {name: [1, HEADS, 3, SIZE] for name in "qkv"}
    file = model_of([node], {**shapes, "seen": [3, 3]}, "y")
    feed: dict[str, Array] = {name: floats(1, HEADS, 3, SIZE) for name in "qkv"}
    feed["seen"] = np.array([[True, False, True], [False] * 3, [False, True, False]])
    with treadle.compile(file) as model:
        (y,) = model(**feed)
    assert not y[0, :, 1].any()
    np.testing.assert_allclose(y, run(ReferenceEvaluator(file), feed)[0], rtol=0, atol=3e-6)


def kinds(module: ModuleOp) -> tuple[int, int, int]:
    ops = list(module.walk())
    return tuple(sum(isinstance(op, kind) for op in ops) for kind in (AttentionOp, AppendOp, MatmulOp))  # pyright: ignore


def test_what_is_an_attention_and_what_is_written_out() -> None:
    shapes: dict[str, list[int | str]] = {name: [1, HEADS, 3, SIZE] for name in "qkv"}

    def of(outputs: str, **attributes: Any) -> tuple[int, int, int]:
        node = make_node("Attention", ["q", "k", "v"], ["" if w == "_" else w for w in outputs.split()], **attributes)
        return kinds(import_model(model_of([node], shapes, outputs.split()[-1]).SerializeToString()))

    assert kinds(import_model(growing(0.0).SerializeToString(), RANGES, states=KEPT)) == (1, 2, 0)
    assert of("y", is_causal=1) == (1, 0, 0)
    assert of("y", softcap=2.0) == (0, 0, 2)
    assert of("y _ _ scores")[0] == 0


def test_half_a_past_is_refused() -> None:
    node = make_node("Attention", ["q", "k", "v", "", "pk"], ["y", "nk"], name="n")
    shapes: dict[str, list[int | str]] = {name: [1, HEADS, 3, SIZE] for name in ("q", "k", "v", "pk")}
    with pytest.raises(TreadleError, match=r"node 'n'.*'past_key' and 'past_value' is given; accepted: both"):
        import_model(model_of([node], shapes, "y nk").SerializeToString())
    node = make_node("Attention", ["q", "k", "v"], ["y"], name="n", q_num_heads=HEADS)
    rows: dict[str, list[int | str]] = {name: [1, 3, HEADS * SIZE] for name in "qkv"}
    with pytest.raises(TreadleError, match=r"node 'n'.*4 heads of queries and 0 of keys; accepted: three of rank 4"):
        import_model(model_of([node], rows, "y").SerializeToString())


def test_a_definition_that_onnx_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node("Attention", ["q", "k", "v"], ["y", "", "", "scores"], name="n")
    shapes: dict[str, list[int | str]] = {name: [1, HEADS, 3, SIZE] for name in "qkv"}
    monkeypatch.setattr("treadle.frontends.onnx.importer.find_schema", lambda *_: None)
    with pytest.raises(TreadleError, match=r"node 'n'.*does not have; accepted: a newer onnx"):
        import_model(model_of([node], shapes, "y scores").SerializeToString())
