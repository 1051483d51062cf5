"""Results of a module's @main without what lies beyond extents that depend on data (docs/adr/0047)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray
from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.dialects.func import FuncOp

from treadle.backends.reference.bounded import Bounded
from treadle.dynamic_shapes import OutputExtents
from treadle.manifest import Tensor

Array = NDArray[Any]


def within_extents(main: FuncOp, results: Sequence[Array]) -> list[Array]:
    """The results but the last ones, which are the extents, each cut to its own.

    A module without such extents has its results as they are.
    """
    found = texts(main.attributes.get("found"))
    if not found:
        return list(results)
    count = len(results) - len(found)
    values = {name: int(array.item()) for name, array in zip(found, results[count:], strict=True)}
    given = main.attributes["output_extents"]
    assert isinstance(given, ArrayAttr)
    pairs = zip(given.data[:count], results[:count], strict=True)
    return [_cropped(texts(extents), array, values) for extents, array in pairs]


def bounded_within_extents(main: FuncOp, results: Sequence[Bounded]) -> list[Bounded]:
    """As `within_extents`, of values with limits; the extents are taken as they are."""
    if not texts(main.attributes.get("found")):
        return list(results)
    values = within_extents(main, [each.value for each in results])
    count = len(values)
    numbers = [each.value for each in results[count:]]
    errors = within_extents(main, [*(each.full_error for each in results[:count]), *numbers])
    return [Bounded(value, error) for value, error in zip(values, errors, strict=True)]


def _cropped(extents: Sequence[str], array: Array, values: Mapping[str, int]) -> Array:
    tensor = Tensor("", array.shape, array.dtype.name, tuple(extents))
    return OutputExtents(tensor, list(values)).cropped(array, values)


def texts(attribute: object) -> tuple[str, ...]:
    """The strings of an attribute that lists some; none without it."""
    listed = attribute.data if isinstance(attribute, ArrayAttr) else ()
    return tuple(each.data for each in listed if isinstance(each, StringAttr))


__all__ = ["bounded_within_extents", "texts", "within_extents"]
