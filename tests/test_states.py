"""States: what a compiled model keeps between calls, against ONNX Runtime and NumPy, which get it with each call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from xdsl.dialects.builtin import ModuleOp

import treadle
from tests.frontends.onnx.test_grouped_query_past import GROUPS, ROOM, ROWS, SIZE, Cache, floats
from treadle.compiler.request import read_module
from treadle.dialects.graph.append import states_of
from treadle.errors import TreadleError
from treadle.frontends.onnx.importer import import_model
from treadle.tools.treadle_cli import main

Array = NDArray[Any]
Feed = dict[str, Array]
KEPT = {"pk": "nk", "pv": "nv"}
EMULATOR: dict[str, Any] = {"target": "sm_80", "device": "emulator", "checks": ("bounds", "init")}


# GroupQueryAttention, which grows or has room: prompts, chunks and single tokens of one conversation.


def call(cache: Cache, past: int, rows: int) -> Feed:
    feed: Feed = {
        "q": floats(1, rows, cache.width), "lengths": np.array([past + rows - 1], np.int32),
        "total": np.array(past + rows, np.int32),
    }  # fmt: skip
    return feed if cache.packed else {**feed, **{name: floats(1, rows, GROUPS * SIZE) for name in ("k", "v")}}


@pytest.mark.parametrize("where", [{}, EMULATOR], ids=["cpu", "emulator"])
@pytest.mark.parametrize(
    "cache",
    [
        Cache(rotary=True),
        Cache(room=ROOM, rotary=True, packed=True, window=6),
        Cache(rotary=True, softcap=1.5, sink=True),
    ],
    ids=["grows", "has room", "grows, soft cap"],
)
def test_a_conversation_is_that_of_onnxruntime(cache: Cache, where: Mapping[str, Any]) -> None:
    oracle = onnxruntime.InferenceSession(cache.file.SerializeToString())
    with treadle.compile(cache.file, shapes=cache.shapes, states=KEPT, **where) as model:
        assert model.states == ("pk", "pv") and [tensor.name for tensor in model.outputs] == ["y"]
        assert all(state.in_place for state in model.manifest.states)
        for _ in range(2):
            past, kept = 0, [np.zeros((1, GROUPS, cache.room or 0, SIZE), np.float32)] * 2
            for rows in (5, 1, 1, ROWS, 1):
                feed = call(cache, past, rows)
                wanted, *kept = (np.asarray(each) for each in oracle.run(None, {**feed, "pk": kept[0], "pv": kept[1]}))
                (y,) = model(**feed)
                np.testing.assert_allclose(y, wanted, rtol=0, atol=2e-6)
                past += rows
                assert model.lengths == ({} if cache.room else {"p": past})
            model.reset()


# A decoder as PyTorch's exporters write it: keys are concatenated, the mask has an extent that is computed.


def decoder() -> ModelProto:
    nodes = [
        make_node("Concat", ["pk", "k"], ["nk"], axis=2),
        make_node("Concat", ["pv", "v"], ["nv"], axis=2),
        make_node("Transpose", ["nk"], ["kt"], perm=[0, 1, 3, 2]),
        make_node("MatMul", ["q", "kt"], ["s"]),
        make_node("Add", ["s", "mask"], ["masked"]),
        make_node("Softmax", ["masked"], ["p"], axis=-1),
        make_node("MatMul", ["p", "nv"], ["y"]),
    ]
    shapes: dict[str, list[int | str]] = {
        "q": [1, 2, "s", 8], "k": [1, 2, "s", 8], "v": [1, 2, "s", 8], "mask": [1, 1, "s", "p + s"],
        "pk": [1, 2, "p", 8], "pv": [1, 2, "p", 8],
    }  # fmt: skip
    return model_of(nodes, shapes, ["y", "nk", "nv"])


def model_of(nodes: list[NodeProto], shapes: Mapping[str, list[int | str]], outputs: list[str]) -> ModelProto:
    inputs = [make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = make_graph(nodes, "g", inputs, [ValueInfoProto(name=name) for name in outputs])
    return make_model(graph, opset_imports=[make_opsetid("", 18)], ir_version=9)


RANGES = {"s": treadle.Dim("s", 1, 6), "p": treadle.Dim("p", 0, 20)}


@pytest.mark.parametrize("where", [{}, EMULATOR], ids=["cpu", "emulator"])
def test_a_decoder_of_concatenated_keys_is_that_of_onnxruntime(where: Mapping[str, Any]) -> None:
    file = decoder()
    oracle = onnxruntime.InferenceSession(file.SerializeToString())
    with treadle.compile(file, shapes=RANGES, states=KEPT, **where) as model:
        past, kept = 0, [np.zeros((1, 2, 0, 8), np.float32)] * 2
        for rows in (4, 1, 6, 1):
            feed: Feed = {name: floats(1, 2, rows, 8) for name in "qkv"}
            feed["mask"] = floats(1, 1, rows, past + rows)
            wanted, *kept = (np.asarray(each) for each in oracle.run(None, {**feed, "pk": kept[0], "pv": kept[1]}))
            np.testing.assert_allclose(model(**feed)[0], wanted, rtol=0, atol=2e-6)
            past += rows


# What is no append: two buffers take turns. What reads a state elsewhere has it copied.


@pytest.mark.parametrize("where", [{}, EMULATOR], ids=["cpu", "emulator"])
def test_states_that_are_computed_anew_take_turns(where: Mapping[str, Any]) -> None:
    nodes = [make_node("Mul", ["h", "a"], ["m"]), make_node("Add", ["m", "x"], ["new"]), make_node("Neg", ["h"], ["y"])]
    file = model_of(nodes, {"x": [3, 4], "a": [4], "h": [3, 4]}, ["y", "new"])
    with treadle.compile(file, states={"h": "new"}, **where) as model:
        assert not model.manifest.states[0].in_place
        held, a, x = np.zeros((3, 4), np.float32), floats(4), floats(3, 4)
        for _ in range(4):
            x = floats(3, 4)
            (y,) = model(x=x, a=a)
            np.testing.assert_allclose(y, -held, rtol=0, atol=1e-6)
            held = (held * a + x).astype(np.float32)
        model.reset()
        np.testing.assert_array_equal(model(x=x, a=a)[0], np.zeros((3, 4)))


APPENDED = """
func.func @main(%new: tensor<2x3x4xTYPE>, %begin: tensor<i64>, %n: tensor<i64>, %past: tensor<2x8x4xTYPE>)
    -> (tensor<8x2x4xTYPE>, tensor<2x8x4xTYPE>)
    attributes {input_names = ["new", "begin", "n", "past"], output_names = ["y", "present"], STATES} {
  %present = graph.append %past, %new at %begin count %n {dim = 1 : i64}
      : (tensor<2x8x4xTYPE>, tensor<2x3x4xTYPE>) -> tensor<2x8x4xTYPE>
  %y = graph.transpose %present {perm = array<i64: 1, 0, 2>} : (tensor<2x8x4xTYPE>) -> tensor<8x2x4xTYPE>
  func.return %y, %present : tensor<8x2x4xTYPE>, tensor<2x8x4xTYPE>
}
"""
TYPES = {"f32": np.float32, "f16": np.float16, "f64": np.float64, "i64": np.int64, "i8": np.int8, "ui8": np.uint8}


def appended(element: str, states: str = "states = [#graph.state<3 -> 1>]") -> ModuleOp:
    return read_module(APPENDED.replace("TYPE", element).replace("STATES", states), "append")


@pytest.mark.parametrize("where", [{}, EMULATOR], ids=["cpu", "emulator"])
@pytest.mark.parametrize("element", TYPES)
def test_elements_are_written_where_they_belong_and_nowhere_else(element: str, where: Mapping[str, Any]) -> None:
    random = np.random.default_rng(3)
    with treadle.compile(appended(element), **where) as model:
        assert model.manifest.states[0].in_place
        held = np.zeros((2, 8, 4), TYPES[element])
        for begin, count in ((0, 3), (3, 2), (7, 3), (-2, 3), (5, 0), (2, 99), (1 << 40, 3), (-(1 << 40), 3), (8, 1)):
            new = random.integers(0, 100, (2, 3, 4)).astype(TYPES[element])
            for n in range(min(count, 3)):
                if 0 <= begin + n < 8:
                    held[:, begin + n] = new[:, n]
            (y,) = model(new=new, begin=np.array(begin), n=np.array(count))
            np.testing.assert_array_equal(y, held.transpose(1, 0, 2))


def test_an_append_to_no_state_is_a_copy() -> None:
    with treadle.compile(appended("f32", 'metadata = {"a" = "b"}')) as model:
        past, new = floats(2, 8, 4), floats(2, 3, 4)
        y, present = model(new, np.array(4), np.array(2), past)
        wanted = past.copy()
        wanted[:, 4:6] = new[:, :2]
        np.testing.assert_array_equal(y, wanted.transpose(1, 0, 2))
        np.testing.assert_array_equal(present, wanted)


# Nothing is copied but what is new.


def test_only_new_elements_are_stored() -> None:
    with treadle.compile(appended("f32"), target="sm_80", device="emulator", counters=True) as model:
        model(floats(2, 3, 4), np.array(1), np.array(2))
        stored = {r.kernel: r.counters.total.global_written for r in model.reports if r.counters is not None}
        assert stored["append"] == 2 * 2 * 4 * 4


def test_a_state_is_one_buffer() -> None:
    cache = Cache()
    with treadle.compile(cache.file, shapes=cache.shapes, states=KEPT) as model:
        assert model.memory.states == 2 * 4 * GROUPS * (ROOM + ROWS) * SIZE
        text = (model.folder / "kernels" / "treadle_run.c").read_text()
        numbers = [state.argument for state in model.manifest.states]
        assert numbers and not any(f"inputs[{n}]" in text for n in numbers)


# Lengths: what is full, what is forgotten, and what a call that fails leaves.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("states") / "m"
    with treadle.compile(decoder(), shapes=RANGES, states=KEPT) as model:
        model.save(path)
    return path


def rows(count: int, past: int) -> Feed:
    return {
        **{name: floats(1, 2, count, 8) for name in "qkv"},
        "mask": np.zeros((1, 1, count, past + count), np.float32),
    }


def test_calls_that_fail_leave_states_as_they_are(folder: Path) -> None:
    with treadle.load(folder) as model, treadle.load(folder) as other:
        first, second = rows(3, 0), rows(2, 3)
        model(**first)
        other(**first)
        with pytest.raises(TreadleError, match=r"input 'mask': dimension 3 is 4; accepted: s \+ p, which is 5"):
            model(**{**second, "mask": np.zeros((1, 1, 2, 4), np.float32)})
        with pytest.raises(TreadleError, match="input 'q'"):
            model(**{**second, "q": floats(1, 2, 2, 9)})
        assert model.lengths == {"p": 3}
        np.testing.assert_array_equal(model(**second)[0], other(**second)[0])


def test_a_state_that_is_full_says_so(folder: Path) -> None:
    with treadle.load(folder) as model:
        for past in (0, 6, 12, 18):
            model(**rows(6, past))
        with pytest.raises(TreadleError, match=r"no room behind 24 positions: p is 24.*p from 0 to 20"):
            model(**rows(1, 24))
        model.rewind(p=20)
        model(**rows(1, 20))
        model.reset()
        model(**rows(1, 0))


def test_rewinding_forgets_what_came_later(folder: Path) -> None:
    with treadle.load(folder) as model:
        first, last = rows(3, 0), rows(1, 3)
        (begin,), (wanted,) = model(**first), model(**last)
        model(**rows(5, 4))
        model.rewind(p=3)
        np.testing.assert_array_equal(model(**last)[0], wanted)
        for lengths, message in (({"p": 9}, "p is 4, and 9 is asked for"), ({"s": 1}, "'s' is no extent of a state")):
            with pytest.raises(TreadleError, match=message):
                model.rewind(**lengths)
        model.rewind()
        np.testing.assert_array_equal(model(**first)[0], begin)


def test_models_of_one_folder_have_their_own_states(folder: Path) -> None:
    with treadle.load(folder) as a, treadle.load(folder) as b:
        a(**rows(3, 0))
        assert (a.lengths, b.lengths) == ({"p": 3}, {"p": 0})
        b(**rows(1, 0))
        a.close()
        assert a.lengths == {"p": 0}
        assert np.isfinite(b.run_async(**rows(1, 1)).result()[0]).all() and b.lengths == {"p": 2}


# What is no state.


def test_pairs_are_found_by_their_names() -> None:
    shape: list[int | str] = [1, 2, "p", 8]
    names = [("past_key_values.0.key", "present.0.key"), ("past_value_1", "present_value_1")]
    nodes = [make_node("Concat", [past, "x"], [present], axis=2) for past, present in names]
    file = model_of(nodes, {"x": [1, 2, 1, 8], **{past: shape for past, _ in names}}, [each for _, each in names])
    module = import_model(file.SerializeToString(), {"p": treadle.Dim("p", 0, 7)}, states="auto")
    main = next(op for op in module.ops if states_of(op))  # pyright: ignore[reportArgumentType]
    assert [(s.argument.data, s.result.data) for s in states_of(main)] == [(1, 0), (2, 1)]  # pyright: ignore


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ({"mask": "y"}, "input 'mask': it is a tensor<1x1x6x26xf32>, and output 'y', which it is in the next call, a "),
        ({"pq": "nk"}, "there is no input 'pq'; accepted: q, k"),
        ({"pk": "z"}, r"states\['pk'\]: there is no output 'z'"),
        ({"pk": "nk", "pv": "nk"}, "output 'nk' would be two states"),
        ("auto", "no input is named like an output"),
        (3, "states is 3"),
    ],
)
def test_what_is_no_state_is_refused(states: Any, message: str) -> None:
    with pytest.raises(TreadleError, match=message):
        treadle.compile(decoder(), shapes=RANGES, states=states)


# The commands.


def test_run_checks_a_call_on_empty_states(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(decoder().SerializeToString())
    shapes = ["--shape", "s=1..6", "--shape", "p=0..20", "--states", "pk=nk", "--states", "pv=nv"]
    assert main(["run", str(path), *shapes, "--check", "--repeat", "2"]) == 0
    said = capfd.readouterr().out
    assert "s = 6, p = 0: y: max abs error" in said and "s = 1, p = 0: ONNX Runtime: nk" in said
    assert main(["compile", str(path), *shapes, "-o", str(tmp_path / "m")]) == 0
    assert main(["run", str(tmp_path / "m")]) == 0
    assert main(["bench", str(tmp_path / "m"), "--seconds", "1"]) == 0
    assert re.search(r"^ +[26] +0 +0\.", capfd.readouterr().out, re.MULTILINE)
    assert main(["run", str(tmp_path / "m"), "--states", "auto"]) == 2
    assert main(["compile", str(path), *shapes[:4], "--states", "pk", "-o", str(tmp_path / "n")]) == 2
    assert "cannot read 'pk'; accepted: auto, or INPUT=OUTPUT" in capfd.readouterr().err


@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("element", [TensorProto.FLOAT, TensorProto.FLOAT16], ids=["f32", "f16"])
def test_run_checks_states_of_the_models_type(
    element: int, precision: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, file = tmp_path / "m.onnx", decoder()
    for tensor in file.graph.input:
        tensor.type.tensor_type.elem_type = element
    path.write_bytes(file.SerializeToString())
    shapes = ["--shape", "s=2", "--shape", "p=0..4", "--states", "pk=nk", "--states", "pv=nv"]
    assert main(["run", str(path), *shapes, "--precision", precision, "--check"]) == 0
    assert "p = 0: ONNX Runtime: y: max abs error" in capfd.readouterr().out
