"""Functions of functions' results, as compiled C: compilers know identities, of which some do not hold for NaN."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import treadle
from tests.helpers.graphs import Graph
from treadle.dialects.graph import UnaryOp

FUNCTIONS: dict[str, Any] = {
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "neg": np.negative, "abs": np.abs,
}  # fmt: skip
VALUES = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.25, 3.0, -3.0, 1e30, -1e30)


VECTORS = ("exp", "log", "tanh", "sqrt", "neg", "abs")
"""Functions that kernels compute on vectors. A loop with another one calls the library for each of many elements, too.
"""


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("copies", "functions"),
    [
        pytest.param(1, tuple(FUNCTIONS), id="few elements"),
        pytest.param(3, VECTORS, id="vectors"),
        # As few elements do, but for longer loops: a compiler's identities do not depend on these.
        pytest.param(3, tuple(FUNCTIONS), marks=pytest.mark.slow, id="many elements"),
    ],
)
def test_a_function_of_a_function(dtype: type[np.floating[Any]], copies: int, functions: tuple[str, ...]) -> None:
    """All pairs, each in one kernel: where they are NaN or infinite. GCC 12 made sin(atan(NaN)) 1, and its cosine 0."""
    x, pairs = np.tile(np.array(VALUES, dtype), copies), list(product(functions, functions))
    graph = Graph(x)
    results = [graph.add(UnaryOp(outer, graph.add(UnaryOp(inner, graph[0])))) for inner, outer in pairs]
    with treadle.compile(graph.module(*results)) as model, np.errstate(all="ignore"):
        for (inner, outer), result in zip(pairs, model(x), strict=True):
            between = FUNCTIONS[inner](x.astype(np.float64)).astype(dtype).astype(np.float64)
            expected = FUNCTIONS[outer](between).astype(dtype)
            for kind in (np.isnan, np.isposinf, np.isneginf):
                np.testing.assert_array_equal(kind(result), kind(expected), f"{outer} of {inner}")
