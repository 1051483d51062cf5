"""Loops and branches that read and give tensors whose extents change, as compiled C, beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper
from onnx.parser import parse_model

import treadle
from tests.frontends.onnx.test_control_flow import NEWTON

Array = NDArray[Any]
RNG = np.random.default_rng(17)


def _model(text: str) -> ModelProto:
    return parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')


RANGED = {
    "a loop that ends by data": NEWTON.replace("float[4]", "float[N]"),
    "slices of a range, from both ends": """
    g (float[M] s, float[N, M] x) => (float[M] y, float[N, M] rows) {
      y, rows = Scan <num_scan_inputs=2, scan_input_directions=[1, 0], scan_output_directions=[1], body = b
          (float[M] t, float[M] p, float[M] q) => (float[M] u, float[M] row) {
        d = Sub(p, q)
        e = Add(t, d)
        u = Sin(e)
        row = Exp(u)
      }> (s, x, x)
    }""",
    "an extent as the trip count, and a sum over another in the body": """
    g (float[N, M] x) => (float[N, M] y, float[N] sums) <int64 zero = {0}> {
      shape = Shape(x)
      m = Gather(shape, zero)
      y, sums = Loop (m, , x) <body = b (int64 i, bool c, float[N, M] v) => (bool d, float[N, M] u, float s) {
        row = Gather(x, i)
        w = Sin(v)
        u = Add(w, row)
        s = ReduceSum<keepdims=0>(u)
        d = Identity(c)
      }>
    }""",
    "branches of products": """
    g (float[N, M] x, float[4, M] w, bool k) => (float[N, 4] y) <int64[1] axis = {1}> {
      z = Transpose<perm=[1, 0]>(w)
      y = If (k) <then_branch = t () => (float[N, 4] p) { p = MatMul(x, z) }, else_branch = e () => (float[N, 4] q)
        { h = Sin(x)  f = MatMul(h, z)  r = ReduceSum(x, axis)  q = Add(f, r) }>
    }""",
}


@pytest.mark.parametrize("name", RANGED)
def test_bodies_of_extents_that_change(name: str) -> None:
    """Beside ONNX Runtime, each call after one of the largest shape that leaves NaN in all buffers."""
    proto = _model(RANGED[name])
    symbols = {d.dim_param for entry in proto.graph.input for d in entry.type.tensor_type.shape.dim} - {""}
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    with treadle.compile(proto, shapes={name: treadle.Dim(name, 1, 6) for name in symbols}, threads=2) as compiled:
        for extents in ((6, 6), (1, 5), (3, 2), (5, 6), (2, 1)):
            compiled.run(_drawn(proto, {"N": 6, "M": 6}, np.nan))
            for number in (0, 1):
                inputs = _drawn(proto, dict(zip("NM", extents, strict=True)), number)
                expected = map(np.asarray, session.run(None, dict(inputs)))
                for result, wanted in zip(compiled(**inputs), expected, strict=True):
                    assert result.shape == wanted.shape
                    np.testing.assert_allclose(result, wanted, rtol=2e-6, atol=2e-6)


def _drawn(proto: ModelProto, extents: Mapping[str, int], number: float) -> dict[str, Array]:
    """Inputs: floats are drawn, or all are NaN, integers and conditions are the number."""
    found: dict[str, Array] = {}
    for entry in proto.graph.input:
        tensor = entry.type.tensor_type
        shape = [d.dim_value or extents[d.dim_param] for d in tensor.shape.dim]
        if tensor.elem_type != TensorProto.FLOAT:
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            found[entry.name] = np.full(shape, 3 if np.isnan(number) else 3 * number, dtype)
        else:
            found[entry.name] = (
                np.full(shape, np.nan, np.float32)
                if np.isnan(number)
                else RNG.standard_normal(shape).astype(np.float32) + 2
            )
    return found
