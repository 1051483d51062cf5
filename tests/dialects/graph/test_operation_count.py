"""The arithmetic operations of operators, counted by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from xdsl.dialects.builtin import TensorType, f16, f32, i1, i64
from xdsl.ir import Attribute, SSAValue

from treadle import ir
from treadle.dialects.graph import (
    AttentionOp,
    BinaryOp,
    CastOp,
    ConvOp,
    MatmulOp,
    Operator,
    ReductionOp,
    ReshapeOp,
    SoftmaxOp,
    UnaryOp,
    WhereOp,
    WinogradConvOp,
)
from treadle.dialects.graph.operation_count import count_operations

Shape = tuple[int, ...]
Make = Callable[..., Operator]

CASES: Mapping[str, tuple[list[tuple[Shape, Attribute]], Make, int]] = {
    "sum of pairs": ([((3, 5), f32), ((3, 5), f32)], lambda a, b: BinaryOp("add", a, b), 15),
    "integers": ([((3, 5), i64), ((3, 5), i64)], lambda a, b: BinaryOp("mul", a, b), 15),
    "truth values": ([((3, 5), i1), ((3, 5), i1)], lambda a, b: BinaryOp("and", a, b), 0),
    "function": ([((3, 5), f32)], lambda a: UnaryOp("exp", a), 15),
    "conversion": ([((3, 5), f32)], lambda a: CastOp(a, f16), 0),
    "choice": ([((4,), i1), ((4,), f32), ((4,), f32)], WhereOp, 0),
    "moved": ([((4, 6), f32)], lambda a: ReshapeOp(a, [24]), 0),
    "product": ([((2, 3, 5), f32), ((2, 5, 7), f32)], MatmulOp, 2 * 2 * 3 * 7 * 5),
    "product in f32 of f16": ([((3, 5), f16), ((5, 7), f16)], MatmulOp, 2 * 3 * 7 * 5),
    "nothing": ([((0, 5), f32), ((5, 7), f32)], MatmulOp, 0),
    "mean": ([((4, 6), f32)], lambda a: ReductionOp("mean", a, [1], False), 4 * (6 + 1)),
    "softmax": (  # max; sub, exp, add in the sum; 1 / sum once a row; sub, exp, mul
        [((3, 5), f32)],
        lambda x: SoftmaxOp(x, 1),
        3 * (5 + 3 * 5 + 1 + 3 * 5),
    ),
    "grouped convolution": (
        [((1, 4, 8, 8), f32), ((6, 2, 3, 3), f32)],
        lambda x, w: ConvOp(x, w, [1, 1], [0, 0, 0, 0], [1, 1], 2),
        2 * (6 * 6 * 6) * (2 * 3 * 3),
    ),
    "attention": (
        [((2, 3, 4), f32), ((2, 5, 4), f32), ((2, 5, 6), f32)],
        AttentionOp,
        2 * (3 * 5 * (2 * 4 + 5 + 2 * 6) + 3 * 6),
    ),
    "tiles": (  # 6 tiles of 4 x 4; 4 additions along each of 4 columns and 4 rows, and of 4 columns and 2 rows
        [((1, 2, 5, 3, 4), f32), ((16, 7, 12), f32)],
        lambda x, u: WinogradConvOp(x, u, 2, [1, 1, 1, 1]),
        6 * (2 * 16 * 7 * 12 + 7 * 4 * (4 + 4) + 12 * 4 * (4 + 2)),
    ),
    "causal attention": (  # row 0 sees 3 of 5 keys, row 2 all of them
        [((2, 3, 4), f32), ((2, 5, 4), f32), ((2, 5, 6), f32)],
        lambda q, k, v: AttentionOp(q, k, v, causal=True),
        2 * ((3 + 4 + 5) * (2 * 4 + 5 + 2 * 6) + 3 * 6),
    ),
    "length": (  # counted as if all keys existed
        [((2, 3, 4), f32), ((2, 5, 4), f32), ((2, 5, 6), f32), ((), i64)],
        lambda q, k, v, n: AttentionOp(q, k, v, length=n),
        2 * (3 * 5 * (2 * 4 + 5 + 2 * 6) + 3 * 6),
    ),
    "mask": (
        [((3, 4), f32), ((5, 4), f32), ((5, 6), f32), ((3, 5), f32)],
        AttentionOp,
        3 * 5 * (2 * 4 + 6 + 2 * 6) + 3 * 6,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operations(name: str) -> None:
    types, make, expected = CASES[name]
    op = make(*_values(types))
    assert count_operations(op) == expected
    op.verify()


def _values(types: list[tuple[Shape, Attribute]]) -> list[SSAValue]:
    entry = ir.Entry({f"x{n}": TensorType(type, shape) for n, (shape, type) in enumerate(types)})
    return [entry[f"x{n}"] for n in range(len(types))]
