"""What a GGUF file has: properties, and tensors of which some are quantised in blocks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from treadle.errors import TreadleError
from treadle.support.lazy import lazy_module

if TYPE_CHECKING:
    import gguf
else:  # an extra: `treadle[gguf]`
    gguf = lazy_module("gguf")

Array = NDArray[Any]

ACCEPTED = "a complete GGUF file of version 2 or 3"
BLOCK = 32
"""Weights of a block of Q4_0 and Q8_0, which have one scale."""


@dataclass(frozen=True)
class Packed:
    """A matrix `[N, K]` of few bits, as com.microsoft.MatMulNBits reads it.

    numbers: uint8 `[N, K / 32, 32 * bits / 8]`: without sign, of 4 bits the earlier one in the lower half of a byte
    scales:  float32 `[N, K / 32]`; a weight is the number less 2**(bits - 1), times its scale
    """

    bits: int
    numbers: Array
    scales: Array

    def joined(self, others: list[Packed]) -> Packed:
        """This matrix and others of as many bits, the rows of one behind those of the one before."""
        every = [self, *others]
        return Packed(
            self.bits, np.concatenate([each.numbers for each in every]), np.concatenate([each.scales for each in every])
        )


class GgufFile:
    """A file, whose tensors are mapped."""

    def __init__(self, path: Path):
        """TreadleError for a file that cannot be read, and one that is damaged or of another kind."""
        self.path = path
        try:
            with path.open("rb") as file:
                magic = file.read(4)
        except OSError as error:
            raise TreadleError(f"cannot read: {error.strerror}", path, "the path of a GGUF file") from error
        if magic != b"GGUF":
            raise TreadleError("the file is no GGUF file: it does not begin with GGUF", path, ACCEPTED)
        try:
            self._reader = gguf.GGUFReader(path)
        except ImportError as error:
            raise TreadleError("the library gguf is not installed", path, "pip install treadle[gguf]") from error
        # What the library raises depends on where a file ends, or is damaged.
        except (OSError, ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
            raise TreadleError(f"the file is damaged or truncated: {error}", path, ACCEPTED) from error
        self._tensors = {each.name: each for each in self._reader.tensors}
        self._read = set[str]()

    def property(self, key: str, default: Any = None) -> Any:
        """A property as a number, a text or a list of them; TreadleError for one that is missing and has no default."""
        found = self._reader.fields.get(key)
        if found is not None:
            return found.contents()
        if default is None:
            raise TreadleError(f"the file has no '{key}'", self.path, "a decoder with its hyperparameters")
        return default

    def names(self) -> list[str]:
        """Of the tensors."""
        return list(self._tensors)

    def unread(self) -> list[str]:
        """Names of the tensors that nothing asked for."""
        return [name for name in self._tensors if name not in self._read]

    def rows(self, name: str) -> int:
        """Of a matrix; TreadleError for one that is missing."""
        if name not in self._tensors:
            raise TreadleError(f"the file has no tensor '{name}'", self.path, "a decoder with all of its weights")
        return int(self._tensors[name].shape[-1])

    def tensor(self, name: str, shape: tuple[int, ...]) -> Array | Packed:
        """A tensor of a row-major shape: packed if its blocks are Q4_0 or Q8_0, else as float32.

        TreadleError for one that is missing, of another shape, or of a type that the library does not decode.
        """
        self.rows(name)
        self._read.add(name)
        found, where = self._tensors[name], f"{self.path}, tensor '{name}'"
        if tuple(int(extent) for extent in reversed(found.shape)) != shape:
            own = [int(extent) for extent in reversed(found.shape)]
            raise TreadleError(f"the tensor has the shape {own}", where, f"{list(shape)}, by the file's properties")
        kind, data = found.tensor_type, np.asarray(found.data)
        if kind in (gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q8_0) and len(shape) == 2:
            return _packed(data, shape, 4 if kind == gguf.GGMLQuantizationType.Q4_0 else 8)
        try:
            return gguf.quants.dequantize(data, kind).astype(np.float32).reshape(shape)
        except NotImplementedError as error:
            raise TreadleError(f"elements of type {kind.name}", where, "F32, F16, BF16, Q8_0, Q4_0, ...") from error


def _packed(data: Array, shape: tuple[int, ...], bits: int) -> Packed:
    """Blocks of a scale in float16 and 32 numbers: bytes with sign, or 16 bytes of which the lower halves come first.

    Source: ggml's `block_q4_0` and `block_q8_0` (ggml-common.h)."""
    rows, terms = shape
    blocks = data.reshape(rows, terms // BLOCK, -1)
    scales = blocks[..., :2].copy().view(np.float16)[..., 0].astype(np.float32)
    numbers = blocks[..., 2:]
    if bits == 8:
        return Packed(8, numbers ^ np.uint8(0x80), scales)
    apart = np.concatenate([numbers & 15, numbers >> 4], axis=-1)
    return Packed(4, apart[..., ::2] | apart[..., 1::2] << 4, scales)
