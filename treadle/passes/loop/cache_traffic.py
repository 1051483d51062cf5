"""The memory traffic of a loop nest as a function of the cache's capacity.

When the loops' variables are split into digits, so that no quotients and remainders are left, addresses are linear in
them; the footprint of loops then follows from strides and trip counts alone. A cache that has room for two iterations
of a loop loads each byte of the whole loop once; a smaller one loads the footprints of the inner loops again in each
iteration. Source: M. Wolf and M. Lam, A Data Locality Optimizing Algorithm (PLDI 1991), section 3.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from treadle.index.atom import Var
from treadle.index.divisors import divisor_chain, divisors_of
from treadle.index.expr import Expr, const, var
from treadle.index.linear import stride_along
from treadle.schedules.search.work import Reuse

LINE = 64
"""The bytes of a CPU's cache line."""
_TO_MEET_AGAIN = 2.0
"""The number of iterations whose footprint a cache must have room for, so that data that iterations share is reused."""


@dataclass
class Node:
    """A loop, with the inner loops and accesses of its body. `trips` may be a mean."""

    variable: Hashable
    trips: float
    inside: list[Node | Touch] = field(default_factory=list["Node | Touch"])
    weight: float = 1.0
    """The fraction of the iterations of the enclosing loop in which it is executed."""


@dataclass(frozen=True)
class Touch:
    """An access of a number of contiguous bytes of a buffer."""

    buffer: Hashable
    width: int
    own: Sequence[tuple[float, int]]
    """(extent, stride in bytes) of each dimension of an access that is not contiguous."""
    strides: Mapping[Hashable, Sequence[tuple[float, int]]]
    """(trip count, stride in bytes) of each digit of each variable."""


def digits_of(address: Expr, steps: Mapping[Hashable, int]) -> dict[Hashable, list[tuple[float, int]]]:
    """(extent, stride in bytes) of each variable's digits, the lowest first. `steps` has the steps of loops.

    Where the address is not linear in a digit, the stride is the difference of the addresses for 0 and 1.
    """
    counted = address.substitute({v.key: _counter_of(v, steps) for v in address.vars() if None not in v.range})
    divisors = divisors_of([counted])
    replacement: dict[Hashable, Expr] = {}
    digits: dict[Hashable, list[tuple[Hashable, int]]] = {}
    for v in counted.vars():
        lo, hi = v.range
        if lo is None or hi is None:
            continue
        ends = [end for end in divisor_chain(divisors.get(v.key, ())) if end <= hi]
        total, weight, keys = const(0), 1, list[tuple[Hashable, int]]()
        for n, end in enumerate([*ends, None]):
            size = -(-(hi + 1) // weight) if end is None else end // weight
            total = total + var((v.key, n), 0, max(size - 1, 0)) * weight
            keys.append(((v.key, n), size))
            weight = end or weight
        replacement[v.key], digits[v.key] = total, keys
    flat = counted.substitute(replacement)
    return {
        variable: [(float(size), abs(_stride(flat, key))) for key, size in keys] for variable, keys in digits.items()
    }


def _counter_of(v: Var, steps: Mapping[Hashable, int]) -> Expr:
    """A variable in terms of one of the same key that counts its values from 0."""
    lo, hi = v.range
    assert lo is not None
    assert hi is not None
    step = steps.get(v.key, 1)
    return var(v.key, 0, (hi - lo) // step) * step + lo


def _stride(e: Expr, key: Hashable) -> int:
    known = stride_along(e, key)
    if known is not None:
        return known
    at = {v.key: v.range[0] or 0 for v in e.vars()}
    return e.evaluate({**at, key: 1}) - e.evaluate({**at, key: 0})


def reuse_of(root: Node) -> tuple[Reuse, ...]:
    """The traffic for each capacity at which it falls: those of the loops' working sets."""
    sizes = sorted({0.0, *_working_sets(root)})
    found: list[Reuse] = []
    for capacity in sizes:
        moved = _moved(root, capacity)
        if not found or moved < found[-1].traffic:
            found.append(Reuse(capacity, moved))
    return tuple(found)


def _working_sets(node: Node) -> list[float]:
    found = [_footprint(node, _TO_MEET_AGAIN)]
    for inner in node.inside:
        if isinstance(inner, Node):
            found += _working_sets(inner)
    return found


def _moved(node: Node, capacity: float) -> float:
    """The bytes that a cache of this capacity loads in all iterations of a loop."""
    whole = _footprint(node)
    if _footprint(node, _TO_MEET_AGAIN) <= capacity:
        return whole * node.weight
    inner = sum(_moved(each, capacity) for each in node.inside if isinstance(each, Node))
    touched = sum(touched_bytes(each.width, each.own) for each in node.inside if isinstance(each, Touch))
    return max(whole, node.trips * (inner + touched)) * node.weight


def _footprint(node: Node, most: float = inf) -> float:
    """The bytes of the cache lines that all iterations of a loop touch, or its first `most` iterations."""
    buffers: dict[Hashable, float] = {}
    for touch, trips in _touches(node, {}, most):
        size = _distinct(touch, trips)
        buffers[touch.buffer] = max(buffers.get(touch.buffer, 0.0), size)
    return sum(buffers.values())


def _touches(
    node: Node, around: Mapping[Hashable, float], most: float = inf
) -> list[tuple[Touch, Mapping[Hashable, float]]]:
    inside = {**around, node.variable: min(node.trips, most)}
    found: list[tuple[Touch, Mapping[Hashable, float]]] = []
    for each in node.inside:
        found += _touches(each, inside) if isinstance(each, Node) else [(each, inside)]
    return found


def _distinct(touch: Touch, trips: Mapping[Hashable, float]) -> float:
    """Bytes of the lines that an access touches while some variables take so many values and the others one."""
    steps = list(touch.own)
    for variable, digits in touch.strides.items():
        left = trips.get(variable, 1.0)
        for size, step in digits:
            taken = min(size, left)
            if taken > 1 and step:
                steps.append((taken, step))
            left = max(1.0, left / size)
    return touched_bytes(touch.width, steps)


def touched_bytes(width: float, digits: Sequence[tuple[float, int]]) -> float:
    """Bytes of the lines that accesses of `width` bytes touch, given (trips, stride in bytes) of what moves them."""
    run, count = float(width), 1.0
    for trips, stride in sorted(digits, key=lambda digit: digit[1]):
        if stride <= run + LINE:
            run += stride * (trips - 1)
        else:
            count *= trips
    return count * max(LINE, -(-run // LINE) * LINE)


__all__ = ["LINE", "Node", "Touch", "digits_of", "reuse_of", "touched_bytes"]
