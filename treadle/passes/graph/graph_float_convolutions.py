"""graph-float-convolutions: convolutions of integers that no matrix unit computes, in floats that hold their sums."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp, f64, i32
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from treadle.dialects.graph import CastOp, ConvOp
from treadle.dialects.graph.definition import int_list
from treadle.passes.graph.graph_quantized_products import is_byte_difference, is_constant
from treadle.passes.graph.rewriting import shape_of
from treadle.target import Target


@dataclass(frozen=True)
class GraphFloatConvolutionsPass(ModulePass):
    """Computes convolutions of i32 in f64.

    ```mlir
    %y = graph.conv %x, %w {...} : (tensor<1x8x9x9xi32>, tensor<8x8x3x3xi32>) -> tensor<1x8x7x7xi32>
    ```
    becomes
    ```mlir
    %0 = graph.cast %x to f64 : (tensor<1x8x9x9xi32>) -> tensor<1x8x9x9xf64>
    %1 = graph.cast %w to f64 : (tensor<8x8x3x3xi32>) -> tensor<8x8x3x3xf64>
    %2 = graph.conv %0, %1 {...} : (...) -> tensor<1x8x7x7xf64>
    %y = graph.cast %2 to i32 : (tensor<1x8x7x7xf64>) -> tensor<1x8x7x7xi32>
    ```
    Templates of convolutions are of floats; sums of products of bytes less zero points are exact in f64. Where `target`
    has a unit that multiplies bytes, dense convolutions of bytes by constants stay: they will be its products.
    """

    name = "graph-float-convolutions"
    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        has_unit = Target.parse(self.target).multiplies_bytes
        for conv in [inner for inner in op.walk() if isinstance(inner, ConvOp)]:
            if conv.type.get_element_type() == i32 and not (has_unit and _multiplies_bytes(conv)):
                _compute_in_floats(conv)


def _multiplies_bytes(op: ConvOp) -> bool:
    static = not any(DYNAMIC_INDEX in shape_of(value) for value in (*op.operands, op.result))
    return static and op.groups.value.data == 1 and is_constant(op.w) and is_byte_difference(op.x)


def _compute_in_floats(op: ConvOp) -> None:
    x, w = CastOp(op.x, f64), CastOp(op.w, f64)
    strides, pads, dilations = (int_list(op.properties, name) for name in ("strides", "pads", "dilations"))
    conv = ConvOp(x.result, w.result, strides, pads, dilations, op.groups.value.data)
    total = CastOp(conv.result, i32)
    for new in (x, w, conv, total):
        new.location = op.location
    total.result.name_hint = op.result.name_hint
    Rewriter.replace_op(op, [x, w, conv, total])


__all__ = ["GraphFloatConvolutionsPass"]
