"""Launches of kernels as text: `axpy<<<4, 64>>>(x=f32[256]:in, y=f32[256]:zeros, 2.0, 256)`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.dialects.graph.dtypes import ELEMENT_TYPES, numpy_dtype
from treadle.errors import TreadleError
from treadle.runtime.inputs import number, read_array

Array = NDArray[Any]

FORM = "kernel<<<GRID, BLOCK[, SHARED BYTES]>>>(ARGUMENT, ...)"
ARGUMENTS = "TYPE[EXTENTS], TYPE[EXTENTS]:in, :zeros or :FILE.npy, NAME=ARRAY, the NAME of an array, a number"
FILLS = ("out", "in", "zeros")
_TYPES = {str(type): type for type in ELEMENT_TYPES}
_LAUNCH = re.compile(r"\s*(?P<kernel>\w+)\s*<<<(?P<shape>[^<>]*)>>>\s*\((?P<args>.*)\)\s*;?\s*", re.S)
_ARRAY = re.compile(
    r"(?:(?P<name>[A-Za-z_]\w*)\s*=\s*)?(?P<type>\w+)\[(?P<shape>[\d\s,x]*)\](?::(?P<filled>.+))?", re.S
)
_NAME = re.compile(r"[A-Za-z_]\w*")
_MOST_BYTES = 1 << 32


@dataclass(frozen=True)
class ArrayText:
    """An array of device memory: its elements, and what is in it at first, which is a word of `FILLS` or a file.

    name: under which later launches find it; None: its parameter's
    """

    name: str | None
    type: str
    shape: tuple[int, ...]
    filled: str = "out"


@dataclass(frozen=True)
class LaunchText:
    """A launch; an argument is an array, the name of one of an earlier launch, or a number."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    args: tuple[ArrayText | str | bool | int | float, ...]

    def __str__(self) -> str:
        grid, block = (" x ".join(map(str, extents)) for extents in (self.grid, self.block))
        return f"{self.kernel}: {grid} blocks of {block} threads"


def parse_launch(text: str) -> LaunchText:
    """A launch of the form `FORM`; TreadleError that names what cannot be read."""
    match = _LAUNCH.fullmatch(text)
    if match is None:
        raise TreadleError(f"cannot read {text!r}", "--launch", FORM)
    shape = list(_pieces(match["shape"]))
    if not 2 <= len(shape) <= 3:
        raise TreadleError(f"{len(shape)} values between <<< and >>>", "--launch", FORM)
    grid, block = (_extents(each, word) for each, word in zip(shape, ("a grid", "a block"), strict=False))
    shared = _whole(shape[2], "bytes of shared memory") if len(shape) == 3 else 0
    return LaunchText(match["kernel"], grid, block, shared, tuple(map(_argument, _pieces(match["args"]))))


def _pieces(text: str) -> Iterator[str]:
    """What stands between the commas that are in no brackets."""
    begin = depth = 0
    for n, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            yield text[begin:n].strip()
            begin = n + 1
    if text[begin:].strip() or begin:
        yield text[begin:].strip()


def _whole(text: str, what: str) -> int:
    if not text.isdigit():
        raise TreadleError(f"{text!r} for {what}", "--launch", "a whole number")
    return int(text)


def _extents(text: str, what: str) -> tuple[int, int, int]:
    """One number, or up to three in brackets, as CUDA's `dim3` has them."""
    inner = text.removeprefix("dim3").strip()
    parts = [_whole(each, what) for each in _pieces(inner[1:-1] if inner.startswith(("(", "{")) else inner)]
    if not 1 <= len(parts) <= 3:
        raise TreadleError(f"{text!r} for {what}", "--launch", "a number, or (x, y, z)")
    x, y, z = (*parts, 1, 1)[:3]
    return x, y, z


def _argument(text: str) -> ArrayText | str | bool | int | float:
    match = _ARRAY.fullmatch(text)
    if match is not None:
        return _array(match, text)
    value = number(re.sub(r"(?<=[\d.])[fFuUlL]+$", "", text))
    if value is not None:
        return value
    if _NAME.fullmatch(text):
        return text
    raise TreadleError(f"cannot read the argument {text!r}", "--launch", ARGUMENTS)


def _array(match: re.Match[str], text: str) -> ArrayText:
    if match["type"] not in _TYPES:
        raise TreadleError(f"unknown type '{match['type']}' in {text!r}", "--launch", _TYPES)
    extents = [each for each in re.split(r"[\s,x]+", match["shape"].strip()) if each]
    shape = tuple(map(int, extents))
    bytes = prod(shape) * numpy_dtype(_TYPES[match["type"]]).itemsize
    if not shape or not 0 < bytes <= _MOST_BYTES:
        raise TreadleError(f"{text!r} has {bytes} bytes", "--launch", f"1 to {_MOST_BYTES}")
    filled = (match["filled"] or "out").strip()
    if filled not in FILLS and not filled.endswith(".npy"):
        raise TreadleError(f"unknown contents '{filled}' in {text!r}", "--launch", [*FILLS, "a file FILE.npy"])
    return ArrayText(match["name"], match["type"], shape, filled)


def made(array: ArrayText, random: np.random.Generator, unwritten: int) -> Array:
    """Device memory with its contents: normally distributed floats, integers from 0 to 99, or what a file has.

    unwritten: each 16 bits of what nobody has written. TreadleError for a file of another shape or type.
    """
    dtype = numpy_dtype(_TYPES[array.type])
    if array.filled.endswith(".npy"):
        return _read(array.filled, array, dtype)
    if array.filled == "zeros":
        return np.zeros(array.shape, dtype)
    if array.filled == "out":
        return np.frombuffer(unwritten_bytes(array, dtype, unwritten), dtype).reshape(array.shape)
    if dtype.kind in "iub":
        return random.integers(0, 2 if dtype.kind == "b" else 100, array.shape).astype(dtype)
    return random.standard_normal(array.shape).astype(dtype)


def unwritten_bytes(array: ArrayText, dtype: np.dtype[Any], unwritten: int) -> bytearray:
    """The bytes of memory that nobody has written."""
    count = prod(array.shape) * dtype.itemsize
    return bytearray((unwritten.to_bytes(2, "little") * (count // 2 + 1))[:count])


def _read(path: str, array: ArrayText, dtype: np.dtype[Any]) -> Array:
    found = read_array(path, "an array that numpy.save wrote")
    if found.shape != array.shape or found.dtype.itemsize != dtype.itemsize:
        message = f"it has {found.dtype} of shape {list(found.shape)}"
        raise TreadleError(message, path, f"{dtype} of shape {list(array.shape)}")
    return np.ascontiguousarray(found).view(dtype).copy()
