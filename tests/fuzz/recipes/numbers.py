"""Shape arithmetic: numbers that are computed from extents, through integers, floats, comparisons and tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.fuzz.draw import Draw, Undrawable

_AXES_AS_INPUT = 13
_REDUCED_BY_INPUT = 18
_MOST = 10**6
"""Magnitude of a number: none overflows, and float32 holds each exactly."""


@dataclass
class Numbers:
    """Scalars of int64 that depend on extents alone; `exact` are all tensors on the way to them, whose nodes are
    evaluated in their declared types, without any tolerance."""

    draw: Draw
    data: Sequence[str]
    """The inputs whose extents change."""
    scalars: list[str] = field(default_factory=list[str])
    exact: set[str] = field(default_factory=set[str])

    def node(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Appends a node of shape arithmetic and gives its result's name; Undrawable if it is none."""
        self.draw.node(operator, inputs, **attributes)
        name = self.draw.nodes[-1].output[0]
        value = self.draw.array(name)
        if value.dtype.kind in "iuf" and value.size and not np.abs(value.astype(np.float64)).max() <= _MOST:
            self.draw.nodes.pop()
            raise Undrawable("a number that is too large")
        self.exact.add(name)
        return name

    def scalar(self, operator: str, inputs: Sequence[str], **attributes: Any) -> None:
        """Appends a node whose result is a number."""
        self.scalars.append(self.node(operator, inputs, **attributes))

    def any(self) -> str:
        """One of the numbers, rather a late one."""
        if not self.scalars:
            raise Undrawable("no numbers")
        count = len(self.scalars)
        return self.scalars[max(self.draw.random.randrange(count) for _ in range(2))]

    def known(self, *values: int) -> str:
        """A constant number, one of the values."""
        return self.draw.constant(np.array(self.draw.choice(values), np.int64))

    def row(self, name: str) -> str:
        """A scalar as a tensor of one element."""
        if self.draw.opset < _AXES_AS_INPUT:
            return self.node("Unsqueeze", [name], axes=[0])
        return self.node("Unsqueeze", [name, self.draw.longs([0])])

    def rows(self, names: Sequence[str]) -> str:
        """Scalars as a tensor."""
        parts = [self.row(name) for name in names]
        return parts[0] if len(parts) == 1 else self.node("Concat", parts, axis=0)

    def value(self, name: str) -> int:
        return int(self.draw.array(name))


def _extent(d: Numbers) -> None:
    """An extent of an input, as exporters read it."""
    name = d.draw.choice(d.data)
    rank = d.draw.array(name).ndim
    axis = d.draw.between(0, rank - 1)
    if d.draw.chance(0.3) and d.draw.opset >= 15:
        part = d.node("Shape", [name], start=axis, end=axis + 1)
        d.scalar("Reshape", [part, d.draw.longs([])])
        return
    shape = d.node("Shape", [name])
    index = d.draw.choice((axis, axis - rank))
    if d.draw.chance(0.7):
        d.scalar("Gather", [shape, d.draw.constant(np.array(index, np.int64))], axis=0)
        return
    part = d.node("Slice", [shape, d.draw.longs([axis]), d.draw.longs([axis + 1])])
    d.scalar("Squeeze", [part])


def _of_all_extents(d: Numbers) -> None:
    name = d.draw.choice(d.data)
    operator = d.draw.choice(("Size", "ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin"))
    if operator == "Size":
        d.scalar("Size", [name])
        return
    d.scalar(operator, [d.node("Shape", [name])], keepdims=0)


def _pair(d: Numbers) -> list[str]:
    """A number and another one, which may be a constant, in any order."""
    other = d.known(1, 1, 2, 2, 3, 4, 5, 7, 8, 10, 16, 20, -1, -2, -3) if d.draw.chance(0.75) else d.any()
    names = [d.any(), other]
    d.draw.random.shuffle(names)
    return names


def _binary(operator: str) -> Callable[[Numbers], None]:
    return lambda d: d.scalar(operator, _pair(d))


def _divided(operator: str) -> Callable[[Numbers], None]:
    """By a constant, which is not 0; of Mod also the remainder of C."""

    def recipe(d: Numbers) -> None:
        divisor = d.known(2, 2, 3, 4, 8, -2, -3)
        more = {"fmod": d.draw.choice((None, 1))} if operator == "Mod" else {}
        d.scalar(operator, [d.any(), divisor], **more)

    return recipe


def _one(operator: str) -> Callable[[Numbers], None]:
    return lambda d: d.scalar(operator, [d.any()])


def _through_floats(d: Numbers) -> None:
    """As scales of a resize, or `math.sqrt` and `math.ceil` in a model's code, are exported."""
    to = d.draw.choice((TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.DOUBLE))
    wide = d.node("Cast", [d.any()], to=to)
    dtype = d.draw.array(wide).dtype
    operator = d.draw.choice(("Mul", "Mul", "Div", "Div", "Sqrt", "Add"))
    if operator == "Sqrt":
        result = d.node("Sqrt", [d.node("Abs", [wide])])
    else:
        factor = d.draw.choice((0.5, 0.25, 1.5, 2.0, 4.0, 0.1, 1 / 3))
        result = d.node(operator, [wide, d.draw.constant(np.array(factor, dtype))])
    rounded = d.draw.choice((None, "Floor", "Ceil", "Round"))
    result = d.node(rounded, [result]) if rounded else result
    d.scalar("Cast", [result], to=TensorProto.INT64)


def _through_int32(d: Numbers) -> None:
    narrow = d.node("Cast", [d.any()], to=TensorProto.INT32)
    amount = d.draw.constant(np.array(d.draw.choice((1, 2, 3, -2)), np.int32))
    result = d.node(d.draw.choice(("Add", "Sub", "Mul", "Div")), [narrow, amount])
    d.scalar("Cast", [result], to=TensorProto.INT64)


def _chosen(d: Numbers) -> None:
    """One of two numbers, by a comparison."""
    test = d.node(d.draw.choice(("Less", "Greater", "Equal")), _pair(d))
    d.scalar("Where", [test, d.any(), d.known(0, 1, 3, 5, 8)])


def _of_table(d: Numbers) -> None:
    """A number out of a table of integers, at a position that is one, too."""
    index = d.any()
    table = d.draw.rng.integers(-3, 12, max(d.value(index), 0) + d.draw.between(1, 4))
    d.scalar("Gather", [d.draw.longs(list(map(int, table))), index], axis=0)


def _clipped(d: Numbers) -> None:
    low, high = sorted((d.draw.between(-2, 6), d.draw.between(0, 15)))
    bounds = [d.draw.constant(np.array(bound, np.int64)) for bound in (low, high)]
    if d.draw.opset < 12:
        raise Undrawable("floats only")
    d.scalar("Clip", [d.any(), *bounds])


NUMBERS: Sequence[Callable[[Numbers], None]] = (
    _extent, _extent, _extent, _of_all_extents,
    _binary("Add"), _binary("Sub"), _binary("Sub"), _binary("Mul"), _binary("Min"), _binary("Max"),
    _divided("Div"), _divided("Div"), _divided("Mod"), _one("Neg"), _one("Abs"),
    _through_floats, _through_floats, _through_int32, _chosen, _of_table, _clipped,
)  # fmt: skip

__all__ = ["NUMBERS", "Numbers"]
