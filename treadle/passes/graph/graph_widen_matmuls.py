"""graph-widen-matmuls: products of f16 and bf16 as products of f32, for targets whose templates sum in f32 only."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern, op_type_rewrite_pattern

from treadle.dialects.graph import CastOp, MatmulOp
from treadle.dialects.graph.dtypes import byte_width, is_float
from treadle.passes.graph.rewriting import replace


@dataclass(frozen=True)
class GraphWidenMatmulsPass(ModulePass):
    """Casts the operands of a narrow product to f32, and its result back.

    ```mlir
    %c = graph.matmul %a, %b : (tensor<8x4xf16>, tensor<4x8xf16>) -> tensor<8x8xf16>
    ```
    becomes
    ```mlir
    %0 = graph.cast %a to f32 : (tensor<8x4xf16>) -> tensor<8x4xf32>
    %1 = graph.cast %b to f32 : (tensor<4x8xf16>) -> tensor<4x8xf32>
    %2 = graph.matmul %0, %1 : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
    %c = graph.cast %2 to f16 : (tensor<8x8xf32>) -> tensor<8x8xf16>
    ```
    which is what a narrow product means: its sum runs in f32. The casts fuse; what is stored stays narrow.
    """

    name = "graph-widen-matmuls"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        PatternRewriteWalker(WidenMatmul(), apply_recursively=False).rewrite_module(op)


class WidenMatmul(RewritePattern):
    """A narrow product between casts."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: MatmulOp, rewriter: PatternRewriter) -> None:
        element = op.type.get_element_type()
        if not is_float(element) or byte_width(element) >= 4:
            return
        a, b = CastOp(op.a, f32), CastOp(op.b, f32)
        product = MatmulOp(a.result, b.result)
        replace(rewriter, op, [a, b, product, CastOp(product.result, element)])


__all__ = ["GraphWidenMatmulsPass"]
