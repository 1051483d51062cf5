"""Scaled dot-product attention, as exporters write it out."""

from __future__ import annotations

from dataclasses import dataclass, field
from dataclasses import replace as changed
from math import inf, prod

import numpy as np
from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph import (
    AttentionOp,
    BroadcastOp,
    MaskOp,
    MatmulOp,
    ReshapeOp,
    SoftmaxOp,
    TransposeOp,
    WhereOp,
)
from treadle.dialects.graph.definition import int_list
from treadle.dialects.graph.dtypes import is_float, is_float_dtype, lowest, numpy_dtype
from treadle.dialects.graph.elementwise import broadcast_shapes
from treadle.passes.graph.recognize.patterns import Applied, Capture, Number, scalar_of, unary
from treadle.passes.graph.rewriting import Array, constant_of, constant_op, replace, shape_of, tensor

Shape = tuple[int, ...]


_X = Capture("x")
_GUARDED = Applied(WhereOp, (unary("isnan", _X), Number(0), _X))
_SUM = Capture("scores") + Capture("mask")


@dataclass(frozen=True)
class _Scores:
    """The operators between the product of queries and keys and the softmax."""

    product: MatmulOp
    scale: float = 1.0
    lead: Shape = ()
    """Batch dimensions of the scores where the mask is added; without a mask, those of the product."""
    mask: SSAValue | None = None
    causal: bool = False
    length: SSAValue | None = None
    """How many keys exist, where that is data."""
    made: tuple[Operation, ...] = ()
    """Operations that compute the mask, not inserted yet."""


@dataclass
class _Steps:
    """Operations to insert, in order."""

    operations: list[Operation] = field(default_factory=list[Operation])

    def add(self, op: Operation) -> SSAValue:
        self.operations.append(op)
        return op.results[0]

    def reshaped(self, value: SSAValue, shape: Shape) -> SSAValue:
        if shape_of(value) == shape:
            return value
        before = value.owner.x if isinstance(value.owner, ReshapeOp) else None
        return before if before is not None and shape_of(before) == shape else self.add(ReshapeOp(value, shape))


class WrittenAttention(RewritePattern):
    """`softmax(Q K^T * scale + mask) V` is `attention`, where nothing else uses scores or probabilities.

    Scales may stand at the queries, the keys or the scores; the mask may be added, or choose between scores and
    -inf (or the type's lowest number); reshapes may join and split batch dimensions on the way. Keys have a length
    where `graph.mask` makes scores -inf beyond it, and both probabilities and values 0.
    """

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: MatmulOp, rewriter: PatternRewriter) -> None:
        shares, shares_length = _without_mask(op.a, 1)
        values, values_length = _without_mask(op.b, 2)
        softmax, guard = _probabilities(shares)
        is_plain = op.sums is None and DYNAMIC_INDEX not in op.shape and is_float(op.type.get_element_type())
        if softmax is None or not is_plain:
            return
        scores = _scores(softmax.x)
        if scores is None or shape_of(op.b)[:-2] != op.shape[:-2]:
            return
        if not scores.length is shares_length is values_length:
            return
        product = scores.product
        if DYNAMIC_INDEX in product.shape or shape_of(product.a)[:-2] != shape_of(product.b)[:-2]:
            return
        steps = _Steps([*scores.made])
        q, q_scale = _unscaled(product.a, steps)
        k, k_scale = _unscaled(product.b, steps)
        lead = scores.lead
        q = steps.reshaped(q, (*lead, *shape_of(q)[-2:]))
        k = _transposed(k, steps)
        k = steps.reshaped(k, (*lead, *shape_of(k)[-2:]))
        v = steps.reshaped(values, (*lead, *shape_of(values)[-2:]))
        k, v = _ungrouped(k, v, steps)
        scale = scores.scale * q_scale * k_scale
        ends = {"mask": scores.mask, "length": scores.length}
        result = steps.add(AttentionOp(q, k, v, **ends, scale=scale, causal=scores.causal, guard=guard))
        steps.reshaped(result, op.shape)
        replace(rewriter, op, steps.operations)


def _without_mask(value: SSAValue, back: int, fill: float = 0.0) -> tuple[SSAValue, SSAValue | None]:
    """What a value is before a mask that nothing else uses, along the dimension `back` from the end, and the mask's
    extent; without such a mask, the value and None."""
    masked = _behind_batch_reshapes(value)
    mask = masked.owner
    if not isinstance(mask, MaskOp) or not masked.has_one_use():
        return value, None
    along = mask.dim.value.data == len(mask.shape) - back
    return (mask.x, mask.n) if along and mask.fill.value.data == fill else (value, None)


