"""Calls of a model that is compiled for ranges: the corners and some points between, and inputs for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.manifest import Tensor
from treadle.shapes import Dim
from treadle.tools.model_inputs import complete

Array = NDArray[Any]
Values = Mapping[str, int]
_ALL_CORNERS = 3
"""Symbols up to which all corners are taken: of more, those where all are least or greatest, or one alone is."""
_BETWEEN = 2


def points_of(symbols: Sequence[Dim], seed: int) -> list[Values]:
    """The corners of the range and two points in it that are drawn, each once, by the symbols' values."""
    random = Random(seed)
    ends = [(dim.least, dim.greatest) for dim in symbols]
    corners: Iterable[tuple[int, ...]] = product(*ends)
    if len(ends) > _ALL_CORNERS:
        corners = [each for each in product(*ends) if _is_outer(each, ends)]
    drawn = [
        tuple(random.randrange(dim.least, dim.greatest + 1, dim.multiple) for dim in symbols) for _ in range(_BETWEEN)
    ]
    names = [dim.name for dim in symbols]
    return [dict(zip(names, point, strict=True)) for point in dict.fromkeys([*corners, *drawn])]


def inputs_at(tensors: Sequence[Tensor], values: Values, given: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """Inputs of a call: the given ones, cut or repeated along each dimension that has another extent there, so that
    their elements stay valid ones; seeded random ones for the rest."""
    here = [replace(each, shape=_shape(each, values), extents=()) for each in tensors]
    fitted = {each.name: _fitted(given[each.name], each.shape) for each in here if each.name in given}
    return complete(here, fitted, seed)


def _is_outer(corner: Sequence[int], ends: Sequence[tuple[int, int]]) -> bool:
    greatest = sum(value == end for value, (_, end) in zip(corner, ends, strict=True))
    return min(greatest, len(ends) - greatest) < 2


def _shape(tensor: Tensor, values: Values) -> tuple[int, ...]:
    return tuple(values[text] if text in values else int(text) for text in tensor.extents or map(str, tensor.shape))


def _fitted(array: Array, shape: tuple[int, ...]) -> Array:
    if array.shape == shape or array.ndim != len(shape) or 0 in array.shape:
        return array
    return np.ascontiguousarray(
        array[np.ix_(*(np.arange(to) % own for to, own in zip(shape, array.shape, strict=True)))]
    )


__all__ = ["Values", "inputs_at", "points_of"]
