"""Smaller cases with the same finding: fewer outputs, fewer nodes, smaller extents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tests.fuzz.case import Case
from tests.fuzz.definition import evaluate_node

Array = NDArray[Any]
T = TypeVar("T")


def shrunk(case: Case, fails: Callable[[Case], bool], tries: int = 60) -> Case:
    """The smallest case found in so many tries that still `fails`."""
    return smallest(case, _smaller, fails, tries)


def smallest(case: T, smaller: Callable[[T], Iterator[T]], fails: Callable[[T], bool], tries: int) -> T:
    """The smallest case found in so many tries that still `fails`; each step is the first smaller one that does."""
    while True:
        for candidate in smaller(case):
            tries -= 1
            if tries < 0:
                return case
            if fails(candidate):
                case = candidate
                break
        else:
            return case


def _smaller(case: Case) -> Iterator[Case]:
    if len(case.outputs) > 1:
        for name in case.outputs:
            yield pruned(replace(case, outputs=[name]))
    values = all_values(case)
    if values is None:
        return
    for node in case.nodes[:-1] if len(case.nodes) > 1 else []:
        known = {name: values[name] for name in node.output}
        rest = [n for n in case.nodes if n is not node]
        if set(known).isdisjoint(case.outputs):
            yield pruned(replace(case, nodes=rest, inputs={**case.inputs, **known}))
    extents = {e for array in (*case.inputs.values(), *case.constants.values()) for e in array.shape if e > 1}
    for extent in sorted(extents, reverse=True):
        for smaller in {max(extent // 2, 1), extent - 1}:
            candidate = _narrowed(case, extent, smaller)
            if candidate is not None:
                yield candidate


def all_values(case: Case) -> dict[str, Array] | None:
    """Every tensor; None if a node does not take its operands."""
    values = {**case.inputs, **case.constants}
    try:
        for node in case.nodes:
            results = evaluate_node(node, case.opset, [values[n] if n else None for n in node.input])
            values.update(zip(node.output, results, strict=True))
    except Exception:
        return None
    return values


def pruned(case: Case) -> Case:
    """Without what no output needs."""
    needed, nodes = set(case.outputs), list[Any]()
    for node in reversed(case.nodes):
        if not needed.isdisjoint(node.output):
            nodes.append(node)
            needed.update(node.input)
    inputs, constants = ({n: a for n, a in group.items() if n in needed} for group in (case.inputs, case.constants))
    types = {name: case.types[name] for name in case.outputs}
    return Case(case.opset, nodes[::-1], inputs, constants, case.outputs, types)


def _narrowed(case: Case, extent: int, smaller: int) -> Case | None:
    """With every extent of one size smaller; None if the nodes do not allow that."""

    def narrow(array: Array) -> Array:
        return np.ascontiguousarray(array[tuple(slice(smaller) if e == extent else slice(None) for e in array.shape)])

    inputs, constants = ({n: narrow(a) if a.ndim else a for n, a in g.items()} for g in (case.inputs, case.constants))
    candidate = replace(case, inputs=inputs, constants=constants)
    values = all_values(candidate)
    if values is None:
        return None
    return replace(candidate, types={name: (values[name].dtype, values[name].shape) for name in case.outputs})


__all__ = ["all_values", "pruned", "shrunk", "smallest"]
