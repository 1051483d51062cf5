"""A decoder of two layers in half precision on GPUs: which kernels of products and of attention its calls get, against
ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array

import treadle
from tests.helpers.loads import bytes_read
from treadle.backends.cuda.emulator import Report
from treadle.model import CompiledModel
from treadle.target.options import Weights

LAYERS, HEADS, GROUPS, SIZE, WIDTH = 2, 8, 2, 64, 512
ELEMENTS = LAYERS * WIDTH * (2 * HEADS + 2 * GROUPS) * SIZE
"""Of all weights."""
ROWS, ROOM = 40, 216
RANDOM = np.random.default_rng(11)
KEPT = {f"past_{each}{n}": f"present_{each}{n}" for n in range(LAYERS) for each in "kv"}
Half = NDArray[np.float16]


def halves(*shape: int, scale: float = 1.0) -> Half:
    return (RANDOM.uniform(-1, 1, shape) * scale).astype(np.float16)


def few_bits(rows: int, columns: int, scale: float) -> Half:
    """Weights that 4 bits and a power of 2 for 32 of a column hold exactly: each 32 have one of -8."""
    numbers = RANDOM.integers(-7, 8, (rows // 32, 32, columns))
    np.put_along_axis(numbers, RANDOM.integers(0, 32, (rows // 32, 1, columns)), -8, axis=1)
    return (numbers.reshape(rows, columns) * 2.0 ** np.rint(np.log2(scale / 8))).astype(np.float16)


def decoder() -> ModelProto:
    """Each layer adds attention with rotary positions over a growing past to its input."""
    nodes: list[NodeProto] = []
    tables = {name: halves(ROWS + ROOM, SIZE // 2) for name in ("cos", "sin")}
    weights: dict[str, Half] = {**tables}
    x = "x"
    for n in range(LAYERS):
        for each, heads in (("q", HEADS), ("k", GROUPS), ("v", GROUPS)):
            weights[f"w{each}{n}"] = few_bits(WIDTH, heads * SIZE, 0.07)
            nodes.append(make_node("MatMul", [x, f"w{each}{n}"], [f"{each}{n}"]))
        weights[f"wo{n}"] = few_bits(HEADS * SIZE, WIDTH, 0.05)
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
    for rows in (33, 1, 3, ROWS, 1):
        feed: dict[str, NDArray[np.generic]] = {
            "x": halves(1, rows, WIDTH), "lengths": np.array([done + rows - 1], np.int32),
            "total": np.array(done + rows, np.int32),
        }  # fmt: skip
        y, *present = (np.asarray(each) for each in session.run(None, {**feed, **past}))
        yield feed, y
        past, done = dict(zip(KEPT, present, strict=True)), done + rows


@pytest.mark.parametrize("weights", ["float", "int4"])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_steps_get_kernels_of_few_rows(target: str, weights: Weights) -> None:
    """Of few queries, which read the cache once, and of few rows, which read the weights once."""
    file = decoder()
    shapes = {"s": treadle.Dim("s", 1, ROWS), "p": treadle.Dim("p", 0, ROOM)}
    options: dict[str, Any] = {"device": "emulator", "checks": ("bounds", "init"), "counters": True}
    with treadle.compile(file, target, shapes, states=KEPT, weights=weights, **options) as model:
        for feed, wanted in calls(onnxruntime.InferenceSession(file.SerializeToString())):
            (y,) = model(**feed)
            np.testing.assert_allclose(y.astype(np.float32), wanted.astype(np.float32), rtol=2**-9, atol=4e-3)
            rows, total = feed["x"].shape[1], int(feed["total"])
            attention, products = (
                [each for each in model.reports if name in each.kernel] for name in ("attention", "matmul")
            )
            assert [" heads of keys: " in text for text in texts_of(model, attention)] == [rows <= 4] * LAYERS
            if rows > 1:
                continue
            for each in attention:
                assert [bytes_read(each, buffer) for buffer in "KV"] == [GROUPS * total * SIZE * 2] * 2
            assert all("rows_of_a" in text for text in texts_of(model, products))
            assert sum(bytes_read(each, "B") for each in products) == ELEMENTS // (4 if weights == "int4" else 1) * 2


def texts_of(model: CompiledModel, reports: Sequence[Report]) -> list[str]:
    """Of the kernels that were launched."""
    return [(model.folder / "kernels" / f"{each.kernel}.cu").read_text() for each in reports]
