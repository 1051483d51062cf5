"""Buffers of a program as plain values; importing it costs nothing, so that running a model needs no compiler."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from operator import le
from typing import Any

import numpy as np

from treadle.manifest import BufferKind


@dataclass(frozen=True)
class BufferRef:
    """A kernel's argument: the `index`-th input, output or constant, or the arena or the zeroed memory from byte
    `index` on."""

    kind: BufferKind
    index: int


@dataclass(frozen=True)
class TensorSpec:
    """What an input must be, and what an output is: its name in the model, its shape, its element type; `dense` where
    a call may have a smaller shape, whose elements lie one after another."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    dense: bool = False

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether a call may have this shape."""
        if shape == self.shape or not self.dense:
            return shape == self.shape
        return len(shape) == len(self.shape) and all(map(le, shape, self.shape))

    @property
    def num_bytes(self) -> int:
        """Size of the tensor, row-major and without padding."""
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


__all__ = ["BufferKind", "BufferRef", "TensorSpec"]
