"""Slice along one dimension, all signs of bounds and steps, against ONNX Runtime."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from treadle.frontends.onnx.converters.indexing import slice_range

# ONNX Runtime reads an end of 2^63 - 1 as the front where the step is negative; ONNX itself has INT_MIN for that.
LARGEST, LOWEST = 2**63 - 2, -(2**63)


def session() -> onnxruntime.InferenceSession:
    """Slice whose bounds are inputs."""
    names = ["start", "end", "axis", "step"]
    graph = helper.make_graph(
        [helper.make_node("Slice", ["x", *names], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["n"])]
        + [helper.make_tensor_value_info(name, TensorProto.INT64, [1]) for name in names],
        [helper.make_tensor_value_info("y", TensorProto.INT64, ["m"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


@pytest.mark.parametrize("extent", [0, 1, 4])
def test_every_combination_of_signs(extent: int) -> None:
    run, x = session(), np.arange(extent)
    bounds = [LOWEST, *range(-extent - 2, extent + 3), LARGEST]
    for start, end, step in product(bounds, bounds, [-LARGEST, -5, -2, -1, 1, 2, 5, LARGEST]):
        named = {"start": start, "end": end, "axis": 0, "step": step}
        (expected,) = run.run(None, {"x": x} | {name: np.array([value]) for name, value in named.items()})
        assert list(slice_range(extent, start, end, step)) == list(np.asarray(expected)), (start, end, step)
