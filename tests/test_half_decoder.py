"""A decoder of two layers in half precision on GPUs: which kernels of attention its calls get, against ONNX Runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array

import treadle

LAYERS, HEADS, GROUPS, SIZE, WIDTH = 2, 8, 2, 64, 128
ROWS, ROOM = 40, 216
RANDOM = np.random.default_rng(11)
KEPT = {f"past_{each}{n}": f"present_{each}{n}" for n in range(LAYERS) for each in "kv"}
Half = NDArray[np.float16]


def halves(*shape: int, scale: float = 1.0) -> Half:
    return (RANDOM.uniform(-1, 1, shape) * scale).astype(np.float16)


def decoder() -> ModelProto:
    """Each layer adds attention with rotary positions over a growing past to its input."""
    nodes: list[NodeProto] = []
    tables = {name: halves(ROWS + ROOM, SIZE // 2) for name in ("cos", "sin")}
    weights: dict[str, Half] = {**tables}
    x = "x"
    for n in range(LAYERS):
        for each, heads in (("q", HEADS), ("k", GROUPS), ("v", GROUPS)):
            weights[f"w{each}{n}"] = halves(WIDTH, heads * SIZE, scale=0.15)
            nodes.append(make_node("MatMul", [x, f"w{each}{n}"], [f"{each}{n}"]))
        weights[f"wo{n}"] = halves(HEADS * SIZE, WIDTH, scale=0.05)
        nodes += [
            make_node(
                "GroupQueryAttention",
                [f"q{n}", f"k{n}", f"v{n}", f"past_k{n}", f"past_v{n}", "lengths", "total", "cos", "sin"],
                [f"a{n}", f"present_k{n}", f"present_v{n}"],
                domain="com.microsoft", num_heads=HEADS, kv_num_heads=GROUPS, do_rotary=1,
            ),
            make_node("MatMul", [f"a{n}", f"wo{n}"], [f"o{n}"]),
            make_node("Add", [x, f"o{n}"], [f"y{n}"]),
        ]  # fmt: skip
        x = f"y{n}"
    inputs = [make_tensor_value_info("x", TensorProto.FLOAT16, [1, "s", WIDTH])]
    inputs += [make_tensor_value_info(name, TensorProto.FLOAT16, [1, GROUPS, "p", SIZE]) for name in KEPT]
    inputs += [
        make_tensor_value_info("lengths", TensorProto.INT32, [1]),
        make_tensor_value_info("total", TensorProto.INT32, []),
    ]
    outputs = [ValueInfoProto(name=name) for name in (x, *KEPT.values())]
    initializers = [from_array(value, name) for name, value in weights.items()]
    domains = [make_opsetid("", 18), make_opsetid("com.microsoft", 1)]
    return make_model(make_graph(nodes, "g", inputs, outputs, initializers), opset_imports=domains, ir_version=9)


def calls(session: onnxruntime.InferenceSession) -> Iterator[tuple[Mapping[str, NDArray[np.generic]], Half]]:
    """A prompt, tokens and chunks of one conversation, and what ONNX Runtime gives."""
    past: dict[str, NDArray[np.generic]] = {name: np.zeros((1, GROUPS, 0, SIZE), np.float16) for name in KEPT}
    done = 0
    for rows in (33, 1, 1, 3, ROWS, 1):
        feed: dict[str, NDArray[np.generic]] = {
            "x": halves(1, rows, WIDTH), "lengths": np.array([done + rows - 1], np.int32),
            "total": np.array(done + rows, np.int32),
        }  # fmt: skip
        y, *present = (np.asarray(each) for each in session.run(None, {**feed, **past}))
        yield feed, y
        past, done = dict(zip(KEPT, present, strict=True)), done + rows


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_steps_get_the_kernel_of_few_queries_and_read_the_cache_once(target: str) -> None:
    file = decoder()
    shapes = {"s": treadle.Dim("s", 1, ROWS), "p": treadle.Dim("p", 0, ROOM)}
    options: dict[str, Any] = {"device": "emulator", "checks": ("bounds", "init"), "counters": True}
    with treadle.compile(file, target, shapes, states=KEPT, **options) as model:
        for feed, wanted in calls(onnxruntime.InferenceSession(file.SerializeToString())):
            (y,) = model(**feed)
            np.testing.assert_allclose(y.astype(np.float32), wanted.astype(np.float32), rtol=2**-9, atol=4e-3)
            rows, total = feed["x"].shape[1], int(feed["total"])
            found = [each for each in model.reports if "attention" in each.kernel]
            texts = [(model.folder / "kernels" / f"{each.kernel}.cu").read_text() for each in found]
            assert len(found) == LAYERS
            assert [" heads of keys: " in text for text in texts] == [rows <= 4] * LAYERS
            if rows > 1:
                continue
            for each in found:
                assert each.counters is not None
                for buffer in "KV":
                    lines = [
                        n for n in each.counters.lines if re.search(rf">\(&{buffer}\[", each.counters.text(n.line))
                    ]
                    assert sum(n.global_read for n in lines) == GROUPS * total * SIZE * 2
