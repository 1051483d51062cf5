"""graph-recognize: operators that exporters wrote out become one again."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import GreedyRewritePatternApplier, PatternRewriteWalker

from treadle.passes.graph.recognize.attention import ATTENTION
from treadle.passes.graph.recognize.layer_norm import NORMS
from treadle.passes.graph.recognize.softmax_gelu import GELU, SOFTMAX


@dataclass(frozen=True)
class GraphRecognizePass(ModulePass):
    """Finds layer and root-mean-square normalisation, gelu, softmax and attention among simpler operators.

    ```mlir
    %s = graph.matmul %q, %kt : (tensor<12x128x64xf32>, tensor<12x64x128xf32>) -> tensor<12x128x128xf32>
    %t = graph.binary "mul" %s, %eighth : (tensor<12x128x128xf32>, tensor<f32>) -> tensor<12x128x128xf32>
    %p = graph.softmax %t {dim = 2 : i64} : (tensor<12x128x128xf32>) -> tensor<12x128x128xf32>
    %y = graph.matmul %p, %v : (tensor<12x128x128xf32>, tensor<12x128x64xf32>) -> tensor<12x128x64xf32>
    ```
    becomes
    ```mlir
    %k = graph.transpose %kt {perm = array<i64: 0, 2, 1>} : (tensor<12x64x128xf32>) -> tensor<12x128x64xf32>
    %y = graph.attention %q, %k, %v {scale = 1.250000e-01 : f64, causal = 0 : i64, guard = 0 : i64} : (...)
    ```
    The patterns are those of `treadle.passes.graph.recognize`. A value that something else uses, too, keeps the
    operators that compute it; a normalisation over other than the last dimensions stays as it is.
    """

    name = "graph-recognize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        patterns = [pattern() for pattern in (*NORMS, *SOFTMAX, *GELU, *ATTENTION)]
        PatternRewriteWalker(GreedyRewritePatternApplier(patterns)).rewrite_module(op)


__all__ = ["GraphRecognizePass"]
