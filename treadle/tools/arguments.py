"""Shapes on the command line."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.errors import TreadleError

_SHAPE_FORM = "NAME=D0,D1,... with positive whole numbers, such as x=1,3,48,320"


def parse_shapes(arguments: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """`["x=1,3,48,320"]` as `{"x": (1, 3, 48, 320)}`; a name may contain `=`.

    Raises TreadleError for anything else, and for a name given twice.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for argument in arguments:
        name, sign, extents = argument.rpartition("=")
        words = [word.strip() for word in extents.split(",")] if extents.strip() else []
        if not sign or not name or not all(_is_extent(word) for word in words):
            raise TreadleError(f"cannot read the shape {argument!r}", "--shape", _SHAPE_FORM)
        if name in shapes:
            raise TreadleError(f"two shapes for input '{name}'", "--shape", "one shape an input")
        shapes[name] = tuple(int(word) for word in words)
    return shapes


def _is_extent(word: str) -> bool:
    return word.isascii() and word.isdigit() and int(word) > 0
