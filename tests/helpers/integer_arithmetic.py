"""What every operation on integers gives, on Python's unbounded integers, and random expressions of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, isnan, nan, trunc
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph
from treadle.dialects.graph import BinaryOp, CastOp, UnaryOp, WhereOp
from treadle.dialects.graph.dtypes import element_type

Array = NDArray[Any]

SIGNED = tuple(np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64))
UNSIGNED = tuple(np.dtype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64))
INTEGERS = (*SIGNED, *UNSIGNED)
BOOL = np.dtype(np.bool_)
FLOATS = tuple(np.dtype(t) for t in (np.float32, np.float64))
LIMITS = (
    0.5, -0.9, 127.5, -128.5, 255.5, 2**15 - 0.5, -(2**15) - 0.5, 2**16 - 0.5, 2**31, -(2**31), 2**32, 2.0**63,
    -(2.0**63), 2.0**64, 1e30, -1e30,
)  # fmt: skip


def _quotient(a: int, b: int) -> int:
    if b == 0:
        return 0
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _quotient,
    "mod": lambda a, b: 0 if b == 0 else a - b * _quotient(a, b),
    "max": max,
    "min": min,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
"""By the kind of `graph.binary`, before the result wraps."""
COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
UNARY: Mapping[str, Callable[[int], int]] = {
    "neg": lambda a: -a,
    "abs": abs,
    "sign": lambda a: (a > 0) - (a < 0),
    "relu": lambda a: max(a, 0),
}


def wrapped(value: int, dtype: np.dtype[Any]) -> int:
    """The number of `dtype` that equals `value` modulo two to the power of its bits."""
    limits = np.iinfo(dtype)
    return (value - int(limits.min)) % (int(limits.max) - int(limits.min) + 1) + int(limits.min)


def extremes(dtype: np.dtype[Any]) -> list[int]:
    """The limits of an integer type and small, odd and prime numbers of both signs."""
    limits = np.iinfo(dtype)
    most = int(limits.max)
    if limits.min == 0:
        return [0, 1, 2, 3, 7, 97, 101, most // 3, most // 2, most // 2 + 1, most - 100, most - 6, most - 1, most]
    return [-most - 1, -most, -most // 2 - 1, -101, -7, -2, -1, 0, 1, 2, 3, 7, 97, most // 3, most - 1, most]


def array(values: list[Any], dtype: np.dtype[Any]) -> Array:
    """Python's numbers, each of which fits, as an array."""
    return np.array(values, dtype)


def binary(kind: str, a: Array, b: Array) -> Array:
    """`graph.binary` of integers or bools."""
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    if kind in COMPARISONS:
        return array([COMPARISONS[kind](x, y) for x, y in pairs], BOOL)
    values = [ARITHMETIC[kind](x, y) for x, y in pairs]
    return array([wrapped(v, a.dtype) if a.dtype != BOOL else bool(v) for v in values], a.dtype)


def unary(kind: str, a: Array) -> Array:
    """`graph.unary` of integers, or `not` of bools."""
    if a.dtype == BOOL:
        return ~a
    return array([wrapped(UNARY[kind](v), a.dtype) for v in a.tolist()], a.dtype)


def converted(a: Array, dtype: np.dtype[Any]) -> Array:
    """`graph.cast` between bools, integers and floats."""
    if dtype == BOOL or dtype.kind == "f":
        return a.astype(dtype)
    if a.dtype.kind != "f":
        return array([wrapped(int(v), dtype) for v in a.tolist()], dtype)
    limits = np.iinfo(dtype)
    lowest, highest = int(limits.min), int(limits.max)

    def whole(x: float) -> int:
        if isnan(x):
            return 0
        if abs(x) == inf:
            return highest if x > 0 else lowest
        return min(max(trunc(x), lowest), highest)

    return array([whole(float(x)) for x in a], dtype)


@dataclass
class Node:
    """A value of a graph, and what it must be."""

    value: SSAValue
    expected: Array


class Expressions:
    """Random expressions over inputs of all integer types, bool and two float types."""

    def __init__(self, seed: int, points: int):
        self._choose = Random(seed)
        rng = np.random.default_rng(seed)
        self.inputs: list[Array] = [
            rng.choice(array(extremes(dtype), dtype), points) for dtype in INTEGERS for _ in range(2)
        ]
        self.inputs += [rng.random(points) < 0.5 for _ in range(2)]
        for dtype in FLOATS:
            self.inputs.append(rng.choice([*LIMITS, inf, -inf, nan, 0.0, 3.25, -7.75], points).astype(dtype))
        self.graph = Graph(*self.inputs)
        self._leaves = [Node(self.graph[n], x) for n, x in enumerate(self.inputs)]

    def draw(self, dtype: np.dtype[Any], depth: int) -> Node:
        """An expression of a type."""
        if depth == 0 or self._choose.random() < 0.05:
            return self._choose.choice([leaf for leaf in self._leaves if leaf.expected.dtype == dtype])
        if dtype.kind == "f":
            source = self._choose.choice([*INTEGERS, BOOL, *(t for t in FLOATS if t != dtype)])
            return self.cast(self.draw(source, depth - 1), dtype)
        kinds = ["binary"] * 5 + ["unary", "cast", "where", "square"]
        return getattr(self, f"_{self._choose.choice(kinds)}")(dtype, depth - 1)

    def cast(self, x: Node, dtype: np.dtype[Any]) -> Node:
        """A conversion to another type."""
        op = CastOp(x.value, element_type(dtype))
        with np.errstate(all="ignore"):
            return Node(self.graph.add(op), converted(x.expected, dtype))

    def _binary(self, dtype: np.dtype[Any], depth: int) -> Node:
        if dtype != BOOL:
            return self._of(self._choose.choice(list(ARITHMETIC)), self.draw(dtype, depth), self.draw(dtype, depth))
        inner = self._choose.choice([*INTEGERS, BOOL])
        kinds = list(COMPARISONS) if inner != BOOL else ["and", "or", "xor", "eq", "ne"]
        return self._of(self._choose.choice(kinds), self.draw(inner, depth), self.draw(inner, depth))

    def _square(self, dtype: np.dtype[Any], depth: int) -> Node:
        x = self.draw(dtype, depth)
        return self._of("and" if dtype == BOOL else self._choose.choice(["add", "mul", "sub"]), x, x)

    def _of(self, kind: str, a: Node, b: Node) -> Node:
        return Node(self.graph.add(BinaryOp(kind, a.value, b.value)), binary(kind, a.expected, b.expected))

    def _unary(self, dtype: np.dtype[Any], depth: int) -> Node:
        x, kind = self.draw(dtype, depth), "not" if dtype == BOOL else self._choose.choice(list(UNARY))
        return Node(self.graph.add(UnaryOp(kind, x.value)), unary(kind, x.expected))

    def _cast(self, dtype: np.dtype[Any], depth: int) -> Node:
        source = self._choose.choice([t for t in (*INTEGERS, BOOL, *FLOATS) if t != dtype])
        return self.cast(self.draw(source, depth), dtype)

    def _where(self, dtype: np.dtype[Any], depth: int) -> Node:
        condition, a, b = self.draw(BOOL, depth), self.draw(dtype, depth), self.draw(dtype, depth)
        op = WhereOp(condition.value, a.value, b.value)
        return Node(self.graph.add(op), np.where(condition.expected, a.expected, b.expected))
