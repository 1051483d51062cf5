"""graph-simplify: what can be left out, merged, or folded into weights."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import GreedyRewritePatternApplier, PatternRewriteWalker

from treadle.passes.graph.simplify.arithmetic import ARITHMETIC
from treadle.passes.graph.simplify.normalize import NORMALIZE
from treadle.passes.graph.simplify.shapes import SHAPES


@dataclass(frozen=True)
class GraphSimplifyPass(ModulePass):
    """Applies the patterns of `treadle.passes.graph.simplify` until none fits, and removes dead operators.

    ```mlir
    %c = graph.conv %x, %w {...} : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x6x6xf32>
    %n = graph.batch_norm %c, %scale, %bias, %mean, %variance {epsilon = 1.0e-05 : f64} : (...)
    %y = graph.reshape %n {shape = array<i64: 1, 4, 6, 6>} : (tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
    ```
    becomes, if all but `%x` is constant,
    ```mlir
    %c = graph.conv %x, %w_scaled {...} : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x6x6xf32>
    %y = graph.binary "add" %c, %b : (tensor<1x4x6x6xf32>, tensor<4x1x1xf32>) -> tensor<1x4x6x6xf32>
    ```
    Rewrites are exact, except that scales and biases after a convolution or a matmul are combined with its
    weights, which rounds them once more, that `x ** 3` rounds twice, and that `x + 0` forgets the sign of a
    zero.
    """

    name = "graph-simplify"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        patterns = [pattern() for pattern in (*ARITHMETIC, *SHAPES, *NORMALIZE)]
        PatternRewriteWalker(GreedyRewritePatternApplier(patterns)).rewrite_module(op)


__all__ = ["GraphSimplifyPass"]