def _probabilities(value: SSAValue) -> tuple[SoftmaxOp | None, bool]:
    """The softmax over the last dimension that gives a value, and whether NaN is replaced by 0 after it."""
    value, guard = _behind_batch_reshapes(value), False
    choice = value.owner
    if isinstance(choice, WhereOp) and value.has_one_use():
        if not any(_GUARDED.matches(value)) or len(list(choice.b.uses)) != 2:
            return None, False
        value, guard = choice.b, True
    elif not value.has_one_use():
        return None, False
    softmax = value.owner
    if not isinstance(softmax, SoftmaxOp) or softmax.dim.value.data != len(softmax.shape) - 1:
        return None, False
    return softmax, guard


def _scores(value: SSAValue) -> _Scores | None:
    """The scaled and masked product that a value is; None if it is none, or something else uses a part of it."""
    value = _behind_batch_reshapes(value)
    if not value.has_one_use():
        return None
    if isinstance(product := value.owner, MatmulOp) and product.sums is None:
        return _Scores(product, lead=product.shape[:-2])
    scaled, scale = _scaled(value)
    if scaled is not None:
        inner = _scores(scaled)
        # A scale after the mask would scale the mask, too; one above 0 leaves -inf as it is.
        masked = inner is None or inner.mask is not None or inner.causal or (inner.length is not None and not scale > 0)
        return None if inner is None or masked else changed(inner, scale=inner.scale * scale)
    return _shortened(value) or _added_mask(value) or _chosen_mask(value)


def _shortened(value: SSAValue) -> _Scores | None:
    """Scores that are -inf for keys beyond a length."""
    before, length = _without_mask(value, 1, -inf)
    inner = None if length is None else _scores(before)
    return changed(inner, length=length) if inner is not None and inner.length in (None, length) else None


def _added_mask(value: SSAValue) -> _Scores | None:
    for match in _SUM.matches(value):
        scores, mask = match["scores"], match["mask"]
        inner = _scores(scores) if _spreads(mask, shape_of(scores)) else None
        if inner is not None and inner.mask is None and not inner.causal:
            lead = shape_of(value)[:-2]
            if _is_causal(mask, shape_of(scores)):
                return changed(inner, causal=True, lead=lead)
            return changed(inner, mask=mask, lead=lead)
    return None


def _chosen_mask(value: SSAValue) -> _Scores | None:
    """Scores where a condition holds (or fails), and elsewhere a number so low that it hides every score."""
    choice = value.owner
    if not isinstance(choice, WhereOp):
        return None
    for scores, other in ((choice.a, choice.b), (choice.b, choice.a)):
        low = scalar_of(other)
        if low is None or not _hides(low, other) or not _spreads(choice.condition, shape_of(scores)):
            continue
        inner = _scores(scores)
        if inner is None or inner.mask is not None or inner.causal:
            continue
        dtype = numpy_dtype(tensor(scores).get_element_type())
        zero, hidden = constant_op(np.array(0, dtype)), constant_op(np.array(low, dtype))
        branches = (zero.result, hidden.result) if scores is choice.a else (hidden.result, zero.result)
        mask = WhereOp(choice.condition, *branches)
        lead = shape_of(value)[:-2]
        condition = constant_of(choice.condition)
        shown = None if condition is None else condition if scores is choice.a else ~condition
        if shown is not None and _is_lower_triangle(shown, shape_of(scores)):
            return changed(inner, causal=True, lead=lead)
        return changed(inner, mask=mask.result, lead=lead, made=(zero, hidden, mask))
    return None


def _hides(number: float, like: SSAValue) -> bool:
    """Whether a number is -inf, or so near the type's lowest that adding any ordinary score rounds to the number
    itself."""
    dtype = numpy_dtype(tensor(like).get_element_type())
    return number <= lowest(dtype) / 2


def _is_causal(mask: SSAValue, scores: Shape) -> bool:
    """Whether a constant mask is 0 up to the diagonal that ends in the last corner, and hides everything beyond."""
    values = constant_of(mask)
    if values is None:
        choice = mask.owner
        values = _chosen_values(choice) if isinstance(choice, WhereOp) else None
    if values is None or not is_float_dtype(values.dtype):
        return False
    low = values <= lowest(values.dtype) / 2
    return bool(np.all(low | (values == 0))) and _is_lower_triangle(~low, scores)


