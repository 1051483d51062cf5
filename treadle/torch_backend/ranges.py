"""For which extents a graph of PyTorch's compiler is compiled: ranges of its symbols, which one artifact serves."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, cast

import torch
from torch import fx

from treadle.frontends.common.extent import Symbol, Symbolic, bound_of, expression_of
from treadle.frontends.common.symbols import Symbols
from treadle.frontends.torch.ranges import Ranges, expression, is_symbolic_number, symbols_of
from treadle.shapes.dim import Dim

LARGEST = 1024
"""The largest extent that an artifact is made for where nobody says another."""
_MOST_BYTES = 1 << 30
"""Of one tensor, at the largest extents that nobody asked for."""
_MARKED = 1 << 24
"""An upper bound that PyTorch knows counts below it; it has others of its own, such as 2^63 - 1."""

Values = Mapping[str, int]
"""What PyTorch's symbols are in a call."""


def values_in(node: fx.Node) -> Iterator[object]:
    """The tensors and numbers that a node gives."""
    value = node.meta.get("val")
    yield from cast("Sequence[object]", value) if isinstance(value, (tuple, list)) else (value,)


def numbers_in(value: object) -> Iterator[Any]:
    """The symbolic numbers of a value: itself, or a tensor's extents, strides and offset."""
    if isinstance(value, torch.Tensor):
        listed = cast("Sequence[object]", (*value.shape, *value.stride(), value.storage_offset()))
        yield from filter(is_symbolic_number, listed)
    elif is_symbolic_number(value):
        yield value


def symbols_in(graph: fx.Graph) -> set[str]:
    """The symbols that a graph's tensors and numbers depend on."""
    numbers = (number for node in graph.nodes for value in values_in(node) for number in numbers_in(value))
    return {name for number in numbers for name in symbols_of(number)}


@dataclass(frozen=True)
class SymbolSources:
    """Where a call says what the symbols of a graph are.

    places: by symbol, positions of inputs: a number itself (dimension None), or extents of tensors
    limits: the least and, where somebody marked it, the greatest value of each symbol
    """

    graph: fx.Graph
    places: Mapping[str, Sequence[tuple[int, int | None]]]
    limits: Mapping[str, tuple[int, int | None]]

    @staticmethod
    def of(graph: fx.Graph) -> SymbolSources | None:
        """None for a graph with symbols that no input is."""
        places = defaultdict[str, list[tuple[int, int | None]]](list)
        limits = dict[str, tuple[int, int | None]]()
        for position, node in enumerate(each for each in graph.nodes if each.op == "placeholder"):
            value = node.meta.get("val")
            if isinstance(value, (torch.SymFloat, torch.SymBool)):
                return None
            shape = cast("Sequence[object]", value.shape) if isinstance(value, torch.Tensor) else None
            extents = [(None, value)] if shape is None else enumerate(shape)
            for dimension, extent in extents:
                if isinstance(extent, torch.SymInt) and expression(extent).is_Symbol:
                    places[str(expression(extent))].append((position, dimension))
                    limits[str(expression(extent))] = _limits(extent)
        return SymbolSources(graph, places, limits) if symbols_in(graph) <= set(places) else None

    def values(self, inputs: Sequence[Any]) -> dict[str, int]:
        """What the symbols are in a call."""
        found = dict[str, int]()
        for name, ((position, dimension), *_) in self.places.items():
            found[name] = int(inputs[position] if dimension is None else inputs[position].shape[dimension])
        return found

    def roles(self) -> dict[str, set[object]]:
        """By symbol, how its tensors look and which of their dimensions it is; nothing for one that is no extent."""
        nodes = [node for node in self.graph.nodes if node.op == "placeholder"]
        found = dict[str, set[object]]()
        for name, places in self.places.items():
            found[name] = set()
            for position, dimension in places:
                if dimension is not None:
                    tensor = nodes[position].meta["val"]
                    extents = tuple(None if is_symbolic_number(e) else int(e) for e in tensor.shape)
                    found[name].add((tensor.dtype, extents, dimension))
        return found


def _limits(extent: torch.SymInt) -> tuple[int, int | None]:
    known: Any = cast("Any", extent).node.shape_env.var_to_range.get(expression(extent))
    if known is None:
        return 0, None
    high = int(known.upper) if known.upper.is_Integer and known.upper <= _MARKED else None
    return (int(known.lower) if known.lower.is_Integer and known.lower > 0 else 0), high


def number_of(extent: Symbolic, values: Values) -> int:
    """An extent in a call."""
    return expression_of(extent).evaluate(values)


class CurrentCall(threading.local):
    """What the symbols are in the call that is running."""

    def __init__(self) -> None:
        self.values: Values = {}


