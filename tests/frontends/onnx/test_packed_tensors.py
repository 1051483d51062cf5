"""Tensors of 8 bits and less an element, of which some share a byte: as ONNX's helpers write them, in each field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.frontends.onnx.models import model, node
from tests.frontends.onnx.reference import run
from treadle.errors import TreadleError
from treadle.frontends.onnx import import_model

Array = NDArray[Any]

DTYPES = [
    np.dtype(t)
    for t in (
        ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2, ml_dtypes.float4_e2m1fn,
        ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz,
        ml_dtypes.float8_e8m0fnu,
    )
]  # fmt: skip
SHAPES = [(5,), (3, 3), (8,), (1,), (0,), ()]


def _values(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(1).integers(0, 4, shape).astype(dtype)


def _read(tensor: TensorProto, path: Path | None = None) -> Array:
    """What the importer makes of an initialiser, as floats."""
    proto = model([node("Cast", "w", "y", to=TensorProto.FLOAT)], {}, opset=25)
    proto.graph.initializer.append(tensor)
    if path is None:
        return run(import_model(proto.SerializeToString()), [])[0]
    path.write_bytes(proto.SerializeToString())
    return run(import_model(path), [])[0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_field(dtype: np.dtype[Any], shape: tuple[int, ...], tmp_path: Path) -> None:
    values = _values(dtype, shape)
    number = helper.np_dtype_to_tensor_dtype(dtype)
    raw = numpy_helper.from_array(values, "w")
    assert raw.HasField("raw_data")
    np.testing.assert_array_equal(_read(raw), values.astype(np.float32))
    typed = helper.make_tensor("w", number, shape, values.reshape(-1).astype(np.float32).tolist())
    assert not typed.HasField("raw_data")
    np.testing.assert_array_equal(_read(typed), values.astype(np.float32))
    if values.size:
        external = TensorProto(name="w", data_type=number, dims=shape, data_location=TensorProto.EXTERNAL)
        external.external_data.add(key="location", value="w.bin")
        (tmp_path / "w.bin").write_bytes(raw.raw_data)
        np.testing.assert_array_equal(_read(external, tmp_path / "m.onnx"), values.astype(np.float32))


def test_a_number_of_bytes_that_is_not_that_of_the_shape() -> None:
    tensor = numpy_helper.from_array(_values(DTYPES[0], (5,)), "w")
    tensor.raw_data = tensor.raw_data[:-1]
    with pytest.raises(TreadleError, match=r"a tensor of int4 and shape \(5,\) holds 2 bytes; accepted: 3 bytes"):
        _read(tensor)
    tensor.ClearField("raw_data")
    tensor.int32_data.extend(range(5))
    with pytest.raises(TreadleError, match="holds 5 values in int32_data; accepted: 3 values"):
        _read(tensor)
