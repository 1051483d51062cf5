"""transpose_cuda against the definition of its anchor, and what it leaves to generic_cuda."""

from __future__ import annotations

import pytest

from tests.schedules.test_templates import check, defined, tensor
from treadle.dialects.graph import Operator, TransposeOp, UnaryOp
from treadle.schedules.templates import TEMPLATES

TRANSPOSED: list[Operator] = [
    TransposeOp(tensor(8, 8), [1, 0]),
    TransposeOp(tensor(33, 31), [1, 0]),
    TransposeOp(tensor(2, 40, 3, 4), [0, 2, 3, 1]),
    TransposeOp(tensor(2, 3, 4, 9), [0, 3, 1, 2]),
    TransposeOp(tensor(9, 2, 12, dtype="float16"), [2, 1, 0]),
    TransposeOp(tensor(10, 16, dtype="int64"), [1, 0]),
]


@pytest.mark.parametrize("operator", TRANSPOSED, ids=lambda op: f"{op.name} {op.type}")
@pytest.mark.parametrize("threads", [128, 256])
def test_transposes(operator: Operator, threads: int):
    check("transpose_cuda", defined(operator), {"threads": threads})


@pytest.mark.parametrize("read_vector", [1, 2, 4])
@pytest.mark.parametrize("write_vector", [1, 2, 4])
def test_vectors_of_transpose_cuda(read_vector: int, write_vector: int):
    knobs = {"read_vector": read_vector, "write_vector": write_vector}
    check("transpose_cuda", defined(TransposeOp(tensor(12, 20), [1, 0])), knobs)


def test_movement_along_one_direction_is_left_to_the_rule():
    straight = [UnaryOp("exp", tensor(64, 64)), TransposeOp(tensor(8, 9, 64), [1, 0, 2])]
    short = [TransposeOp(tensor(64, 4), [1, 0]), TransposeOp(tensor(4, 64), [1, 0])]
    assert not any(TEMPLATES["transpose_cuda"].fits(defined(op)) for op in (*straight, *short))