@dataclass(frozen=True, eq=False)
class Plan:
    """The calls that an artifact serves.

    ranges:  what the symbols are: extents of a range, and numbers where they are no extents
    same:    by symbol, the one that it is equal to in all of these calls
    fixed:   the numbers that are no extents
    example: the symbols in the first of these calls
    """

    ranges: Ranges
    same: Mapping[str, str]
    fixed: Values
    example: Values
    current: CurrentCall = field(default_factory=CurrentCall)

    def serves(self, values: Values) -> bool:
        """Whether a call is one of them."""
        dims = self.ranges.dims.dims
        return (
            all(values[name] == number for name, number in self.fixed.items())
            and all(values[name] == values[other] for name, other in self.same.items())
            and all(values[name] in dim for name, dim in dims.items())
        )

    @staticmethod
    def of(sources: SymbolSources, values: Values, largest: int | None, before: Sequence[Plan]) -> Plan:
        """A plan that serves a call, and what those before it serve of such calls.

        Extents at the same place of tensors that look alike, such as the caches of layers, are one as long as they are
        equal; PyTorch has a symbol for each. An extent that nobody limited goes up to `largest`, or twice that, and so
        on, until the call's is served.
        """
        roles = sources.roles()
        fixed = {name: values[name] for name, places in roles.items() if not places}
        same = _equal(roles, values)
        limits = dict[str, tuple[int, int]]()
        free = set[str]()
        for name in set(same.values()):
            members = [member for member, other in same.items() if other == name]
            low = min(sources.limits[member][0] for member in members)
            marked = [high for member in members if (high := sources.limits[member][1]) is not None]
            high = min(marked) if marked else largest or LARGEST
            earlier = [plan.ranges.dims.dims[name].upper for plan in before if name in plan.ranges.dims.dims]
            high = max([high, *earlier])
            while high < values[name]:
                high *= 2
            limits[name] = (min(low, values[name]), high)
            if not marked and largest is None:
                free.add(name)
        limits = _fitted(sources.graph, limits, free, same, fixed, values)
        return Plan(_ranges(limits, same, fixed), same, fixed, dict(values))


def _equal(roles: Mapping[str, set[object]], values: Values) -> dict[str, str]:
    """By each symbol that is an extent the first one of its role that is equal to it."""
    found = dict[str, str]()
    for name, places in roles.items():
        alike = (other for other in found.values() if roles[other] & places and values[other] == values[name])
        if places:
            found[name] = next(alike, name)
    return found


def _ranges(limits: Mapping[str, tuple[int, int]], same: Mapping[str, str], fixed: Values) -> Ranges:
    symbols = Symbols()
    own = {name: symbols.extent(Dim(name, *each), "torch.compile", {}) for name, each in sorted(limits.items())}
    extents: dict[str, Symbolic] = {**{name: own[other] for name, other in same.items()}, **fixed}
    return Ranges(symbols, extents, {each.expression: each for each in own.values() if isinstance(each, Symbol)})


def _fitted(
    graph: fx.Graph,
    limits: Mapping[str, tuple[int, int]],
    free: set[str],
    same: Mapping[str, str],
    fixed: Values,
    values: Values,
) -> dict[str, tuple[int, int]]:
    """Limits of which the free ones are halved until no tensor is too large, or as large as the call needs."""
    found = dict(limits)
    tensors = [
        value for node in graph.nodes for value in values_in(node)
        if isinstance(value, torch.Tensor) and any(map(is_symbolic_number, cast("Sequence[object]", value.shape)))
    ]  # fmt: skip
    while True:
        ranges = _ranges(found, same, fixed)
        most = max((_bytes(value, ranges) for value in tensors), default=0)
        smaller = [name for name in free if found[name][1] >= 2 * max(values[name], 8)]
        if most <= _MOST_BYTES or not smaller:
            return found
        name = max(smaller, key=lambda name: (found[name][1] / max(values[name], 1), name))
        found[name] = (found[name][0], found[name][1] // 2)


def _bytes(value: torch.Tensor, ranges: Ranges) -> int:
    return prod(map(bound_of, ranges.shape(value, "torch.compile"))) * value.dtype.itemsize


def restricted(plan: Plan, graph: fx.Graph) -> tuple[Ranges, list[str]]:
    """The ranges of the symbols that a part of a graph depends on, and those that no input of it has as an extent."""
    used = {plan.same[name] for name in symbols_in(graph) if name in plan.same}
    dims = {name: dim for name, dim in plan.ranges.dims.dims.items() if name in used}
    ranges = Ranges(Symbols(dims), plan.ranges.values, plan.ranges.chosen)
    given = set[str]()
    for node in graph.nodes:
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor):
            shape = ranges.shape(node.meta["val"], "torch.compile")
            given |= {extent.name for extent in shape if isinstance(extent, Symbol)}
    return ranges, sorted(name for name, dim in dims.items() if name not in given and dim.least < dim.greatest)


__all__ = [
    "CurrentCall",
    "Plan",
    "SymbolSources",
    "Values",
    "number_of",
    "numbers_in",
    "restricted",
    "symbols_in",
    "values_in",
]
