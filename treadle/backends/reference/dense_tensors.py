"""Inputs and outputs that hold the elements of a call alone, beside the largest shapes that callers know."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.func import FuncOp

from treadle.backends.program import dense_tensors
from treadle.passes.loop.dense_layout import Part, parts_of

Array = NDArray[Any]

UNSET = 0xFF
"""Every byte of memory where nothing was stored yet: NaN as a float, -1 as an integer."""


class DenseTensors:
    """The `inputs` or `outputs` of @main in a call with some extents, which the last of its arguments are."""

    def __init__(self, main: FuncOp, which: str, shapes: Sequence[Sequence[int]], extents: Sequence[Array]):
        self._extents = [int(extent) for extent in extents]
        numbers, parts = dense_tensors(main, which), parts_of(main, f"{which[:-1]}_extents", shapes)
        self._parts = {n: each for n, each in parts.items() if n in numbers}

    def packed(self, arrays: Sequence[Array]) -> list[Array]:
        """Tensors of the largest shapes, with the elements of the call first where the program has them so."""
        return [self._packed(array, self._parts[n]) if n in self._parts else array for n, array in enumerate(arrays)]

    def spread(self, arrays: Sequence[Array]) -> list[Array]:
        """The opposite."""
        return [self._spread(array, self._parts[n]) if n in self._parts else array for n, array in enumerate(arrays)]

    def _packed(self, array: Array, parts: Sequence[Part]) -> Array:
        result, inside = _unset(array), self._inside(array, parts).reshape(-1)
        result.reshape(-1)[: inside.size] = inside
        return result

    def _spread(self, array: Array, parts: Sequence[Part]) -> Array:
        result = _unset(array)
        inside = self._inside(result, parts)
        inside[...] = array.reshape(-1)[: prod(inside.shape)].reshape(inside.shape)
        return result

    def _inside(self, array: Array, parts: Sequence[Part]) -> Array:
        """What lies within the extents."""
        sizes = [part.bound if part.extent is None else self._extents[part.extent] for part in parts]
        return array.reshape([part.bound for part in parts])[tuple(map(slice, sizes))]


def _unset(array: Array) -> Array:
    """An array like another whose elements were never stored: every byte is 255."""
    return np.full(array.nbytes, UNSET, np.uint8).view(array.dtype).reshape(array.shape)


__all__ = ["UNSET", "DenseTensors"]
