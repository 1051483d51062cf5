"""The shapes that a caller gives for a model's dynamic dimensions, as plain values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import cast

from treadle.errors import TreadleError


@dataclass(frozen=True)
class Dim:
    """A dimension that a compiled model takes in a range of extents: from `lower` to `upper`, both included, multiples
    of `multiple`. Dimensions of one name have the same extent in every call.

    ```python
    treadle.compile("m.onnx", shapes={"x": (treadle.Dim("n", 1, 64), 3, 48, treadle.Dim("w", 32, 2048, multiple=32))})
    ```
    TreadleError for a name that is no identifier, and for a range without a multiple in it.
    """

    name: str
    lower: int
    upper: int
    multiple: int = 1

    def __post_init__(self) -> None:
        where = f"dimension '{self.name}'"
        if not self.name.isidentifier() or not self.name.isascii():
            raise TreadleError(f"{self.name!r} is no name of a dimension", "shapes", "letters, digits and '_'")
        if self.lower < 0 or self.multiple < 1 or self.upper > LARGEST:
            message = f"extents {self.lower} to {self.upper}, multiples of {self.multiple}"
            raise TreadleError(message, where, f"numbers from 0 to {LARGEST}, multiples from 1 on")
        if self.least > self.greatest:
            message = f"no multiple of {self.multiple} is in {self.lower} to {self.upper}"
            raise TreadleError(message, where, "a range that is not empty")

    @property
    def least(self) -> int:
        """The smallest extent."""
        return -(-self.lower // self.multiple) * self.multiple

    @property
    def greatest(self) -> int:
        """The largest extent."""
        return self.upper // self.multiple * self.multiple

    def __contains__(self, extent: int) -> bool:
        return self.least <= extent <= self.greatest and extent % self.multiple == 0

    def __str__(self) -> str:
        step = f":{self.multiple}" if self.multiple > 1 else ""
        return f"{self.name}:{self.lower}..{self.upper}{step}"


LARGEST = (1 << 31) - 1
_RANGE = re.compile(
    r"(?:(?P<name>[A-Za-z_]\w*):)?(?P<lower>\d{1,10})\.\.(?P<upper>\d{1,10})(?::(?P<multiple>\d{1,10}))?", re.ASCII
)


def parse_dim(text: str, name: str | None = None) -> Dim:
    """The dimension that a text such as `w:32..2048:32` means, which may leave out its name if that is given.

    TreadleError for any other text.
    """
    found = _RANGE.fullmatch(text)
    name = None if found is None else found["name"] or name
    if found is None or name is None:
        raise TreadleError(
            f"cannot read the dimension {text!r}", "shapes", "NAME:LOWER..UPPER or NAME:LOWER..UPPER:STEP"
        )
    return Dim(name, int(found["lower"]), int(found["upper"]), int(found["multiple"] or 1))


Shapes = Mapping[str, Sequence[int | Dim | str] | int | Dim | str]
"""By the name of an input its shape, or by the name of a dynamic dimension its extent: `{"x": (2, 3), "batch": 2}`. A
`Dim` stands for an extent that changes from call to call, a text for one that is computed of such: `"past + new"`."""

_FORM = 'a dict such as {"x": (1, 3, 48, 320)}, {"batch": 1} or {"batch": treadle.Dim("batch", 1, 8)}'


def normalized(shapes: object) -> dict[str, tuple[int | Dim | str, ...]]:
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


def _extents(name: str, given: object) -> tuple[int | Dim | str, ...]:
    where = f"shapes['{name}']"
    try:
        listed: Sequence[object] = given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)  # pyright: ignore
        extents = tuple(e if isinstance(e, Dim | str) else index(e) for e in listed)  # pyright: ignore
    except TypeError:
        raise TreadleError(
            f"{given!r} is no shape", where, "whole numbers, treadle.Dim or expressions, or one of them"
        ) from None
    if any(isinstance(extent, int) and extent < 0 for extent in extents):
        raise TreadleError(f"{given!r} has a negative extent", where, "extents from 0 upwards")
    return extents
