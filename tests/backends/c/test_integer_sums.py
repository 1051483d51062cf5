"""Sums of integers in several accumulators, of which each step has a conversion from floats: GCC 12 once left out the
last step of some of them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.frontends.onnx.models import model, node
from tests.helpers.program_batch import C, ProgramBatch
from treadle.frontends.onnx import import_model

TYPES = ["int8", "int16", "int32", "int64"]
SHAPES = [(2, 16), (4, 2, 4), (3, 32), (2, 8)]
CASES = {f"{dtype} {shape}": (dtype, shape) for dtype in TYPES for shape in SHAPES}


@pytest.fixture(scope="module")
def compiled() -> ProgramBatch:
    return ProgramBatch({name: lambda case=case: import_model(norms(*case)) for name, case in CASES.items()}, C)


def norms(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The sum of sqrt(x * x), an integer each, along all dimensions."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        node("ReduceL2", "x", "norm", axes=[len(shape)], keepdims=0),
        node("ReduceSum", "norm", "y", keepdims=0),
    ]
    return model(nodes, {"x": [*shape, 1]}, opset=13, element=kind).SerializeToString()


@pytest.mark.parametrize("name", CASES)
def test_every_accumulator_has_every_term(name: str, compiled: ProgramBatch) -> None:
    dtype, shape = CASES[name]
    for position in range(int(np.prod(shape))):
        x = np.zeros(shape, dtype)
        x.flat[position] = -7
        (total,) = compiled[name].run([x.reshape(*shape, 1)])
        assert total == 7, position