def _chosen_values(choice: WhereOp) -> Array | None:
    """The values of a choice between constants, which `graph-fold-constants` leaves alone if the result would be much
    larger."""
    parts = [constant_of(v) for v in (choice.condition, choice.a, choice.b)]
    condition, a, b = parts
    return None if condition is None or a is None or b is None else np.where(condition, a, b)


def _is_lower_triangle(shown: Array, scores: Shape) -> bool:
    rows, keys = scores[-2:]
    if keys < rows or shown.ndim < 2 or shown.shape[-2:] != (rows, keys):
        return False
    return bool(np.all(shown == np.tri(rows, keys, keys - rows, dtype=np.bool_)))


def _spreads(mask: SSAValue, scores: Shape) -> bool:
    """Whether a mask broadcasts to the shape of the scores."""
    try:
        return broadcast_shapes([shape_of(mask), scores]) == scores
    except VerifyException:
        return False


def _scaled(value: SSAValue) -> tuple[SSAValue | None, float]:
    """What a value is a multiple of, and the factor."""
    for match in (_X * Number("factor")).matches(value):
        return match["x"], match.number("factor")
    for match in (_X / Number("divisor")).matches(value):
        if divisor := match.number("divisor"):
            return match["x"], 1.0 / divisor
    return None, 1.0


def _unscaled(value: SSAValue, steps: _Steps) -> tuple[SSAValue, float]:
    """Queries or keys before a scale, which may stand before reshapes and transposes; and the scale."""
    inner, scale = _scaled(value)
    if inner is not None:
        below, more = _unscaled(inner, steps)
        return below, scale * more
    mover = value.owner
    if isinstance(mover, ReshapeOp | TransposeOp) and value.has_one_use():
        below, scale = _unscaled(mover.x, steps)
        if below is not mover.x:
            shape = isinstance(mover, ReshapeOp)
            copy = ReshapeOp(below, mover.shape) if shape else TransposeOp(below, int_list(mover.properties, "perm"))
            return steps.add(copy), scale
    return value, 1.0


def _transposed(value: SSAValue, steps: _Steps) -> SSAValue:
    """The keys `[..., N, D]` of a right operand `[..., D, N]`."""
    rank = len(shape_of(value))
    perm = [*range(rank - 2), rank - 1, rank - 2]
    mover = value.owner
    if isinstance(mover, TransposeOp) and list(int_list(mover.properties, "perm")) == perm:
        return mover.x
    return steps.add(TransposeOp(value, perm))


def _ungrouped(k: SSAValue, v: SSAValue, steps: _Steps) -> tuple[SSAValue, SSAValue]:
    """Keys and values before every head of them was repeated equally often, if both were."""
    sources = [_before_repetition(k), _before_repetition(v)]
    if sources[0] is None or sources[1] is None or shape_of(sources[0])[:-2] != shape_of(sources[1])[:-2]:
        return k, v
    rank = len(shape_of(k))
    first, second = (steps.reshaped(s, (*shape_of(s)[: rank - 2], *shape_of(s)[-2:])) for s in sources if s is not None)
    return first, second


def _before_repetition(value: SSAValue) -> SSAValue | None:
    """`x[..., groups, 1, N, D]` of which a value is the reshaped broadcast along the dimension of extent 1."""
    joined = value.owner
    repeated = joined.x.owner if isinstance(joined, ReshapeOp) else None
    if not isinstance(repeated, BroadcastOp):
        return None
    before, after, shape = shape_of(repeated.x), repeated.shape, shape_of(value)
    rank = len(shape)
    if rank < 3 or len(after) != rank + 1 or len(before) != rank + 1 or before[rank - 2] != 1:
        return None
    kept = before[: rank - 2] == after[: rank - 2] and before[-2:] == after[-2:]
    heads = (*after[: rank - 3], prod(after[rank - 3 : rank - 1]), *after[-2:])
    return repeated.x if kept and heads == shape else None


def _behind_batch_reshapes(value: SSAValue) -> SSAValue:
    """The value before reshapes that keep its last two dimensions."""
    while isinstance(op := value.owner, ReshapeOp) and value.has_one_use():
        source = shape_of(op.x)
        if len(source) < 2 or len(op.shape) < 2 or source[-2:] != op.shape[-2:]:
            return value
        value = op.x
    return value


ATTENTION: tuple[type[RewritePattern], ...] = (WrittenAttention,)
"""This file's patterns."""
