"""The shapes that a caller gives for a model's dynamic dimensions, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import cast

from treadle.errors import TreadleError

Shapes = Mapping[str, Sequence[int] | int]
"""By the name of an input its shape, or by the name of a dynamic dimension its extent: `{"x": (2, 3), "batch": 2}`."""

_FORM = 'a dict such as {"x": (1, 3, 48, 320)} or {"batch": 1}'


def normalized(shapes: object) -> dict[str, tuple[int, ...]]:
    """The shapes as tuples, an extent as a tuple of one. TreadleError for what is no `Shapes`."""
    if shapes is None:
        return {}
    if not isinstance(shapes, Mapping):
        raise TreadleError(f"shapes is a {type(shapes).__name__}", "shapes", _FORM)
    entries = cast("Mapping[object, object]", shapes)
    return {_name(name): _extents(str(name), given) for name, given in entries.items()}


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise TreadleError(f"{name!r} is no name of an input or a dimension", "shapes", _FORM)
    return name


def _extents(name: str, given: object) -> tuple[int, ...]:
    where = f"shapes['{name}']"
    try:
        extents = tuple(index(extent) for extent in given) if isinstance(given, Sequence) else (index(given),)  # pyright: ignore
    except TypeError:
        raise TreadleError(f"{given!r} is no shape", where, "whole numbers, or one") from None
    if any(extent < 0 for extent in extents):
        raise TreadleError(f"{given!r} has a negative extent", where, "extents from 0 upwards")
    return extents
