"""What the loops of a kernel bring from memory again and again, given how much a cache keeps.

Addresses are linear in the loops' variables once quotients and remainders are cut into digits; how many bytes the
passes of some loops touch then follows from strides and trip counts alone. A cache that keeps what two passes of a loop
touch sees each byte of the whole loop once; a smaller one sees what the inner loops bring, again in each pass.
Source: M. Wolf and M. Lam, A Data Locality Optimizing Algorithm (PLDI 1991), section 3.
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
"""Bytes that a CPU's caches move at once."""
_TO_MEET_AGAIN = 2.0
"""Passes of a loop whose data a cache has to keep, so that what the passes share is there in the next one."""


@dataclass
class Node:
    """A loop with what stands in it: inner loops and accesses. `trips` may be a mean."""

    variable: Hashable
    trips: float
    inside: list[Node | Touch] = field(default_factory=list["Node | Touch"])
    weight: float = 1.0
    """The part of the passes of the loop around it in which it runs at all."""


@dataclass(frozen=True)
class Touch:
    """An access: its buffer, and how many neighbouring bytes it takes."""

    buffer: Hashable
    width: int
    own: Sequence[tuple[float, int]]
    """(elements, bytes from one to the next) of an access that takes no neighbours."""
    strides: Mapping[Hashable, Sequence[tuple[float, int]]]
    """By variable: (trips, bytes) of each of its digits."""


def digits_of(address: Expr, steps: Mapping[Hashable, int]) -> dict[Hashable, list[tuple[float, int]]]:
    """(values, bytes from one to the next) of each variable's digits, the lowest first; of what is no digit, as from 0
    to 1. `steps` says how far loops advance their variables."""
    counted = address.substitute({v.key: _counter_of(v, steps) for v in address.vars() if None not in v.range})
    divisors = divisors_of([counted])
    replacement: dict[Hashable, Expr] = {}
    digits: dict[Hashable, list[tuple[Hashable, int]]] = {}
    for v in counted.vars():
        lo, hi = v.range
        if lo is None or hi is None:
            continue
        ends = [end for end in divisor_chain(divisors.get(v.key, ())) if end <= hi]
        total, place, keys = const(0), 1, list[tuple[Hashable, int]]()
        for n, end in enumerate([*ends, None]):
            size = -(-(hi + 1) // place) if end is None else end // place
            total = total + var((v.key, n), 0, max(size - 1, 0)) * place
            keys.append(((v.key, n), size))
            place = end or place
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
    """Traffic by capacity: at each size of a loop's working set another loop's data stays."""
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
    """Bytes that come into a cache of that capacity in all passes of a loop."""
    whole = _footprint(node)
    if _footprint(node, _TO_MEET_AGAIN) <= capacity:
        return whole * node.weight
    inner = sum(_moved(each, capacity) for each in node.inside if isinstance(each, Node))
    touched = sum(touched_bytes(each.width, each.own) for each in node.inside if isinstance(each, Touch))
    return max(whole, node.trips * (inner + touched)) * node.weight


def _footprint(node: Node, most: float = inf) -> float:
    """Distinct bytes, in whole lines, that all passes of a loop touch, or the first `most` ones."""
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
