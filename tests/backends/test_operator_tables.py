"""Every scalar function and every reduction of the tables, on every element type, as compiled C and on the emulator.

A kind that is added to a table is run here without being named: whichever types its operator accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.ir import SSAValue
from xdsl.utils.exceptions import VerifyException

from tests.helpers.compiled import RUNNERS
from tests.helpers.graphs import Graph
from tests.helpers.limits import assert_within, module_limits
from treadle.dialects.graph import BinaryOp, Operator, ReductionOp, UnaryOp
from treadle.dialects.graph.elementwise import BINARY, UNARY
from treadle.dialects.graph.reduction import REDUCTION_KINDS

Array = NDArray[Any]

DTYPES = [np.dtype(each) for each in ("float16", ml_dtypes.bfloat16, "float32", "float64", "int8", "int64", "bool")]
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, 1e-6, -1.5, 2.5, 40.0, -40.0]
"""Beside ordinary numbers: where functions have their corners."""
ROWS = 8


def numbers(dtype: np.dtype[Any], seed: int) -> Array:
    """64 numbers of a type in 8 rows, with mantissas that use all of its bits."""
    rng = np.random.default_rng(seed)
    if dtype == np.bool_:
        return rng.random((ROWS, 8)) < 0.5
    if dtype.kind == "i":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, (ROWS, 8), dtype, endpoint=True)
    values = rng.standard_normal(64) * np.exp2(rng.integers(-3, 3, 64))
    values[: len(SPECIAL)] = SPECIAL
    return rng.permutation(values).reshape(ROWS, 8).astype(dtype)


def operators(x: SSAValue, y: SSAValue) -> Iterator[tuple[str, Callable[[], Operator]]]:
    """Each kind of each table, as an operator of two tensors or of the first one."""
    for kind in UNARY:
        yield f"unary {kind}", lambda kind=kind: UnaryOp(kind, x)
    for kind in BINARY:
        yield f"binary {kind}", lambda kind=kind: BinaryOp(kind, x, y)
    for kind in REDUCTION_KINDS:
        yield f"reduction {kind}", lambda kind=kind: ReductionOp(kind, x, [1], False)


@pytest.mark.parametrize("runner", RUNNERS)
def test_every_kind_of_every_table(runner: str) -> None:
    graph = Graph(*(numbers(dtype, seed) for dtype in DTYPES for seed in (1, 2)))
    names: list[str] = []
    results: list[SSAValue] = []
    for n, dtype in enumerate(DTYPES):
        for kind, make in operators(graph[2 * n], graph[2 * n + 1]):
            try:
                results.append(graph.add(make()))
            except VerifyException:
                continue  # not of this type
            names.append(f"{kind} of {dtype}")
    covered = {name.rsplit(" of ", 1)[0] for name in names}
    assert covered == {kind for kind, _ in operators(graph[0], graph[1])}
    module = graph.module(*results)
    expected = module_limits(module, graph.inputs)
    actual = RUNNERS[runner](module, graph.inputs)
    wrong: list[str] = []
    for name, array, bounded in zip(names, actual, expected, strict=True):
        try:
            assert_within(array, bounded, array.dtype, name)
        except AssertionError as error:
            wrong.append(str(error).splitlines()[0])
    assert not wrong, "\n".join(wrong)
