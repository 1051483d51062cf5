"""Files that are no models: the error says what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.onnx_models import linear_model
from treadle.errors import TreadleError
from treadle.frontends.onnx.loader import load_model

KERNEL = (
    """extern "C" __global__ void add(const float *x, float *y) { y[threadIdx.x] = x[threadIdx.x] + 1; } // \u00b5s\n"""
)
FILES = {
    "k.cu": (KERNEL.encode(), "CUDA text, which Treadle prints and does not read; accepted: a complete .onnx file"),
    "k.txt": (KERNEL.encode() * 200, "CUDA text"),
    "m.mlir": (b"func.func @main() { func.return }", "MLIR text; accepted: a complete .onnx file; `treadle-opt`"),
    "notes.onnx": (b"to do\n", "text; accepted"),
    "page.onnx": (b"<!DOCTYPE html><html></html>", "a web page"),
    "pointer.onnx": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a pointer of Git LFS"),
    "keras.h5": (b"\x89HDF\r\n\x1a\n" + bytes(100), "an HDF5 file"),
    "lite.tflite": (b"\x1c\0\0\0TFL3" + bytes(100), "a TensorFlow Lite model"),
    "runtime.ort": (b"\x08\0\0\0ORTM" + bytes(100), "a model in ONNX Runtime's own format"),
    "empty.onnx": (b"", "empty; accepted: a complete .onnx file"),
}


@pytest.mark.parametrize("name", FILES)
def test_what_it_is_is_said(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    content, says = FILES[name]
    path.write_bytes(content)
    with pytest.raises(TreadleError) as error:
        load_model(path)
    assert str(error.value).startswith(f"{path}: the file is no ONNX model but {says}")


@pytest.mark.parametrize("name", ["m.cu", "m.mlir", "m.bin"])
def test_a_model_by_any_name_is_a_model(name: str, tmp_path: Path) -> None:
    assert load_model(linear_model(tmp_path / name)).proto.graph.node


def test_other_bytes_are_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\xff\xfe\xfd" * 50)
    with pytest.raises(TreadleError, match="150 bytes are no ONNX model: the file is corrupt or truncated"):
        load_model(path)
