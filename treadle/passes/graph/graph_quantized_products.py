"""graph-quantized-products: products of what was dequantised are products of integers, dequantised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp, f32
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import BinaryOp, CastOp, ConvOp, MatmulOp, Operator, PoolOp, ReshapeOp, UnaryOp
from treadle.dialects.graph.definition import int_list
from treadle.passes.graph.quantized.constants import constant_value, is_constant
from treadle.passes.graph.quantized.dequantized import LARGEST, Dequantized, dequantized
from treadle.passes.graph.quantized.requantized import discard, divided
from treadle.passes.graph.rewriting import shape_of
from treadle.target import Target

_MOST_TERMS = (1 << 31) // LARGEST**2
"""Terms of a sum that i32 holds: a term is a product of two bytes less zero points."""
_MOST_EXACT_TERMS = (1 << 24) // LARGEST**2
"""Terms of a sum that f32 holds exactly."""


@dataclass(frozen=True)
class GraphQuantizedProductsPass(ModulePass):
    """Multiplies bytes less zero points in i32, and scales the sums, where `target` has a unit that multiplies bytes.

    ```mlir
    %a = graph.binary "mul" %x_f32, %s : (tensor<1x64x56x56xf32>, tensor<f32>) -> tensor<1x64x56x56xf32>
    %b = graph.binary "mul" %w_f32, %t : (tensor<64x64x1x1xf32>, tensor<64x1x1x1xf32>) -> tensor<64x64x1x1xf32>
    %y = graph.conv %a, %b {...} : (...) -> tensor<1x64x56x56xf32>
    ```
    where `%x_f32` and `%w_f32` are casts of `%x_i32` and of the constant `%w_i32`, becomes
    ```mlir
    %c = graph.conv %x_i32, %w_i32 {...} : (...) -> tensor<1x64x56x56xi32>
    %0 = graph.cast %c to f32 : (tensor<1x64x56x56xi32>) -> tensor<1x64x56x56xf32>
    %1 = graph.binary "mul" %s, %t : ..., as tensor<64x1x1xf32>
    %y = graph.binary "mul" %0, %1 : (tensor<1x64x56x56xf32>, tensor<64x1x1xf32>) -> tensor<1x64x56x56xf32>
    ```
    The sums are exact: those that i32 might not hold stay as they are, and so do products by batches of matrices, or by
    ones that are computed, on CPUs, whose units read panels of constants. So do products by known scales whose own
    product overflows, or is subnormal.
    Convolutions of groups are vector code, which is of f32: their integers become f32, where its sums are exact, too.
    What quantises a scaled sum again, `round(%y / %z)`, divides the constants that scale it, and shift it, instead.

    The first pass that looks at weights: folding constants would dequantise them. Source: Jacob et al., "Quantization
    and training of neural networks for efficient integer-arithmetic-only inference", CVPR 2018, section 2.
    """

    name = "graph-quantized-products"
    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = Target.parse(self.target)
        if not target.multiplies_bytes:
            return
        for operator in [inner for inner in op.walk() if isinstance(inner, ConvOp | MatmulOp | PoolOp)]:
            if isinstance(operator, PoolOp):
                _pool_bytes(operator)
            else:
                _multiply_integers(operator, any_right=target.is_cuda)
        for rounding in [inner for inner in op.walk() if isinstance(inner, UnaryOp)]:
            if rounding.kind.data == "round":
                _divide_constants(rounding)


def _multiply_integers(op: ConvOp | MatmulOp, *, any_right: bool) -> None:
    """Replaces a product of two dequantised tensors, of which the right one is a constant matrix, or filters; with
    `any_right` any matrices."""
    if op.type.get_element_type() != f32 or DYNAMIC_INDEX in op.shape:
        return
    left, right = op.operands
    is_known = is_constant(right) and (isinstance(op, ConvOp) or len(shape_of(right)) == 2)
    if not is_known and not (any_right and isinstance(op, MatmulOp)):
        return
    x, w = dequantized(left), dequantized(right)
    moves = [*(() if x is None else x.moves), *(() if w is None else w.moves)]
    if x is None or w is None or prod(shape_of(x.scale)) != 1 or not _holds(x.scale, w.scale):
        discard(moves)
        return
    scale = _of_columns(op, w)
    product = _product(op, x.numbers, w.numbers) if scale else []
    if not product:
        discard([*moves, *scale])
        return
    one = ReshapeOp(x.scale, [])
    factor = BinaryOp("mul", one.result, scale[-1].results[0])
    result = BinaryOp("mul", product[-1].results[0], factor.result)
    _replace(op, [*moves, *scale, *product, one, factor, result])


def _holds(a: SSAValue, b: SSAValue) -> bool:
    """Whether the product of two scales neither overflows nor loses bits to a subnormal number, as far as they are
    known."""
    first, second = constant_value(a), constant_value(b)
    if first is None or second is None:
        return True
    found, limits = np.abs(first.astype(np.float64) * second.astype(np.float64)), np.finfo(np.float32)
    return bool(np.all((found == 0) | ((found >= limits.tiny) & (found <= limits.max))))


def _pool_bytes(op: PoolOp) -> None:
    """Replaces the maximum of dequantised numbers by the dequantised maximum: that of one positive scale grows with the
    numbers."""
    x = dequantized(op.x) if op.kind.data == "max" and DYNAMIC_INDEX not in op.shape else None
    scale = None if x is None else constant_value(x.scale)
    if x is None or scale is None or scale.size != 1 or not scale.reshape(-1)[0] > 0:
        discard([] if x is None else x.moves)
        return
    numbers = x.numbers.owner
    difference = numbers if isinstance(numbers, BinaryOp) and not x.moves else None
    wide = CastOp(x.numbers if difference is None else difference.lhs, f32)
    pool = PoolOp.create(operands=[wide.result], result_types=[op.result.type], properties=op.properties)
    new: list[Operation] = [*x.moves, wide, pool]
    if difference is not None:
        zero = CastOp(difference.rhs, f32)
        new += [zero, BinaryOp("sub", pool.results[0], zero.result)]
    _replace(op, [*new, BinaryOp("mul", new[-1].results[0], x.scale)])


def _of_columns(op: ConvOp | MatmulOp, w: Dequantized) -> list[Operation]:
    """The scale of the right operand as it is broadcast to the result; nothing if terms of one sum differ in it."""
    shape, numbers = shape_of(w.scale), shape_of(w.numbers)
    if prod(shape) == 1:
        return [ReshapeOp(w.scale, [])]
    column = 0 if isinstance(op, ConvOp) else len(numbers) - 1
    whole = (*[1] * (len(numbers) - len(shape)), *shape)
    if any(extent > 1 for d, extent in enumerate(whole) if d != column):
        return []
    return [ReshapeOp(w.scale, [whole[column], *([1] * (len(numbers) - 2) if isinstance(op, ConvOp) else [])])]


def _product(op: ConvOp | MatmulOp, x: SSAValue, w: SSAValue) -> list[Operation]:
    """The product of integers, in f32; nothing where sums of that many terms might not be exact."""
    terms = op.reduction_extent if isinstance(op, MatmulOp) else prod(shape_of(op.w)[1:])
    groups = op.groups.value.data if isinstance(op, ConvOp) else 1
    if terms > (_MOST_TERMS if groups == 1 else _MOST_EXACT_TERMS):
        return []
    if isinstance(op, MatmulOp):
        product = MatmulOp(x, w)
        return [product, CastOp(product.result, f32)]
    window = [int_list(op.properties, name) for name in ("strides", "pads", "dilations")]
    if groups > 1:
        casts = [CastOp(x, f32), CastOp(w, f32)]
        return [*casts, ConvOp(casts[0].result, casts[1].result, window[0], window[1], window[2], groups)]
    conv = ConvOp(x, w, window[0], window[1], window[2], groups)
    return [conv, CastOp(conv.result, f32)]


def _divide_constants(op: UnaryOp) -> None:
    """Replaces the division under a rounding."""
    quotient = op.x.owner
    if not isinstance(quotient, BinaryOp) or quotient.kind.data != "div" or len(list(op.x.uses)) > 1:
        return
    if shape_of(quotient.lhs) == quotient.shape and (new := divided(quotient.lhs, quotient.rhs)):
        _replace(quotient, new)


def _replace(old: Operator, new: Sequence[Operation]) -> None:
    """Replaces an operator by operations, of which the last gives its result, and erases what nothing reads then."""
    for op in new:
        op.location = old.location
    new[-1].results[0].name_hint = old.result.name_hint
    sources = [operand.owner for operand in old.operands]
    Rewriter.insert_op(new, InsertPoint.before(old))
    Rewriter.replace_op(old, [], [new[-1].results[0]])
    while sources:
        source = sources.pop()
        if isinstance(source, Operator) and source.parent is not None and not source.result.uses:
            sources += [operand.owner for operand in source.operands]
            Rewriter.erase_op(source)


__all__ = ["GraphQuantizedProductsPass"]
