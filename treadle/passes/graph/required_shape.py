"""How much of a tensor the calls of a range need, by the values of @main's extents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.dialects.func import FuncOp

from treadle.dialects.graph import RequiredAttr
from treadle.passes.graph.graph_required_regions import unknown_extent
from treadle.shapes.dim import parse_dim
from treadle.shapes.dynamic import ExtentExpression

SYMBOLS = "symbols"
"""The attribute of @main that has the ranges."""


def needed_shape(shape: Sequence[int], required: RequiredAttr, extents: Sequence[int]) -> tuple[int, ...]:
    """How many indices of each dimension are required where the extents have these values.

    Constraints on several dimensions at once are left out: they need more elements than there are counted.
    TreadleError for one on an extent that has no value.
    """
    unknown = [constraint for constraint in required.data if constraint.extent >= len(extents)]
    if unknown:
        raise unknown_extent(unknown[0].extent, len(extents))
    found: list[int] = []
    for d, extent in enumerate(shape):
        inside = np.ones(extent, np.bool_)
        for constraint in required.data:
            if {str(v) for v in constraint.index.vars()} == {f"d{d}"}:
                indices: Any = np.arange(extent)
                inside &= constraint.index.evaluate({f"d{d}": indices}) < extents[constraint.extent]
        found.append(max(1, int(inside.sum())))
    return tuple(found)


def least_extents(main: FuncOp) -> tuple[int, ...]:
    """The values of @main's extents where every symbol has its least value."""
    least = {dim.name: dim.least for dim in map(parse_dim, range_texts(main, SYMBOLS))}
    return tuple(ExtentExpression(text, list(least)).value(least) for text in range_texts(main, "extents"))


def range_texts(main: FuncOp, name: str) -> list[str]:
    """The texts that an attribute of @main lists; none without it."""
    given = main.attributes.get(name)
    texts = given.data if isinstance(given, ArrayAttr) else ()
    return [each.data for each in texts if isinstance(each, StringAttr)]


__all__ = ["SYMBOLS", "least_extents", "needed_shape", "range_texts"]
