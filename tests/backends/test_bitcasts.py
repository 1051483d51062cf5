"""The bits of elements as another type, on every target, against NumPy's views."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import f16, f64, i16
from xdsl.ir import Attribute
from xdsl.utils.exceptions import VerifyException

from tests.helpers.compiled import RUNNERS
from tests.helpers.graphs import Graph
from tests.helpers.integer_arithmetic import INTEGERS, array, extremes
from treadle.backends.reference import evaluate_module
from treadle.backends.reference.bound_module import bound_module
from treadle.dialects.graph import BinaryOp, BitcastOp
from treadle.dialects.graph.dtypes import element_type

FLOATS = tuple(np.dtype(t) for t in (np.float32, np.float64))
HARD = (0.0, -0.0, 1.5, -1.5, 1e30, -1e-30, 1e-42, np.inf, -np.inf, np.nan)


def values(dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Hard floats, or the extremes of an integer type."""
    return np.array(HARD).astype(dtype) if dtype.kind == "f" else array(extremes(dtype), dtype)


def pairs() -> list[tuple[np.dtype[Any], np.dtype[Any]]]:
    types = (*INTEGERS, *FLOATS)
    return [(a, b) for a in types for b in types if a != b and a.itemsize == b.itemsize]


@pytest.mark.parametrize("target", [*RUNNERS, "evaluator", "limits"])
def test_every_pair_of_types(target: str) -> None:
    graph = Graph(*(values(source) for source, _ in pairs()))
    results = [graph.add(BitcastOp(graph[n], element_type(to))) for n, (_, to) in enumerate(pairs())]
    # What is computed with the bits sees the type.
    results += [graph.add(BinaryOp("max", result, result)) for result in results]
    module = graph.module(*results)
    if target == "evaluator":
        found = evaluate_module(module, graph.inputs)
    elif target == "limits":
        bounded = bound_module(module, graph.inputs)
        found = [x.value.astype(to) for x, (_, to) in zip(bounded, pairs() * 2, strict=True)]
    else:
        found = RUNNERS[target](module, graph.inputs)
    for (source, to), actual in zip(pairs() * 2, found, strict=True):
        np.testing.assert_array_equal(actual, values(source).view(to), f"{source} as {to}", strict=True)


@pytest.mark.parametrize("target", RUNNERS)
def test_the_bits_of_bools(target: str) -> None:
    graph = Graph(np.array([True, False]), np.array([0, 1, 255], np.uint8))
    module = graph.module(*(graph.add(BitcastOp(graph[n], element_type(np.dtype(t)))) for n, t in enumerate("B?")))
    bits, truths = RUNNERS[target](module, graph.inputs)
    assert (bits.tolist(), truths.tolist()) == ([1, 0], [False, True, True])


@pytest.mark.parametrize(("to", "message"), [(f64, "a type as wide"), (i16, "no floats of 16")])
def test_what_has_no_such_bits(to: Attribute, message: str) -> None:
    graph = Graph(np.zeros(4, np.float16))
    with pytest.raises(VerifyException, match=f"the bits of {f16} as {to}: .*{message}"):
        BitcastOp(graph[0], to)
