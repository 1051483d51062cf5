"""graph-channels-last: convolutions, and what stands between them, on images whose channels are neighbours."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from treadle.passes.graph.layout.channels_last import ChannelsLast
from treadle.passes.graph.layout.images import Images


@dataclass(frozen=True)
class GraphChannelsLastPass(ModulePass):
    """Rewrites convolutions, and the operators between them, for images `[N, spatial..., C]`.

    ```mlir
    %c = graph.conv %x, %w {...} : (tensor<1x64x56x56xf16>, tensor<64x64x3x3xf16>) -> tensor<1x64x56x56xf16>
    %b = graph.binary "add" %c, %bias : (tensor<1x64x56x56xf16>, tensor<64x1x1xf16>) -> tensor<1x64x56x56xf16>
    %y = graph.pool "max" %b {...} : (tensor<1x64x56x56xf16>) -> tensor<1x64x28x28xf16>
    ```
    becomes
    ```mlir
    %0 = graph.transpose %x {perm = array<i64: 0, 2, 3, 1>} : ... -> tensor<1x56x56x64xf16>
    %1 = graph.compute "im2col" (%p, %k) { graph.at %0[...] where %inside else %zero } : tensor<3136x576xf16>
    %2 = graph.matmul %1, %filters : (tensor<3136x576xf16>, tensor<576x64xf16>) -> tensor<3136x64xf16>
    %3 = graph.reshape %2 {shape = array<i64: 1, 56, 56, 64>} : ...
    %4 = graph.binary "add" %3, %bias_last : (tensor<1x56x56x64xf16>, tensor<1x1x1x64xf16>) -> ...
    %5 = graph.compute "pool_max" (%n, %h, %w, %c) { ... %4[%n, %i, %j, %c] ... } : tensor<1x28x28x64xf16>
    %y = graph.transpose %5 {perm = array<i64: 0, 3, 1, 2>} : ... -> tensor<1x64x28x28xf16>
    ```
    A convolution asks for its input in this form, and operators that have a channels-last form propagate it; so an
    image is transposed only where it enters such a region, and where an operator outside reads it. The K dimension of a
    product then runs along channels: copies move 16 consecutive bytes (Hidet, ASPLOS 2023, section 5.2: a prologue that
    only moves data becomes the address of the copy), and stores write whole rows of channels. Operators of symbolic
    extents stay as they are.
    """

    name = "graph-channels-last"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and function.body.blocks:
                Images(function.body.block, ChannelsLast()).run()


__all__ = ["GraphChannelsLastPass"]
