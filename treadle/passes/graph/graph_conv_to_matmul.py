"""graph-conv-to-matmul: convolutions as matrix products (implicit GEMM)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp, i32
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)

from treadle.dialects.graph import ConvOp, ConvTransposeOp, MatmulOp, PadOp, ReshapeOp, TransposeOp
from treadle.dialects.graph.compute import ComputeOp
from treadle.dialects.graph.definition import int_list
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.passes.graph.layout.channels_last import has_no_overlap, is_pointwise
from treadle.passes.graph.layout.layout import Layout, windows
from treadle.passes.graph.rewriting import constant_op, replace, shape_of

WIDE_FROM = 196
"""Pixels from which a 1x1 convolution takes its input, as it is, as the right operand."""


@dataclass(frozen=True)
class GraphConvToMatmulPass(ModulePass):
    """Writes a convolution of one group as a matmul; grouped ones stay as their definition.

    A 1x1 convolution of floats, of stride 1 without padding and with at least 196 pixels, multiplies from the left:
    ```mlir
    %y = graph.conv %x, %w {...} : (tensor<1x64x28x28xf32>, tensor<32x64x1x1xf32>) -> tensor<1x32x28x28xf32>
    ```
    becomes
    ```mlir
    %0 = graph.reshape %w {shape = array<i64: 32, 64>} : ...
    %1 = graph.reshape %x {shape = array<i64: 64, 784>} : ...
    %2 = graph.matmul %0, %1 : (tensor<32x64xf32>, tensor<64x784xf32>) -> tensor<32x784xf32>
    %y = graph.reshape %2 {shape = array<i64: 1, 32, 28, 28>} : ...
    ```
    Of any other, rows are pixels, columns output channels; `im2col` only moves data and becomes a prologue:
    ```mlir
    %0 = graph.compute "im2col" (%p, %k) { graph.at %x[...] where %inside else %zero } : tensor<196x576xf32>
    %1 = graph.matmul %0, %w_transposed : (tensor<196x576xf32>, tensor<576x64xf32>) -> tensor<196x64xf32>
    %y = transpose, reshape of %1
    ```
    With `pad`, a padded input is first stored with its border of zeros: windows are then read without a predicate,
    which pays where a thread would test it for every product (a CPU). A transposed convolution whose stride equals its
    kernel is a matmul whose columns are shuffled into pixels. On a GPU, `graph-channels-last` has rewritten all
    convolutions before. Source: Chetlur et al., "cuDNN: Efficient primitives for deep learning", 2014, section 3.
    """

    name = "graph-conv-to-matmul"
    pad: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        patterns: list[RewritePattern] = [PointwiseConvolution(), Convolution(), PixelShuffle()]
        if self.pad:
            patterns.insert(0, PaddedConvolution())
        PatternRewriteWalker(GreedyRewritePatternApplier(patterns)).rewrite_module(op)


class PaddedConvolution(RewritePattern):
    """A convolution with padding as one without, of the padded input."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ConvOp, rewriter: PatternRewriter) -> None:
        pads = int_list(op.properties, "pads")
        if not _is_dense(op) or not any(pads):
            return
        rank = len(pads) // 2
        zero = constant_op(np.zeros((), numpy_dtype(op.type.get_element_type())))
        padded = PadOp("constant", op.x, zero.result, [0, 0, *pads[:rank], 0, 0, *pads[rank:]])
        strides, dilations = (int_list(op.properties, name) for name in ("strides", "dilations"))
        conv = ConvOp(padded.result, op.w, strides, [0] * len(pads), dilations, op.groups.value.data)
        replace(rewriter, op, [zero, padded, conv])


class PointwiseConvolution(RewritePattern):
    """A 1x1 convolution as `W[OC, IC] x X[N, IC, pixels]`, for few pixels `X[N, pixels, IC] x W[IC, OC]`."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ConvOp, rewriter: PatternRewriter) -> None:
        if not _is_dense(op) or not is_pointwise(op):
            return
        n, oc, *spatial = op.shape
        ic, pixels = shape_of(op.x)[1], prod(spatial)
        weights = ReshapeOp(op.w, [oc, ic])
        columns = ReshapeOp(op.x, [*_batch(n), ic, pixels])
        # Of integers are products on a matrix unit, whose right operand is constant.
        if pixels >= WIDE_FROM and op.type.get_element_type() != i32:
            product = MatmulOp(weights.result, columns.result)
            replace(rewriter, op, [weights, columns, product, ReshapeOp(product.result, op.shape)])
            return
        transposed, rows = _swapped(weights.result), _swapped(columns.result)
        product = MatmulOp(rows.result, transposed.result)
        replace(rewriter, op, [weights, transposed, columns, rows, product, *_as_image(product.result, op.shape)])


class Convolution(RewritePattern):
    """Any other convolution of one group as `im2col(X)[N, pixels, K] x W[K, OC]`."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ConvOp, rewriter: PatternRewriter) -> None:
        if not _is_dense(op):
            return
        oc = op.shape[1]
        weights = ReshapeOp(op.w, [oc, prod(shape_of(op.w)[1:])])
        rows, transposed = im2col(op), _swapped(weights.result)
        product = MatmulOp(rows.result, transposed.result)
        replace(rewriter, op, [weights, rows, transposed, product, *_as_image(product.result, op.shape)])


class PixelShuffle(RewritePattern):
    """A transposed convolution without overlap as `X[N, pixels, IC] x W[IC, OC * kernel]` and a shuffle."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ConvTransposeOp, rewriter: PatternRewriter) -> None:
        if not has_no_overlap(op) or DYNAMIC_INDEX in op.shape:
            return
        n, ic, *source = shape_of(op.x)
        _, oc, *kernel = shape_of(op.w)
        rank = len(kernel)
        columns = ReshapeOp(op.x, [*_batch(n), ic, prod(source)])
        rows = _swapped(columns.result)
        weights = ReshapeOp(op.w, [ic, oc * prod(kernel)])
        product = MatmulOp(rows.result, weights.result)
        apart = ReshapeOp(product.result, [n, *source, oc, *kernel])
        pairs = [axis for d in range(rank) for axis in (1 + d, 2 + rank + d)]
        shuffled = TransposeOp(apart.result, [0, 1 + rank, *pairs])
        image = ReshapeOp(shuffled.result, op.shape)
        replace(rewriter, op, [columns, rows, weights, product, apart, shuffled, image])


def im2col(op: ConvOp) -> ComputeOp:
    """The input's windows as rows `[N, pixels, K]` (no N if it is 1), K = (channel, kernel...) row-major."""
    plain = Layout(tuple(range(len(op.shape))))
    return windows(op, op.x, plain, Layout(plain.order[:-1]), shape_of(op.w)[1], batch=True)


def _is_dense(op: ConvOp) -> bool:
    shapes = (op.shape, shape_of(op.x), shape_of(op.w))
    return op.groups.value.data == 1 and not any(DYNAMIC_INDEX in shape for shape in shapes)


def _batch(n: int) -> list[int]:
    return [n] if n > 1 else []


def _swapped(value: SSAValue) -> TransposeOp:
    """The last two dimensions exchanged."""
    rank = len(shape_of(value))
    return TransposeOp(value, [*range(rank - 2), rank - 1, rank - 2])


def _as_image(value: SSAValue, shape: Sequence[int]) -> list[Operation]:
    """Rows of pixels, `[N, pixels, OC]`, as `[N, OC, spatial...]`."""
    transposed = _swapped(value)
    return [transposed, ReshapeOp(transposed.result, shape)]


__all__ = ["GraphConvToMatmulPass", "im2col"]
