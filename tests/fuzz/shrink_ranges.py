"""Smaller models with ranges and the same finding: fewer outputs, fewer nodes, one symbol."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from onnx import NodeProto

from tests.fuzz.case import Case
from tests.fuzz.ranges import RangedCase
from tests.fuzz.shrink import all_values, pruned, smallest


def shrunk_ranges(ranged: RangedCase, fails: Callable[[RangedCase], bool], tries: int = 60) -> RangedCase:
    """The smallest case found in so many tries that still `fails`."""
    return smallest(ranged, _smaller, fails, tries)


def _smaller(ranged: RangedCase) -> Iterator[RangedCase]:
    case = ranged.case
    if len(case.outputs) > 1:
        for name in case.outputs:
            yield from _with(ranged, replace(case, outputs=[name]))
    for name in dict.fromkeys(ranged.symbols.values()):
        rest = {place: symbol for place, symbol in ranged.symbols.items() if symbol != name}
        if rest:
            yield replace(ranged, symbols=rest)
    yield from (found for node in reversed(case.nodes) for found in _without(ranged, node))


def _without(ranged: RangedCase, node: NodeProto) -> Iterator[RangedCase]:
    """With one of the node's operands in place of its first result, where that has the same type and rank; what is a
    result of the model is not replaced by an input or a constant."""
    case, values = ranged.case, all_values(ranged.case) or {}
    own = node.output[0]
    for name in dict.fromkeys(filter(None, node.input)):
        pair = [values[each] for each in (own, name) if each in values]
        if len(pair) < 2 or pair[0].dtype != pair[1].dtype or pair[0].ndim != pair[1].ndim:
            continue
        if own in case.outputs and (name in case.inputs or name in case.constants or name in case.outputs):
            continue
        nodes = [_reading(other, own, name) for other in case.nodes if other is not node]
        outputs = [name if output == own else output for output in case.outputs]
        yield from _with(ranged, replace(case, nodes=nodes, outputs=outputs))


def _reading(node: NodeProto, old: str, new: str) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = [new if name == old else name for name in node.input]
    return copy


def _with(ranged: RangedCase, case: Case) -> Iterator[RangedCase]:
    """With another case, if it takes the largest call and still has a symbol."""
    values = all_values(case)
    if values is None or not set(case.outputs) <= values.keys():
        return
    types = {name: (values[name].dtype, values[name].shape) for name in case.outputs}
    small = pruned(replace(case, types=types))
    symbols = {place: symbol for place, symbol in ranged.symbols.items() if place[0] in small.inputs}
    if symbols:
        yield replace(ranged, case=small, symbols=symbols)


__all__ = ["shrunk_ranges"]
