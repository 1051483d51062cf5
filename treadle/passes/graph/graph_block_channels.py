"""graph-block-channels: convolutions, and what stands between them, on images in blocks of channels."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, bf16, f32, i32
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from treadle.dialects.graph import CastOp, ConvOp, PackedConvOp
from treadle.errors import TreadleError
from treadle.passes.graph.layout.blocked_channels import BlockedChannels, has_groups_of_blocks
from treadle.passes.graph.layout.blocked_tiles import BLOCK, has_panels, outputs_by_work
from treadle.passes.graph.layout.images import Images
from treadle.passes.graph.packed_tiles import BYTES
from treadle.passes.graph.rewriting import read_wide
from treadle.target import Target

_MOST_OUTPUTS = {"direct": 0, "winograd2": 2, "winograd4": 4}
"""The outputs of a tile along a dimension, by ways to compute a convolution."""


@dataclass(frozen=True)
class GraphBlockChannelsPass(ModulePass):
    """Rewrites convolutions, and the operators between them, for images `[N, C / lanes, spatial..., lanes]`, where
    `lanes` are those of a vector of the target.

    ```mlir
    %c = graph.conv %x, %w {...} : (tensor<1x64x56x56xf32>, tensor<96x64x1x1xf32>) -> tensor<1x96x56x56xf32>
    %b = graph.binary "add" %c, %bias : (tensor<1x96x56x56xf32>, tensor<96x1x1xf32>) -> tensor<1x96x56x56xf32>
    %y = graph.pool "max" %b {...} : (tensor<1x96x56x56xf32>) -> tensor<1x96x28x28xf32>
    ```
    becomes
    ```mlir
    %0 = %x as tensor<1x4x56x56x16xf32>, by a reshape and a transpose
    %1 = graph.compute "im2col" (%p, %k) { graph.at %0[0, %k / 16, %p / 56, %p % 56, %k % 16] } : tensor<3136x64xf32>
    %2 = graph.matmul %1, %filters : (tensor<3136x64xf32>, tensor<64x96xf32>) -> tensor<3136x96xf32>
    %3 = %2 as tensor<1x6x56x56x16xf32>, by a reshape and a transpose
    %4 = graph.binary "add" %3, %blocks_of_bias : (tensor<1x6x56x56x16xf32>, tensor<1x6x1x1x16xf32>) -> ...
    %5 = graph.compute "pool_max" (%n, %b, %h, %w, %l) { ... %4[%n, %b, %i, %j, %l] ... } : tensor<1x6x28x28x16xf32>
    %y = %5 as tensor<1x96x28x28xf32>, by a transpose and a reshape
    ```
    A dense convolution asks for its image in this form if its channels fill whole blocks, and reads another, such as
    the model's, as it is; operators that have a form propagate it. The transpose of a product's result is an epilogue
    that stores vectors, that of an operand of a product a prologue, and weights are constants. Groups of whole blocks
    are a batch of products. Depthwise convolutions and pooling take neighbouring channels as the lanes of vectors, so
    that neither strides nor borders divide these. Channels that are no multiple of `lanes` fill the last block in part,
    if at most a third more is computed then; nothing reads the rest. Constant filters of 3x3 and stride 1, where that
    is less work and `convolution` allows it, become
    ```mlir
    %y = graph.winograd_conv %0, %filters {outputs = 2 : i64, pads = array<i64: 1, 1, 1, 1>}
        : (tensor<1x4x56x56x16xf32>, tensor<16x64x96xf32>) -> tensor<1x6x56x56x16xf32>
    ```
    With a matrix unit that multiplies bf16, images of bf16 take part. Blocks have 32 channels there, which a tile's row
    holds, and dense convolutions by constant filters become
    ```mlir
    %s = graph.packed_conv %0, %panels {channels = 64 : i64, columns = 96 : i64, kernel = array<i64: 1, 1>, ...}
        : (tensor<1x2x56x56x32xbf16>, tensor<3x32x32x2xbf16>) -> tensor<1x3x56x56x32xf32>
    %3 = graph.cast %s to bf16 : (tensor<1x3x56x56x32xf32>) -> tensor<1x3x56x56x32xbf16>
    ```
    of which readers that widen it take the sums; up to twice the channels are computed. Convolutions of i32, whose
    images are bytes there, are products.

    Operators of symbolic extents, and of other types, stay as they are. Sources: Georganas et al., "Anatomy of
    high-performance deep learning convolutions on SIMD architectures", SC 2018; Liu et al., "Optimizing CNN model
    inference on CPUs", USENIX ATC 2019, section 3; Lavin and Gray, "Fast algorithms for convolutional neural networks",
    CVPR 2016.
    """

    name = "graph-block-channels"
    target: str = "cpu"
    convolution: str = "direct"
    """How 3x3 filters of stride 1 are computed: direct, or by Winograd's algorithm in tiles of at most 2x2 (winograd2)
    or 4x4 (winograd4) outputs where that is less work; F(4x4, 3x3) has about twice the rounding errors."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.convolution not in _MOST_OUTPUTS:
            raise TreadleError(f"unknown convolution {self.convolution!r}", self.name, _MOST_OUTPUTS)
        most = _MOST_OUTPUTS[self.convolution]
        target = Target.parse(self.target)
        unit = target.unit
        elements = (f32, *((bf16,) if unit.bf16 else ()), *((i32, *BYTES) if unit.bytes else ()))
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and function.body.blocks:
                block = function.body.block
                packs = unit.bf16 and _takes_panels(block, target.lanes)
                lanes = BLOCK if packs else target.lanes
                layout = BlockedChannels(lanes, lambda conv: outputs_by_work(conv, most), elements, packs)
                Images(block, layout).run()
                _read_sums(block)


def _takes_panels(block: Block, lanes: int) -> bool:
    """Whether a function has convolutions by panels, and none whose groups fill blocks of `lanes` channels only."""
    convolutions = [op for op in block.ops if isinstance(op, ConvOp)]
    narrow = [op for op in convolutions if has_groups_of_blocks(op, lanes) and not has_groups_of_blocks(op, BLOCK)]
    return any(map(has_panels, convolutions)) and not narrow


def _read_sums(block: Block) -> None:
    """Has readers that widen what a convolution's sums are rounded to read the sums, as those of other products do."""
    for total in [op for op in block.ops if isinstance(op, PackedConvOp)]:
        for rounding in [use.operation for use in total.result.uses]:
            if isinstance(rounding, CastOp):
                read_wide(rounding.result, total.result)
                if not rounding.result.uses:
                    Rewriter.erase_op(rounding)


__all__ = ["GraphBlockChannelsPass"]
