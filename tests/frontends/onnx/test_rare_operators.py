"""Operators of which ONNX's node tests have little, as compiled C beside ONNX Runtime and NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

import treadle
from tests.frontends.onnx.models import model, node
from treadle.errors import TreadleError
from treadle.frontends.onnx import import_model

Array = NDArray[Any]
RNG = np.random.default_rng(8)


def _floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def _proto(operator: NodeProto, inputs: Mapping[str, Array], weights: Mapping[str, Array], opset: int) -> ModelProto:
    proto = model([operator], {}, [name for name in operator.output if name], dict(weights), opset)
    for name, array in inputs.items():
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        proto.graph.input.append(helper.make_tensor_value_info(name, element, array.shape))
    proto.ir_version = 10
    return proto


def _compiled(
    operator: NodeProto, inputs: Mapping[str, Array], weights: Mapping[str, Array] | None = None, opset: int = 20
) -> tuple[ModelProto, tuple[Array, ...]]:
    proto = _proto(operator, inputs, weights or {}, opset)
    with treadle.compile(proto, threads=2) as compiled:
        return proto, compiled(**inputs)


def agrees(
    operator: NodeProto, inputs: Mapping[str, Array], weights: Mapping[str, Array] | None = None, opset: int = 20
) -> None:
    """The outputs are those of ONNX Runtime; integers are equal."""
    proto, results = _compiled(operator, inputs, weights, opset)
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, dict(inputs))
    for result, wanted in zip(results, expected, strict=True):
        array: Array = np.asarray(wanted)
        assert (result.shape, result.dtype) == (array.shape, array.dtype)
        np.testing.assert_allclose(result, array, rtol=1e-5 if result.dtype.kind == "f" else 0, atol=1e-5)


def refused(operator: NodeProto, inputs: Mapping[str, Array], message: str, **weights: Array) -> None:
    with pytest.raises(TreadleError, match=message):
        import_model(_proto(operator, inputs, weights, 20).SerializeToString())


@pytest.mark.parametrize(
    "window",
    [
        {"kernel_shape": [3, 2], "pads": [1, 1, 1, 0], "strides": [2, 1]},
        {"kernel_shape": [2, 2], "dilations": [2, 3], "storage_order": 1},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [2, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"},
    ],
)
def test_positions_of_the_largest(window: Mapping[str, Any]) -> None:
    """Among few numbers, so that many are equal."""
    x = RNG.integers(-2, 2, (2, 3, 8, 7)).astype(np.float32)
    agrees(node("MaxPool", "x", "y i", **window), {"x": x})


def test_positions_of_the_largest_of_three_dimensions() -> None:
    agrees(node("MaxPool", "x", "y i", kernel_shape=[2, 2, 3], storage_order=0), {"x": _floats(1, 2, 4, 5, 6)})


def test_positions_in_a_range_are_refused() -> None:
    proto = model([node("MaxPool", "x", "y i", kernel_shape=[2])], {"x": [1, 2, "w"]}, ["i"])
    with pytest.raises(TreadleError, match=r"positions in an input of shape .*; accepted: static extents"):
        treadle.compile(proto, shapes={"w": treadle.Dim("w", 2, 8)})


@pytest.mark.parametrize("n", [1, 2, 3, 6, pytest.param(20, marks=pytest.mark.slow)])
def test_determinants(n: int) -> None:
    """Those of random matrices, of permuted ones, and of one without an inverse. The code of each column is written
    out: of many, a compiler has more of the same."""
    x = RNG.standard_normal((3, 2, n, n))
    x[1, 0] = np.eye(n)[RNG.permutation(n)]
    x[1, 1, :, n // 2] = 0
    _, (y,) = _compiled(node("Det", "x", "y"), {"x": x})
    np.testing.assert_allclose(y, np.linalg.det(x), rtol=1e-11)
    assert y[1, 1] == 0 and abs(y[1, 0]) == 1


def test_what_has_no_determinant() -> None:
    refused(node("Det", "x", "y"), {"x": _floats(3, 2)}, r"an input of shape \(3, 2\); accepted: matrices")


REGIONS = np.array([[0.5, 1, 6, 7.3], [-3, -2, 4, 5], [2, 2, 2.2, 2.1], [5, 3, 30, 20]], np.float32)


@pytest.mark.parametrize(
    ("mode", "half"),
    [
        ("avg", "half_pixel"),
        ("max", "output_half_pixel"),
        pytest.param("avg", "output_half_pixel", marks=pytest.mark.slow),
        pytest.param("max", "half_pixel", marks=pytest.mark.slow),
    ],
)
def test_regions(mode: str, half: str) -> None:
    """What is computed of samples does not depend on where they are: slow tests have the other pairs."""
    operator = node(
        "RoiAlign", "x r b", "y", mode=mode, coordinate_transformation_mode=half, output_height=3, output_width=2,
        sampling_ratio=2, spatial_scale=0.75,
    )  # fmt: skip
    agrees(operator, {"x": _floats(2, 3, 8, 9), "r": REGIONS, "b": np.array([0, 1, 1, 0])}, None, 16)


def test_regions_before_half_pixels() -> None:
    operator = node("RoiAlign", "x r b", "y", output_height=2, output_width=2, sampling_ratio=3)
    agrees(operator, {"x": _floats(2, 3, 8, 9), "r": REGIONS, "b": np.array([0, 1, 1, 0])}, None, 10)


def test_regions_that_are_refused() -> None:
    inputs = {"x": _floats(2, 3, 8, 9), "r": REGIONS, "b": np.array([0, 1, 1])}
    refused(node("RoiAlign", "x r b", "y"), inputs, "sampling_ratio 0 .*; accepted: numbers from 1 upwards")
    refused(
        node("RoiAlign", "x r b", "y", sampling_ratio=2), inputs, r"their pictures \(3,\); accepted: \[N, C, H, W\]"
    )


def _deformed(x: Array, w: Array, offset: Array, mask: Array, stride: int, pad: int, groups: int, parts: int) -> Array:
    """The definition: each element of a window is read where its offset moves it, between four neighbours."""
    batch, channels, *dims = x.shape
    filters, each, *kernel = w.shape
    out = offset.shape[2:]
    moved = offset.reshape(batch, parts, *kernel, 2, *out)
    weights = mask.reshape(batch, parts, *kernel, *out)
    result = np.zeros((batch, filters, *out))
    for n, f, c, i, j, p, q in product(*map(range, (batch, filters, each, *kernel, *out))):
        channel = f // (filters // groups) * each + c
        part = channel // (channels // parts)
        at = np.array([p * stride - pad + i, q * stride - pad + j]) + moved[n, part, i, j, :, p, q]
        low = np.floor(at).astype(int)
        value = 0.0
        for corner in product((0, 1), repeat=2):
            place = low + corner
            if all(0 <= v < e for v, e in zip(place, dims, strict=True)):
                value += x[n, channel, *place] * np.prod(1 - np.abs(at - place))
        result[n, f, p, q] += w[f, c, i, j] * value * weights[n, part, i, j, p, q]
    return result


@pytest.mark.parametrize(("groups", "parts"), [(1, 1), (2, 1), (1, 2), (2, 4)])
def test_a_deformed_convolution(groups: int, parts: int) -> None:
    x, w = RNG.standard_normal((2, 4, 4, 3)), RNG.standard_normal((4, 4 // groups, 3, 2))
    offset, mask = RNG.normal(0, 2, (2, parts * 12, 3, 3)), RNG.uniform(0, 1, (2, parts * 6, 3, 3))
    operator = node("DeformConv", "x w o b m", "y", strides=[2, 2], pads=[2, 2, 2, 2], group=groups, offset_group=parts)
    _, (y,) = _compiled(operator, {"x": x, "w": w, "o": offset, "b": np.ones(4), "m": mask})
    np.testing.assert_allclose(y, _deformed(x, w, offset, mask, 2, 2, groups, parts) + 1, rtol=1e-12, atol=1e-12)


def test_deformed_convolutions_that_are_refused() -> None:
    inputs = {"x": _floats(1, 4, 6, 5), "w": _floats(4, 4, 3, 3), "o": _floats(1, 18, 4, 3)}
    refused(node("DeformConv", "x w o", "y", group=3), inputs, "group 3, .*; accepted: groups that divide")
    refused(node("DeformConv", "x w o", "y", offset_group=2), inputs, r"offset of shape .*; accepted: \(1, 36, 4, 3\)")
    refused(node("DeformConv", "x w o", "y", kernel_shape=[2, 2]), inputs, r"kernel_shape \[2, 2\] contradicts")
    refused(node("DeformConv", "x w", "y"), inputs, "an input is missing")


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
def test_n_grams(mode: str) -> None:
    operator = node(
        "TfIdfVectorizer", "x", "y", mode=mode, min_gram_length=1, max_gram_length=3, max_skip_count=2,
        pool_int64s=[2, 5, 0, 1, 4, 4, 2, 1, 1, 1, 3, 0, 5, 5, 5], ngram_counts=[0, 3, 9],
        ngram_indexes=[0, 7, 2, 3, 5, 1, 6, 4], weights=[0.5, 2, 3, 1, 1.5, 0.25, 4, 7],
    )  # fmt: skip
    agrees(operator, {"x": RNG.integers(0, 6, (2, 16)).astype(np.int32)})
    agrees(operator, {"x": RNG.integers(0, 6, (16,)).astype(np.int32)})


def test_n_grams_longer_than_a_row() -> None:
    counts: dict[str, Any] = {"min_gram_length": 2, "max_gram_length": 2, "max_skip_count": 3}
    operator = node(
        "TfIdfVectorizer", "x", "y", mode="TF", pool_int64s=[1, 2, 3, 4], ngram_counts=[0, 0],
        ngram_indexes=[0, 1], **counts,
    )  # fmt: skip
    agrees(operator, {"x": np.array([[3], [1]])})
    agrees(operator, {"x": np.array([[3, 4, 4], [1, 3, 2]])})


def test_n_grams_that_are_refused() -> None:
    x = {"x": np.array([[1, 2]])}
    lists: dict[str, Any] = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0}
    lists |= {"pool_int64s": [1, 2], "ngram_counts": [0], "ngram_indexes": [0, 1]}

    def gram(**changed: Any) -> NodeProto:
        return node("TfIdfVectorizer", "x", "y", **(lists | changed))

    refused(gram(), {"x": _floats(2)}, r"an input tensor<2xf32>; accepted: integers")
    refused(gram(pool_strings=["a", "b"]), x, "pool_strings is given; accepted: pool_int64s")
    refused(gram(ngram_indexes=[0]), x, "2 numbers, ngram_counts .*, 1 ngram_indexes")
    refused(gram(ngram_indexes=[1, 1]), x, "a place of its own")
    refused(gram(weights=[1.0]), x, "1 weights; accepted: 2")


def test_mel_weights() -> None:
    numbers = {name: np.array(n) for name, n in (("bins", 8), ("length", 64), ("rate", 8192))}
    edges = {"low": np.array(100, np.float32), "high": np.array(3000, np.float32)}
    operator = node("MelWeightMatrix", "bins length rate low high", "m")
    proto = model([operator, node("MatMul", "x m", "y")], {"x": [3, 33]}, weights=numbers | edges)
    proto.ir_version = 10
    x = _floats(3, 33)
    with treadle.compile(proto, threads=2) as compiled:
        (y,) = compiled(x=x)
    expected = np.asarray(onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})[0])
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_mel_weights_that_are_refused() -> None:
    numbers = {name: np.array(n) for name, n in (("b", 0), ("n", 64), ("r", 8192), ("l", 3.0), ("h", 9.0))}
    message = "0 bins of 64 samples, 8192 a second, from 3.0 to 9.0 Hz; accepted: numbers from 1 upwards"
    refused(node("MelWeightMatrix", "b n r l h", "y"), {}, message, **numbers)


def test_a_scan_of_a_batch() -> None:
    """Of opset 8, one of the inputs read from its end."""
    types = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("s", "a", "b", "t", "u")]
    nodes = [node("Mul", "s a", "p"), node("Add", "p b", "t"), node("Neg", "t", "u")]
    body = helper.make_graph(nodes, "body", types[:3], types[3:])
    operator = node("Scan", "_ s x z", "y rows", body=body, num_scan_inputs=2, directions=[0, 1])
    agrees(operator, {"s": _floats(3, 2), "x": _floats(3, 5, 2), "z": _floats(3, 5, 2)}, None, 8)


def test_scans_of_batches_that_are_refused() -> None:
    def refused_scan(inputs: str, message: str, **shapes: list[int]) -> None:
        body = helper.make_graph([node("Add", "s a", "t")], "body", [], [helper.make_empty_tensor_value_info("t")])
        for name in ("s", "a"):
            body.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]))
        proto = model([node("Scan", inputs, "y", body=body, num_scan_inputs=1)], shapes, opset=8)
        with pytest.raises(TreadleError, match=message):
            import_model(proto.SerializeToString())

    refused_scan("n s x", "sequence_lens is given; accepted: sequences of one length", n=[3], s=[3, 2], x=[3, 5, 2])
    refused_scan("_ s x", r"batches of \[3, 4\] entries; accepted: one number", s=[3, 2], x=[4, 5, 2])
