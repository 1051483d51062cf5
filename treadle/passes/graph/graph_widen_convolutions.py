"""graph-widen-convolutions: windows over images of bf16 that no product computes, in f32."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType, bf16, f32
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from treadle.dialects.graph import CastOp, ConvOp, PoolOp
from treadle.passes.graph.graph_mixed_precision import read_wide
from treadle.passes.graph.rewriting import tensor
from treadle.target import Target


@dataclass(frozen=True)
class GraphWidenConvolutionsPass(ModulePass):
    """Computes convolutions of groups, and maximum pooling, of bf16 in f32, where dense convolutions are products on
    `target`'s matrix unit, if it multiplies bf16.

    ```mlir
    %n = graph.cast %x to bf16 : (tensor<1x32x28x28xf32>) -> tensor<1x32x28x28xbf16>
    %c = graph.conv %n, %w {... groups = 32 : i64} : (..., tensor<32x1x3x3xbf16>) -> tensor<1x32x28x28xbf16>
    %y = graph.cast %c to f32 : (tensor<1x32x28x28xbf16>) -> tensor<1x32x28x28xf32>
    ```
    becomes
    ```mlir
    %0 = graph.cast %w to f32 : (tensor<32x1x3x3xbf16>) -> tensor<32x1x3x3xf32>
    %y = graph.conv %x, %0 {...} : (tensor<1x32x28x28xf32>, tensor<32x1x3x3xf32>) -> tensor<1x32x28x28xf32>
    ```
    They are vector code, which is of f32; the image and the result are rounded only for others that read them so. A
    maximum is the same of rounded numbers, so that pooling reads these, which are half as long. Without such a unit
    they stay.
    """

    name = "graph-widen-convolutions"
    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if not Target.parse(self.target).unit.bf16:
            return
        for window in [inner for inner in op.walk() if isinstance(inner, ConvOp | PoolOp)]:
            if window.type.get_element_type() == bf16 and not _is_product(window):
                _widen(window)


def _is_product(op: ConvOp | PoolOp) -> bool:
    return isinstance(op, ConvOp) and op.groups.value.data == 1


def _widen(op: ConvOp | PoolOp) -> None:
    casts = [CastOp(operand, f32) for operand in op.operands]
    type = TensorType(f32, op.shape)
    operands = [cast.result for cast in casts]
    wide = op.__class__.create(operands=operands, result_types=[type], properties=op.properties)
    narrow = CastOp(wide.results[0], bf16)
    for new in (*casts, wide, narrow):
        new.location = op.location
    narrow.result.name_hint = op.result.name_hint
    Rewriter.replace_op(op, [*casts, wide, narrow])
    read_wide(narrow.result, wide.results[0])
    if not narrow.result.uses:
        Rewriter.erase_op(narrow)
    if isinstance(op, ConvOp):
        for cast in casts:
            _take_source(cast)


def _take_source(cast: CastOp) -> None:
    """Reads what a widened tensor was rounded from."""
    rounding = cast.x.owner
    source: SSAValue | None = rounding.x if isinstance(rounding, CastOp) else None
    if source is None or tensor(source).get_element_type() != f32:
        return
    Rewriter.replace_op(cast, [], [source])
    if isinstance(rounding, CastOp) and not rounding.result.uses:
        Rewriter.erase_op(rounding)


__all__ = ["GraphWidenConvolutionsPass"]
