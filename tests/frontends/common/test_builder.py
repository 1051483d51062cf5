"""What is known while importing is evaluated, once for equal arrays of equal types."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import f64
from xdsl.ir import Block, Operation

from treadle.dialects.graph.evaluate import evaluate
from treadle.frontends.common import builder as folding
from treadle.frontends.common.builder import GraphBuilder


def _products(*factors: int) -> list[list[int]]:
    """3 and 4 times each factor, in a graph of their own."""
    g = GraphBuilder(Block())
    x = g.constant(np.array([3, 4]))
    arrays = [g.mul(x, g.constant(np.array(factor))).array for factor in factors]
    return np.array(arrays).tolist()


def test_equal_bytes_of_other_types_are_other_values() -> None:
    g, one = GraphBuilder(Block()), np.array([1], np.int32)
    arrays = [g.cast(g.constant(x), f64).array for x in (one, one.view(np.float32))]
    np.testing.assert_array_equal(np.array(arrays), [[1.0], [2.0**-149]])


def test_equal_operators_of_equal_arrays_are_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[str] = []

    def counting(op: Operation, env: dict[object, object]) -> object:
        evaluated.append(op.name)
        return evaluate(op, env)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(folding, "evaluate", counting)
    monkeypatch.setattr(folding, "_folded", {})
    monkeypatch.setattr(folding, "_MOST_FOLDED", 2)
    assert _products(2, 5) == [[6, 8], [15, 20]]
    assert _products(2, 5) == [[6, 8], [15, 20]]
    assert len(evaluated) == 2
    assert _products(7, 2) == [[21, 28], [6, 8]]
    assert len(evaluated) == 4, "a third result does not fit: the others were forgotten"
