"""graph-decompose-attention: attention as products and a softmax, where no template schedules it whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp, f32
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern, op_type_rewrite_pattern

from treadle.dialects.graph import (
    AttentionOp,
    BinaryOp,
    BroadcastOp,
    CastOp,
    MaskOp,
    MatmulOp,
    ReshapeOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
    WhereOp,
)
from treadle.dialects.graph.dtypes import byte_width, numpy_dtype
from treadle.passes.graph.one_kernel import has_template
from treadle.passes.graph.rewriting import constant_op, replace, shape_of, tensor
from treadle.target import Target

Step = Callable[[Operation], SSAValue]


@dataclass(frozen=True)
class GraphDecomposeAttentionPass(ModulePass):
    """Writes `graph.attention` as a product, scale, mask, softmax and a second product.

    ```mlir
    %y = graph.attention %q, %k, %v mask %m {scale = 1.250000e-01 : f64, causal = 0 : i64, guard = 0 : i64} : (...)
    ```
    becomes
    ```mlir
    %t = graph.transpose %k {perm = array<i64: 0, 2, 1>} : (tensor<12x128x64xf32>) -> tensor<12x64x128xf32>
    %s = graph.matmul %q, %t : (...) -> tensor<12x128x128xf32>
    %a = graph.binary "mul" %s, %scale : (...)
    %b = graph.binary "add" %a, %m : (...)
    %p = graph.softmax %b {dim = 2 : i64} : (...)
    %y = graph.matmul %p, %v : (...) -> tensor<12x128x64xf32>
    ```
    Heads that share keys and values read them through a broadcast; beyond a `length`, `graph.mask` makes scores -inf,
    probabilities and values 0. Scores of f16 and bf16 operands are f32 from the
    scale to the softmax.

    target: the hardware; an operator that one of its templates schedules whole stays as it is.
    """

    name = "graph-decompose-attention"
    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pattern = DecomposeAttention(Target.parse(self.target))
        PatternRewriteWalker(pattern, apply_recursively=False).rewrite_module(op)


@dataclass(frozen=True)
class DecomposeAttention(RewritePattern):
    """Attention as the operators that it is made of, unless a template of the target schedules it whole."""

    target: Target

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: AttentionOp, rewriter: PatternRewriter) -> None:
        if DYNAMIC_INDEX not in op.scores_shape and not has_template(op, self.target):
            replace(rewriter, op, written_out(op))


def written_out(op: AttentionOp) -> list[Operation]:
    """Attention of constant shapes as the operators that it is made of, of which the last gives its result."""
    steps: list[Operation] = []

    def step(new: Operation) -> SSAValue:
        steps.append(new)
        return new.results[0]

    element = op.type.get_element_type()
    wide = element if byte_width(element) >= 4 else f32
    rank = len(op.shape)
    values = _below(op.v, op, rank - 2, 0.0, step)
    k, v = (_repeated(operand, op, step) for operand in (op.k, values))
    transposed = step(TransposeOp(k, [*range(rank - 2), rank - 1, rank - 2]))
    scores = _cast(step(MatmulOp(op.q, transposed)), wide, step)
    scores = _masked(op, scores, step)
    shares = step(SoftmaxOp(scores, rank - 1))
    if op.guard.value.data:
        zero = step(constant_op(np.array(0.0, numpy_dtype(wide))))
        shares = step(WhereOp(step(UnaryOp("isnan", shares)), zero, shares))
    shares = _below(_cast(shares, element, step), op, rank - 1, 0.0, step)
    step(MatmulOp(shares, v))
    return steps


def _repeated(value: SSAValue, op: AttentionOp, step: Step) -> SSAValue:
    """Keys or values, each head as often as query heads read it."""
    times, shape = op.group_size, shape_of(value)
    if times == 1:
        return value
    apart = step(ReshapeOp(value, [*shape[:-2], 1, *shape[-2:]]))
    spread = step(BroadcastOp(apart, [*shape[:-2], times, *shape[-2:]]))
    return step(ReshapeOp(spread, [*shape[:-3], shape[-3] * times, *shape[-2:]]))


def _masked(op: AttentionOp, scores: SSAValue, step: Step) -> SSAValue:
    element = tensor(scores).get_element_type()
    dtype = numpy_dtype(element)
    if op.scale.value.data != 1.0:
        scores = step(BinaryOp("mul", scores, step(constant_op(np.array(op.scale.value.data, dtype)))))
    if op.mask is not None:
        scores = step(BinaryOp("add", scores, _cast(op.mask, element, step)))
    if op.causal.value.data:
        rows, keys = op.scores_shape[-2:]
        seen = step(constant_op(np.tri(rows, keys, keys - rows, dtype=np.bool_)))
        if op.offset is not None:
            numbers = (np.arange(keys), np.arange(rows).reshape(rows, 1))
            column, row = (step(constant_op(each)) for each in numbers)
            seen = step(BinaryOp("le", column, step(BinaryOp("add", row, op.offset))))
        scores = step(WhereOp(seen, scores, step(constant_op(np.array(-inf, dtype)))))
    return _below(scores, op, len(op.shape) - 1, -inf, step)


def _below(x: SSAValue, op: AttentionOp, dim: int, fill: float, step: Step) -> SSAValue:
    """`x`, in which a number stands along `dim` for keys beyond the length."""
    return x if op.length is None else step(MaskOp(x, op.length, dim, fill))


def _cast(value: SSAValue, element: Attribute, step: Step) -> SSAValue:
    return value if tensor(value).get_element_type() == element else step(CastOp(value, element))


__all__ = ["GraphDecomposeAttentionPass", "written_out"]
