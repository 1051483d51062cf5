"""A pass: a relu of a relu is the first."""

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)

from treadle.dialects.graph import UnaryOp
from treadle.plugins import PassPlugin


class DoubleRelu(RewritePattern):
    """`relu(relu(x))` is `relu(x)`."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: UnaryOp, rewriter: PatternRewriter) -> None:
        """Reads the first relu instead."""
        inner = op.x.owner
        if isinstance(inner, UnaryOp) and op.kind.data == inner.kind.data == "relu":
            rewriter.replace(op, (), (inner.result,))


@dataclass(frozen=True)
class DropDoubleRelu(ModulePass):
    """Replaces a relu of a relu by the first.

    ```mlir
    %a = graph.unary "relu" %x : (tensor<8xf32>) -> tensor<8xf32>
    %b = graph.unary "relu" %a : (tensor<8xf32>) -> tensor<8xf32>
    ```
    becomes `%a` alone.
    """

    name = "example-drop-double-relu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrites the module."""
        PatternRewriteWalker(GreedyRewritePatternApplier([DoubleRelu()])).rewrite_module(op)


DROP_DOUBLE_RELU = PassPlugin(
    DropDoubleRelu, after="graph-fold-constants", reason="Before operators become definitions, which have no names."
)
