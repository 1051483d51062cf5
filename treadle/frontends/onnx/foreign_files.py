"""What a file is that is no ONNX model, by its first bytes."""

from __future__ import annotations

from pathlib import PurePath

from treadle.errors import TreadleError

MODELS = "a complete .onnx file"
_BINARY: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"\x89HDF", "an HDF5 file, as Keras writes them", "what tf2onnx writes"),
    (4, b"TFL3", "a TensorFlow Lite model", "what tf2onnx writes"),
    (0, b"ORTM", "a model in ONNX Runtime's own format", MODELS),
    (4, b"ORTM", "a model in ONNX Runtime's own format", MODELS),
    (0, b"GGUF", "a GGUF file", MODELS),
    (0, b"\x1f\x8b", "a gzip file", "the .onnx file in it"),
    (0, b"\x7fELF", "a program or a library", MODELS),
    (0, b"version https://git-lfs", "a pointer of Git LFS, not the model", "the file that `git lfs pull` fetches"),
)
"""Offset, bytes, what such a file is, and what is accepted in its place."""
_CUDA = ("CUDA text, which Treadle prints and does not read", MODELS)
_IR = ("MLIR text", f"{MODELS}; `treadle-opt` and `treadle compile` read .mlir files")
_SHOWN = 4096
_KEY_OF_VERSION = b"\x08"


def refuse_foreign_file(data: bytes, name: str) -> None:
    """TreadleError that says what a file is, where that is known and no model."""
    found = _foreign(data, name)
    if found is not None:
        what, accepted = found
        raise TreadleError(f"the file is no ONNX model but {what}", name, accepted)


def _foreign(data: bytes, name: str) -> tuple[str, str] | None:
    if not data:
        return "empty", MODELS
    for offset, magic, what, accepted in _BINARY:
        if data.startswith(magic, offset):
            return what, accepted
    # A model has a version of its IR, whose key is no character of a text.
    text = None if _KEY_OF_VERSION in data else _text(data[:_SHOWN])
    if text is None:
        return None
    if PurePath(name).suffix in (".cu", ".cuh") or "__global__" in text:
        return _CUDA
    if PurePath(name).suffix == ".mlir" or "func.func" in text:
        return _IR
    if text.lstrip()[:14].lower().startswith(("<!doctype html", "<html")):
        return "a web page", MODELS
    return "text", MODELS


def _text(data: bytes) -> str | None:
    """The beginning of a file as text; None where it has bytes that texts have not."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if error.end < len(data) - 3 or error.reason != "unexpected end of data":
            return None
        text = data[: error.start].decode()
    return text if all(character.isprintable() or character.isspace() for character in text) else None


__all__ = ["refuse_foreign_file"]
