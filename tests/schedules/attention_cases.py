"""Attention of many shapes: what the template's tests and the emulator's share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import SSAValue

from tests.helpers.limits import with_rounded_weights
from tests.schedules.row_cases import tensor
from treadle.backends.reference.bounded import Bounded
from treadle.dialects.graph import AttentionOp
from treadle.dialects.graph.dtypes import numpy_dtype

Array = NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Sizes:
    """Extents of one attention; `heads` query heads share `groups` heads of keys and values.

    m, n: queries and keys; d, e: sizes of queries and of values
    """

    batch: tuple[int, ...]
    heads: int
    groups: int
    m: int
    n: int
    d: int
    e: int

    @property
    def shapes(self) -> tuple[Shape, Shape, Shape]:
        """Of queries, keys and values; without heads, those are matrices."""
        outer, shared = ((*self.batch, h) if h else () for h in (self.heads, self.groups))
        return (*outer, self.m, self.d), (*shared, self.n, self.d), (*shared, self.n, self.e)

    @property
    def masks(self) -> list[Shape]:
        """Every way in which a mask broadcasts to the scores."""
        m, n = self.m, self.n
        whole = (*self.shapes[0][:-1], n)
        ones = (1,) * (len(whole) - 2)
        return [whole, (*ones, m, n), (*ones, 1, n), (*ones, m, 1), (m, n), (n,), (1, 1), ()]

    def __str__(self) -> str:
        return "x".join(map(str, (*self.batch, f"{self.heads}:{self.groups}", self.m, self.n, self.d, self.e)))


SIZES: list[Sizes] = [
    Sizes(batch, heads, groups, *sizes)
    for batch, heads, groups, *sizes in [
        ((), 0, 0, 1, 1, 1, 1), ((), 0, 0, 5, 7, 3, 2), ((), 1, 1, 1, 9, 4, 4), ((), 2, 2, 9, 1, 4, 8),
        ((), 2, 1, 3, 5, 1, 3), ((1,), 3, 3, 4, 4, 7, 1), ((2,), 2, 1, 7, 3, 5, 5), ((1,), 4, 2, 2, 17, 2, 11),
        ((2, 1), 2, 2, 3, 16, 8, 4), ((1,), 6, 3, 2, 6, 3, 3), ((1,), 6, 1, 1, 5, 5, 7), ((1,), 1, 1, 16, 16, 16, 16),
        ((1,), 1, 1, 17, 33, 8, 8), ((1,), 1, 1, 31, 15, 4, 12), ((1,), 1, 1, 4, 70, 6, 2), ((1,), 1, 1, 8, 64, 4, 4),
        ((), 1, 1, 5, 65, 3, 17), ((), 1, 1, 2, 3, 64, 64), ((), 1, 1, 3, 2, 13, 97), ((), 1, 1, 3, 2, 97, 13),
        ((), 1, 1, 1, 130, 4, 4), ((), 1, 1, 40, 2, 2, 2), ((), 1, 1, 20, 7, 3, 5), ((), 3, 1, 6, 20, 10, 6),
        ((3,), 1, 1, 2, 2, 2, 2), ((1, 2), 2, 1, 2, 5, 9, 10), ((), 1, 1, 12, 12, 40, 80), ((), 1, 1, 1, 1, 131, 1),
        ((), 1, 1, 3, 4, 128, 20), ((), 2, 2, 11, 13, 17, 19), ((), 1, 1, 6, 33, 1, 1), ((), 1, 1, 23, 29, 31, 37),
    ]
]  # fmt: skip
SMALL = Sizes((2,), 4, 2, 5, 19, 6, 7)


def attention(
    sizes: Sizes, dtype: str, mask: Shape | None = None, *, causal: bool = False, guard: bool = False
) -> AttentionOp:
    """The operator, whose operands belong to no program."""
    shapes = [*sizes.shapes, *([] if mask is None else [mask])]
    operands = [tensor(*shape, dtype=dtype) for shape in shapes]
    return AttentionOp(*operands, scale=sizes.d**-0.5, causal=causal, guard=guard)


def arrays(shapes: Sequence[Shape], dtype: str) -> list[Array]:
    """Normally distributed queries, keys and values; of a mask, a third is -inf, and so is its first row."""
    found = [np.asarray(np.random.default_rng([n, *s]).standard_normal(s)).astype(dtype) for n, s in enumerate(shapes)]
    for mask in found[3:]:
        mask[np.random.default_rng(7).random(mask.shape) < 1 / 3] = -np.inf
        if mask.ndim > 1 and mask.shape[-2] > 1:
            mask[..., 0, :] = -np.inf
    return found


def environment(op: AttentionOp) -> dict[SSAValue, Array]:
    """`arrays` for the operands of an operator."""
    shapes = [o.type.get_shape() for o in op.operands]  # pyright: ignore
    return dict(zip(op.operands, arrays(shapes, numpy_dtype(op.type.get_element_type()).name), strict=True))


def masked_by_floats(sizes: Sizes) -> tuple[AttentionOp, dict[SSAValue, Array]]:
    """Attention of float16 with a mask of float32 for all heads, and its inputs."""
    q, k, v = (tensor(*shape, dtype="float16") for shape in sizes.shapes)
    op = AttentionOp(q, k, v, tensor(sizes.m, sizes.n), scale=0.5)
    return op, {o: a.astype(np.float32) if o is op.mask else a for o, a in environment(op).items()}


def hidden_by(sizes: Sizes, number: float) -> tuple[AttentionOp, dict[SSAValue, Array], Bounded | None]:
    """The same, with a finite number in all of the mask, as exporters write it; what is accepted where it is so large
    that all keys count alike, and the definition in float64, in which differences remain, is no oracle."""
    op, env = masked_by_floats(sizes)
    env[op.operands[3]] = np.full((sizes.m, sizes.n), number, np.float32)
    if number > -1e38:
        return op, env, None
    alike = env[op.v].astype(np.float64).mean(-2, keepdims=True).repeat(op.group_size, axis=len(sizes.batch))
    mean = Bounded(np.broadcast_to(alike, op.type.get_shape()), np.full((), 2.0**-10))
    return op, env, with_rounded_weights(mean, env[op.v], sizes.n)
