"""Operators on a kernel's indices: what they compute, which operations they write, and what has no meaning."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, TensorType, i64
from xdsl.ir import Block, Operation

from treadle.backends.reference.kernels import evaluate_kernel
from treadle.schedules.kernel_builder import Index, KernelBuilder, Predicate, all_of

Expression = Callable[[Index, Index], Index | Predicate]
FIRST, SECOND = 13, 5

EXPRESSIONS: list[tuple[Expression, int]] = [
    (lambda i, j: i * 4 + j, FIRST * 4 + SECOND),
    (lambda i, j: 7 + i, 7 + FIRST),
    (lambda i, j: i - j * 3, FIRST - SECOND * 3),
    (lambda i, _: 20 - i, 20 - FIRST),
    (lambda i, _: i // 4, FIRST // 4),
    (lambda i, _: i % 4, FIRST % 4),
    (lambda i, j: i.min(j), SECOND),
    (lambda i, _: i.max(14), 14),
    (lambda i, _: i < 14, 1),
    (lambda i, j: i <= j, 0),
    (lambda i, j: i > j, 1),
    (lambda i, _: i >= 13, 1),
    (lambda i, _: i.equals(13), 1),
    (lambda i, j: (i > j) & (i < 4), 0),
    (lambda i, j: (i > j) | (i < 4), 1),
    (lambda i, j: (i > j).select(j, i), SECOND),
    (lambda i, _: i.delinearize([2, 3, 4])[1], FIRST // 4 % 3),
]


def test_operators_compute_what_python_does():
    """All of them in one kernel, each at two indices that are not known before it runs."""
    type = TensorType(i64, [len(EXPRESSIONS)])
    b = KernelBuilder([], type)
    with b.loop("i", FIRST + 1, begin=FIRST) as i, b.loop("j", SECOND + 1, begin=SECOND) as j:
        for n, (expression, _) in enumerate(EXPRESSIONS):
            result = expression(i, j)
            cast = arith.IndexCastOp if isinstance(result, Index) else arith.ExtUIOp
            b.store(b.insert(cast(result.value, i64)), b.output, [n])
    actual = evaluate_kernel(b.kernel("operators", [], type, 1, 1, ""), [])
    np.testing.assert_array_equal(actual, [value for _, value in EXPRESSIONS])


def written(write: Callable[[Index, Index], object]) -> list[str]:
    """The operations that an expression of two indices writes: constants by their value, others by name."""
    b = KernelBuilder([], TensorType(i64, [1]))
    write(b.block, b.thread)
    block = b.block.value.owner
    assert isinstance(block, Block)
    return [_name(op) for op in block.ops]


def _name(op: Operation) -> str:
    if isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr):
        return str(op.value.value.data)
    return op.name.removeprefix("arith.")


def test_operands_come_first_from_left_to_right():
    assert written(lambda i, j: i * 8 + (j % 2 < 1).select(i, j)) == [
        "8",
        "muli",
        "2",
        "remui",
        "1",
        "cmpi",
        "select",
        "addi",
    ]


@pytest.mark.parametrize("write", [lambda i, _: i + 0, lambda i, _: i * 1, lambda i, _: i // 1], ids="+*/")
def test_neutral_operands_write_nothing(write: Callable[[Index, Index], object]):
    assert written(write) == []


def test_the_conjunction_of_what_is_given():
    b = KernelBuilder([], TensorType(i64, [1]))
    assert all_of([]) is None and all_of([None, None]) is None
    one = b.block < 3
    assert all_of([None, one]) is one
    assert written(lambda i, j: all_of([i < 3, None, j < 4])) == ["3", "cmpi", "4", "cmpi", "andi"]


def test_a_predicate_is_not_known_in_python():
    b = KernelBuilder([], TensorType(i64, [1]))
    with pytest.raises(TypeError, match=r"no value in Python: combine predicates with & and \|"):
        _ = 0 < b.block < 3
