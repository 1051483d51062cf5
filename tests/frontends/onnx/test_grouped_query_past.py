"""GroupQueryAttention with a past: prompts, chunks and single tokens against ONNX Runtime, compiled once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array

import treadle
from treadle.errors import TreadleError

HEADS, GROUPS, SIZE = 4, 2, 16
ROWS, ROOM = 9, 40
RANDOM = np.random.default_rng(5)
Feed = Mapping[str, NDArray[np.generic]]


def floats(*shape: int) -> NDArray[np.float32]:
    return RANDOM.uniform(-1, 1, shape).astype(np.float32)


@dataclass(frozen=True)
class Cache:
    """A model of one node. room: the extent of the past, which else grows by each call's rows."""

    batch: int = 1
    room: int | None = None
    rotary: bool = False
    interleaved: bool = False
    packed: bool = False
    window: int = -1
    softcap: float = 0.0
    sink: bool = False
    bias: bool = False

    def model(self) -> ModelProto:
        names = ["q", "", ""] if self.packed else ["q", "k", "v"]
        names += ["pk", "pv", "lengths", "total", *(("cos", "sin") if self.rotary else ("", ""))]
        names += ["", "bias" if self.bias else "", *(["sink"] if self.sink else [])]
        node = make_node(
            "GroupQueryAttention", names, ["y", "nk", "nv"], domain="com.microsoft", num_heads=HEADS,
            kv_num_heads=GROUPS, do_rotary=int(self.rotary), rotary_interleaved=int(self.interleaved),
            local_window_size=self.window, softcap=self.softcap,
        )  # fmt: skip
        past = [self.batch, GROUPS, self.room or "p", SIZE]
        shapes = {"q": [self.batch, "s", self.width], "pk": past, "pv": past}
        if not self.packed:
            shapes |= {name: [self.batch, "s", GROUPS * SIZE] for name in ("k", "v")}
        inputs = [make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
        if self.bias:
            inputs.append(make_tensor_value_info("bias", TensorProto.FLOAT, [1, HEADS, "s", self.room or "p + s"]))
        inputs.append(make_tensor_value_info("lengths", TensorProto.INT32, [self.batch]))
        inputs.append(make_tensor_value_info("total", TensorProto.INT32, []))
        caches = [from_array(floats(ROWS + ROOM, SIZE // 2), name) for name in ("cos", "sin") if self.rotary]
        caches += [from_array(floats(HEADS), "sink")] if self.sink else []
        outputs = [ValueInfoProto(name=name) for name in ("y", "nk", "nv")]
        domains = [make_opsetid("", 18), make_opsetid("com.microsoft", 1)]
        return make_model(make_graph([node], "g", inputs, outputs, caches), opset_imports=domains, ir_version=9)

    @property
    def width(self) -> int:
        return (HEADS + 2 * GROUPS if self.packed else HEADS) * SIZE

    @property
    def shapes(self) -> dict[str, treadle.Dim]:
        dims = [treadle.Dim("s", 1, ROWS)] + ([] if self.room else [treadle.Dim("p", 0, ROOM)])
        return {dim.name: dim for dim in dims}

    def calls(self) -> Iterator[tuple[Feed, list[int]]]:
        """What is fed, and the tokens of each sequence, those of its past among them. ONNX Runtime takes chunks behind
        a past of single sequences only; prompts of several may end with padding."""
        for rows, past in ((1, 0), (ROWS, 0), (1, ROOM - 1), (5, 7), (1, 20), (2, 30)):
            if self.batch > 1 and rows > 1 and past:
                continue
            counts = [past + rows - (n if rows > 1 else 0) for n in range(self.batch)]
            kept = (self.batch, GROUPS, self.room or past, SIZE)
            feed: dict[str, NDArray[np.generic]] = {
                "q": floats(self.batch, rows, self.width), "pk": floats(*kept), "pv": floats(*kept),
                "lengths": np.array(counts, np.int32) - 1, "total": np.array(past + rows, np.int32),
            }  # fmt: skip
            if not self.packed:
                feed |= {name: floats(self.batch, rows, GROUPS * SIZE) for name in ("k", "v")}
            if self.bias:
                feed["bias"] = floats(1, HEADS, rows, past + rows)
            yield feed, counts

    def check(self, compiled: treadle.CompiledModel) -> None:
        oracle = onnxruntime.InferenceSession(self.file.SerializeToString())
        for feed, counts in self.calls():
            rows = feed["q"].shape[1]
            wanted = [np.asarray(each) for each in oracle.run(None, dict(feed))]
            for got, want in zip(compiled(**feed), wanted, strict=True):
                assert got.shape == want.shape
                for n, count in enumerate(counts):
                    # Rows of padding, and keys beyond the last token, are not defined.
                    own = (n, slice(min(rows, count))) if got.ndim == 3 else (n, slice(None), slice(count))
                    np.testing.assert_allclose(got[own], want[own], rtol=0, atol=2e-6)

    @property
    def file(self) -> ModelProto:
        """The model, whose cosines and sines are random, made once."""
        if self not in _FILES:
            _FILES[self] = self.model()
        return _FILES[self]


_FILES: dict[Cache, ModelProto] = {}

CACHES = {
    "grows": Cache(),
    "grows, rotary": Cache(rotary=True),
    "grows, rotary of pairs, packed": Cache(rotary=True, interleaved=True, packed=True),
    "grows, window": Cache(rotary=True, window=6),
    "has room, packed": Cache(room=ROOM + ROWS, rotary=True, packed=True),
    "has room, window": Cache(room=ROOM + ROWS, window=6),
    "grows, soft cap": Cache(rotary=True, softcap=1.5),
    "has room, soft cap, sink, window": Cache(room=ROOM + ROWS, window=6, softcap=0.5, sink=True),
    "grows, bias": Cache(rotary=True, window=6, bias=True),
    "two sequences": Cache(batch=2, rotary=True),
    "two sequences that have room": Cache(batch=2, room=ROOM + ROWS),
}


@pytest.mark.parametrize("past", [0, 7])
def test_a_past_of_one_extent_grows_where_all_keys_are_known_to_be_more(past: int) -> None:
    cache = Cache(rotary=True)
    rows = 4
    feed: dict[str, NDArray[np.generic]] = {
        "q": floats(1, rows, cache.width), **{name: floats(1, rows, GROUPS * SIZE) for name in ("k", "v")},
        **{name: floats(1, GROUPS, past, SIZE) for name in ("pk", "pv")},
    }  # fmt: skip
    counts = {"lengths": np.array([past + rows - 1], np.int32), "total": np.array(past + rows, np.int32)}
    oracle = onnxruntime.InferenceSession(cache.file.SerializeToString())
    wanted = [np.asarray(each) for each in oracle.run(None, {**feed, **counts})]
    with treadle.compile(cache.file, shapes={"s": rows, "p": past}, constants=counts) as model:
        for got, want in zip(model(**feed), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)


SLOW = {"grows, rotary", "has room, window", "two sequences that have room"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in CACHES])
def test_prompts_chunks_and_steps(name: str) -> None:
    cache = CACHES[name]
    with treadle.compile(cache.file, shapes=cache.shapes, threads=2) as compiled:
        cache.check(compiled)


@pytest.mark.parametrize(
    "name",
    [
        "grows, window",
        "has room, packed",
        "has room, soft cap, sink, window",
        pytest.param("two sequences", marks=pytest.mark.slow),
    ],
)
def test_prompts_chunks_and_steps_on_the_emulator(name: str) -> None:
    cache = CACHES[name]
    with treadle.compile(cache.file, "sm_80", cache.shapes, device="emulator") as compiled:
        cache.check(compiled)


def test_a_past_of_any_number_of_sequences_is_refused() -> None:
    node = make_node(
        "GroupQueryAttention", ["q", "k", "v", "pk", "pv", "lengths", "total"], ["y", "nk", "nv"],
        domain="com.microsoft", num_heads=HEADS, kv_num_heads=GROUPS,
    )  # fmt: skip
    rows, past = ["b", 4, GROUPS * SIZE], ["b", GROUPS, 8, SIZE]
    shapes = {"q": ["b", 4, HEADS * SIZE], "k": rows, "v": rows, "pk": past, "pv": past}
    inputs = [make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    inputs.append(make_tensor_value_info("lengths", TensorProto.INT32, ["b"]))
    inputs.append(make_tensor_value_info("total", TensorProto.INT32, []))
    outputs = [ValueInfoProto(name=name) for name in ("y", "nk", "nv")]
    domains = [make_opsetid("", 18), make_opsetid("com.microsoft", 1)]
    model = make_model(make_graph([node], "g", inputs, outputs), opset_imports=domains, ir_version=9)
    with pytest.raises(
        TreadleError, match="a past of b <= 3 sequences; accepted: 'past_key' and 'past_value' of a static"
    ):
        treadle.compile(model, shapes={"b": treadle.Dim("b", 1, 3)})


def test_halves_of_a_head_that_are_shorter_than_a_vector() -> None:
    """Queries are read row by row and transposed; which half of a row is read depends on the column."""
    cache, rows = Cache(rotary=True), 40
    oracle = onnxruntime.InferenceSession(cache.file.SerializeToString())
    with treadle.compile(cache.file, shapes={"s": treadle.Dim("s", 1, rows), "p": treadle.Dim("p", 0, ROOM)}) as model:
        for count, past in ((rows, 0), (33, 7), (17, 9)):
            feed: dict[str, NDArray[np.generic]] = {
                "q": floats(1, count, cache.width),
                **{name: floats(1, count, GROUPS * SIZE) for name in ("k", "v")},
                **{name: floats(1, GROUPS, past, SIZE) for name in ("pk", "pv")},
                "lengths": np.array([past + count - 1], np.int32), "total": np.array(past + count, np.int32),
            }  # fmt: skip
            for got, want in zip(model(**feed), oracle.run(None, dict(feed)), strict=True):
                np.testing.assert_allclose(got, np.asarray(want), rtol=0, atol=2e-6)
