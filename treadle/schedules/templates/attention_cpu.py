"""Attention on a CPU: scores and weights never leave the cache of a core."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, prod
from typing import ClassVar

from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType, f32
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import AttentionOp
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.schedules.limits import check_limit, check_limits
from treadle.schedules.register_tile import MOST_ROWS, MOST_VECTORS, most_rows
from treadle.schedules.template import Anchor, Choices, Knob, Template, number
from treadle.schedules.templates.attention_blocks import mask_varies
from treadle.schedules.templates.attention_cpu_kernel import AttentionCpuKernel
from treadle.target import Target

_VECTORS = 2
"""Vectors of a default register tile."""


class AttentionCpu(Template):
    """A block computes `vectors` vectors of queries of one head, in three steps: their scores with all keys, in
    register tiles of `keys` keys by all queries of the block; the exponentials, and their sums; and the product with
    the values, in register tiles of `rows` queries by `columns` vectors of a value.

    A vector of scores is one of neighbouring queries, which the block transposes first. Keys and values are then read
    in place, and the largest score and the sum of a query need no fold across lanes. The scores of a block stay in
    the second cache, so that the softmax is exact: its largest score is known before the first exponential. Keys
    that causality hides from all queries of a block are skipped, as are those beyond a length; a value that causality
    hides and that is not finite makes rows NaN only where it is not skipped.

    Source: the two passes are those of Rabe and Staats (arXiv 2112.05682), section 2, with blocks of queries, of which
    all keys are one chunk.
    """

    name: ClassVar[str] = "attention_cpu"
    kind: ClassVar[str] = "cpu"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("vectors", tuple(range(1, MOST_VECTORS + 1)), "vectors of queries that a block computes"),
        Knob("keys", tuple(range(1, MOST_ROWS + 1)), "keys of a register tile of scores"),
        Knob("rows", tuple(range(1, MOST_ROWS + 1)), "queries of a register tile of the result"),
        Knob("columns", tuple(range(1, MOST_VECTORS + 1)), "vectors of its row"),
    )

    def fits(self, anchor: Anchor) -> bool:
        if not isinstance(anchor, AttentionOp) or DYNAMIC_INDEX in (*anchor.scores_shape, *anchor.shape):
            return False
        types = [o.type for o in anchor.operands if o is not anchor.length]
        return all(isinstance(t, TensorType) and t.get_element_type() == f32 and prod(t.get_shape()) for t in types)

    def has_default(self, anchor: Anchor, target: Target) -> bool:
        return isinstance(anchor, AttentionOp) and _default(anchor, target) is not None

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        assert isinstance(anchor, AttentionOp)
        found = _default(anchor, target)
        # A decision by hand may ask for the kernel where it is no default.
        return _choices(anchor, target, 1) if found is None else found

    def evaluations(self, anchor: Operation, operand: SSAValue, target: Target) -> Fraction | None:
        """A block transposes its queries once. It reads the keys one by one, which takes as long as a vector, and so is
        a mask that is the same for all queries; the values for every tile of rows."""
        assert isinstance(anchor, AttentionOp)
        choices = self.default(anchor, target)
        queries = number(choices, "vectors") * target.lanes
        *_, m, n, _, _ = _extents(anchor)
        blocks = ceil(m / queries)
        reads = [
            (anchor.q, Fraction(1)),
            (anchor.k, Fraction(anchor.group_size * blocks * target.lanes)),
            (anchor.v, Fraction(anchor.group_size * blocks * ceil(queries / number(choices, "rows")))),
        ]
        if anchor.mask is not None:
            assert isinstance(anchor.mask.type, TensorType)
            by_row, _ = mask_varies(anchor.mask.type)
            elements = prod(anchor.shape[:-2]) * n * (m if by_row else blocks * target.lanes)
            reads.append((anchor.mask, Fraction(elements, prod(anchor.mask.type.get_shape()))))
        if anchor.length is not None:
            reads.append((anchor.length, Fraction(prod(anchor.shape[:-2]) * blocks)))
        return sum((times for x, times in reads if x is operand), start=Fraction(0))

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        assert isinstance(anchor, AttentionOp)
        for what, lines, width in (("keys", "keys", "vectors"), ("rows", "rows", "columns")):
            used, vectors = number(choices, lines), number(choices, width)
            most = most_rows(target, vectors)
            check_limit(
                f"{what} of a tile",
                used,
                most,
                message=f"attention_cpu: a tile of {used} {what} by {vectors} vectors has {used - most} {what} too "
                f"many for {target.vector_registers} registers",
                accepted=f"at most {most} {what}",
            )
        check_limits("attention_cpu", [_cached(anchor, choices, target)], target)

    def canonical(self, anchor: Anchor, choices: Choices, target: Target) -> Choices:
        """A block has no more vectors of queries than there are, and a tile no more lines and vectors than a block."""
        *_, m, n, _, width = _extents(anchor)
        vectors = min(number(choices, "vectors"), ceil(m / target.lanes))
        return {
            "vectors": vectors,
            "keys": min(number(choices, "keys"), n),
            "rows": min(number(choices, "rows"), vectors * target.lanes),
            "columns": min(number(choices, "columns"), ceil(width / target.lanes)),
        }

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, AttentionOp)
        return AttentionCpuKernel(anchor, choices, target).build(name)


def _extents(anchor: Anchor) -> tuple[int, ...]:
    """Every extent of the operator: batch, heads, queries and keys, the sizes of queries and values."""
    assert isinstance(anchor, AttentionOp) and isinstance(anchor.q.type, TensorType)
    return (*anchor.scores_shape, anchor.q.type.get_shape()[-1], anchor.shape[-1])


def _cached(anchor: AttentionOp, choices: Choices, target: Target) -> tuple[str, int, int]:
    """The bytes of a block's scores and queries, and how many there may be of them."""
    *_, n, size, _ = _extents(anchor)
    lines = ceil(n / number(choices, "keys")) * number(choices, "keys") + size
    used = 4 * lines * number(choices, "vectors") * target.lanes
    return "bytes of scores and queries", used, target.l2_bytes // 2


def _choices(anchor: AttentionOp, target: Target, vectors: int) -> dict[str, Choice]:
    """A block of so many vectors of queries, with the largest tiles that stay in registers, evened out."""
    *_, m, n, _, width = _extents(anchor)
    columns = min(_VECTORS, ceil(width / target.lanes))
    keys = _even(n, most_rows(target, vectors))
    rows = _even(min(vectors * target.lanes, m), most_rows(target, columns))
    return {"vectors": vectors, "keys": keys, "rows": rows, "columns": columns}


def _even(extent: int, most: int) -> int:
    """The least length of tiles of which as few cover an extent as of the longest ones."""
    return ceil(extent / ceil(extent / most))


def _default(anchor: AttentionOp, target: Target) -> dict[str, Choice] | None:
    """Two vectors of queries, or one where there are no more or where the scores of two exceed half of the cache. None
    where those of one do, and for fewer queries than a vector has lanes, of which most would be idle: products and a
    softmax then vectorise along the keys."""
    *_, m, _, _, _ = _extents(anchor)
    if m < target.lanes:
        return None
    for vectors in range(min(_VECTORS, ceil(m / target.lanes)), 0, -1):
        choices = _choices(anchor, target, vectors)
        _, used, allowed = _cached(anchor, choices, target)
        if used <= allowed:
            return choices
    return None


__all__ = ["AttentionCpu"]
