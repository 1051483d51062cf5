"""graph-quantized-products: products of what was dequantised are products of the numbers, dequantised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp, bf16, f16, f32, i8, i32
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass

from treadle.dialects.graph import (
    BinaryOp,
    CastOp,
    ConstantOp,
    ConvOp,
    MatmulOp,
    Operator,
    PoolOp,
    ReshapeOp,
    TransposeOp,
    UnaryOp,
)
from treadle.dialects.graph.definition import int_list
from treadle.dialects.graph.dtypes import SMALL_FLOATS, integer_limits, is_float, is_stored, ui8
from treadle.dialects.graph.evaluate import evaluate
from treadle.dialects.graph.linear import BF16
from treadle.passes.graph.float8_products import is_multiplied, widen_unless_multiplied
from treadle.passes.graph.rewriting import Array, constant_of, replace_with, shape_of, tensor
from treadle.schedules.templates.matmul_wgmma import outpaces_mma
from treadle.target import Target

# Values that operators compute from constants, before they are folded.

DEEPEST = 12
"""Operators between constants and a value, at most: parameters of quantisation have a cast, a difference, some moves
and products. Of a model's other values, whose operators are many, few are looked at."""


def is_constant(value: SSAValue, deepest: int = DEEPEST) -> bool:
    """Whether a value depends on constants only, through few operators."""
    op = value.owner
    if isinstance(op, ConstantOp):
        return True
    if not isinstance(op, Operator) or not op.operands or not deepest:
        return False
    return all(is_constant(operand, deepest - 1) for operand in op.operands)


def constant_value(value: SSAValue) -> Array | None:
    """The array of a constant in this sense; None for any other value."""
    return _value(value) if is_constant(value) else None


def _value(value: SSAValue) -> Array | None:
    op = value.owner
    if isinstance(op, ConstantOp):
        return constant_of(value)
    if not isinstance(op, Operator) or DYNAMIC_INDEX in shape_of(value):
        return None
    known: dict[SSAValue, Array] = {}
    for operand in op.operands:
        array = _value(operand)
        if array is None:
            return None
        known[operand] = array
    return evaluate(op, known)


# Tensors of floats that are bytes, less a zero point, or floats of 8 bits, times a scale.

LARGEST = 255
"""The size of a byte less a zero point, at most."""


@dataclass(frozen=True)
class Dequantized:
    """`numbers * scale`: a tensor of i32, each at most `LARGEST` in size, or of floats of 8 bits, and one of f32 that
    is broadcast to it.

    moves: the detached operations that compute both, in order, where the model moves what it has dequantised
    """

    numbers: SSAValue
    scale: SSAValue
    moves: tuple[Operation, ...] = ()


def dequantized(value: SSAValue) -> Dequantized | None:
    """What a tensor of floats was dequantised from; None if it was not. Reshapes of a tensor with one scale, and
    transposes, are repeated on the numbers. A result that is rounded to 16 bits counts as what it is rounded from."""
    op = value.owner
    if isinstance(op, CastOp) and tensor(op.x).get_element_type() == f32 and is_float(op.to) and not is_stored(op.to):
        return dequantized(op.x)
    if isinstance(op, BinaryOp) and op.kind.data == "mul" and tensor(value).get_element_type() == f32:
        numbers = _numbers(op.lhs) if shape_of(op.lhs) == op.shape else None
        return None if numbers is None else Dequantized(numbers, op.rhs)
    if not isinstance(op, ReshapeOp | TransposeOp):
        return None
    found = dequantized(op.x)
    if found is None:
        return None
    return _reshaped(op, found) if isinstance(op, ReshapeOp) else _transposed(op, found)


def _numbers(value: SSAValue) -> SSAValue | None:
    """The numbers that a tensor of f32 is, which have another type; a zero point of floats of 8 bits is 0."""
    op = value.owner
    if isinstance(op, BinaryOp) and op.kind.data == "sub" and op.shape == shape_of(op.lhs):
        zero = constant_value(op.rhs)
        found = None if zero is None or zero.any() else _numbers(op.lhs)
        return found if found is not None and tensor(found).get_element_type() in SMALL_FLOATS else None
    if not isinstance(op, CastOp):
        return None
    known = tensor(op.x).get_element_type() in SMALL_FLOATS or is_byte_difference(op.x)
    return op.x if known else None


def is_byte_difference(value: SSAValue) -> bool:
    """Whether a tensor of i32 is one of bytes, or one of bytes less a zero point that is a byte of the same type."""
    op = value.owner
    if isinstance(op, CastOp):
        return op.type.get_element_type() == i32 and tensor(op.x).get_element_type() in (i8, ui8)
    if not isinstance(op, BinaryOp) or op.kind.data != "sub":
        return False
    x = op.lhs.owner
    if not isinstance(x, CastOp) or not is_byte_difference(op.lhs) or op.shape != shape_of(op.lhs):
        return False
    return _is_number_of(op.rhs, tensor(x.x).get_element_type())


def _is_number_of(zero: SSAValue, element: Attribute) -> bool:
    """Whether a tensor of i32 is one of numbers that a type of bytes has."""
    cast, number = zero.owner, constant_value(zero)
    if number is not None:
        lowest, highest = integer_limits(element)
        return bool(np.all((lowest <= number) & (number <= highest)))
    return isinstance(cast, CastOp) and tensor(cast.x).get_element_type() == element


def _reshaped(op: ReshapeOp, found: Dequantized) -> Dequantized | None:
    if prod(shape_of(found.scale)) != 1:
        return None
    numbers = ReshapeOp(found.numbers, op.shape)
    scale = ReshapeOp(found.scale, [])
    return Dequantized(numbers.result, scale.result, (*found.moves, numbers, scale))


def _transposed(op: TransposeOp, found: Dequantized) -> Dequantized:
    order = int_list(op.properties, "perm")
    numbers = TransposeOp(found.numbers, order)
    shape = shape_of(found.scale)
    whole = ReshapeOp(found.scale, [*[1] * (len(order) - len(shape)), *shape])
    scale = TransposeOp(whole.result, order)
    return Dequantized(numbers.result, scale.result, (*found.moves, numbers, whole, scale))


# Divisions by the scale of a result, as part of the factors and terms that are there anyway.


def divided(value: SSAValue, scale: SSAValue) -> list[Operation]:
    """The detached operations of which the last gives `value / scale`, without a division of what is no constant.

    None of them where there is no such form: `scale` has to be one positive constant, and `value` sums, maxima and
    moves, which nothing else reads, of products of integers by constants.
    """
    of_scale = constant_value(scale)
    if of_scale is None or of_scale.size != 1 or not of_scale.reshape(-1)[0] > 0:
        return []
    new: list[Operation] = []
    if _divided(value, scale, new) is None:
        discard(new)
        return []
    return new


def discard(detached: Sequence[Operation]) -> None:
    """Erases operations that were not inserted, so that they read nothing any more."""
    for op in reversed(detached):
        op.erase()


def _divided(value: SSAValue, scale: SSAValue, new: list[Operation]) -> SSAValue | None:
    op = value.owner
    if is_constant(value):
        return _quotient(value, scale, new)
    if len(list(value.uses)) != 1 or tensor(value).get_element_type() != f32:
        return None
    if isinstance(op, BinaryOp) and op.kind.data == "mul":
        sides = ((op.lhs, op.rhs), (op.rhs, op.lhs))
        number, factor = next((pair for pair in sides if is_constant(pair[1])), (None, None))
        if number is None or factor is None or not isinstance(number.owner, CastOp):
            return None
        operands: list[SSAValue | None] = [number, _quotient(factor, scale, new)]
    elif isinstance(op, BinaryOp) and op.kind.data in ("add", "sub", "max", "min"):
        operands = [_divided(x, scale, new) for x in op.operands]
    elif (isinstance(op, UnaryOp) and op.kind.data == "relu") or isinstance(op, ReshapeOp | TransposeOp):
        operands = [_divided(op.x, scale, new)]
    else:
        return None
    known = [x for x in operands if x is not None]
    if len(known) < len(operands):
        return None
    new.append(op.__class__.create(operands=known, result_types=[op.result.type], properties=op.properties))
    return new[-1].results[0]


def _quotient(value: SSAValue, scale: SSAValue, new: list[Operation]) -> SSAValue | None:
    """A constant divided by the scale; None where that overflows, or loses bits to a subnormal number."""
    a, b = constant_value(value), constant_value(scale)
    if a is None or b is None or a.dtype != np.float32:
        return None
    with np.errstate(all="ignore"):
        found = np.abs(a.astype(np.float64) / b.reshape(-1)[0])
    limits = np.finfo(np.float32)
    if not np.all((a == 0) | ((found >= limits.tiny) & (found <= limits.max))):
        return None
    one = ReshapeOp(scale, [])
    assert prod(shape_of(scale)) == 1
    new += [one, BinaryOp("div", value, one.result)]
    return new[-1].results[0]


_MOST_TERMS = (1 << 31) // LARGEST**2
"""Terms of a sum that i32 holds: a term is a product of two bytes less zero points."""
_MOST_EXACT_TERMS = (1 << 24) // LARGEST**2
"""Terms of a sum that f32 holds exactly."""


@dataclass(frozen=True)
class GraphQuantizedProductsPass(ModulePass):
    """Multiplies bytes less zero points in i32, and scales the sums, where `target` has a unit that multiplies bytes;
    and floats of 8 bits, with sums in f32, where it has one for those.

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

    Of floats of 8 bits,
    ```mlir
    %c = graph.matmul %x, %w {sums = f32, precision = "bf16"} : (tensor<64x64xf8E4M3FN>, ...) -> tensor<64x64xf32>
    ```
    takes the place of a product of `%x` and `%w`, each cast to f32 and scaled. Tensor cores carry its sums in 14 bits,
    less exact than those of f32: such products stay unless `precision` is f16 or bf16, and so do those whose operands
    do not lie along the terms, or that have too few tiles (docs/adr/0099). A product with `sums = f32` that a model
    asks for is one of f32 where the target has no such unit.

    The first pass that looks at weights: folding constants would dequantise them. Source: Jacob et al., "Quantization
    and training of neural networks for efficient integer-arithmetic-only inference", CVPR 2018, section 2.
    """

    name = "graph-quantized-products"
    target: str = "cpu"
    precision: str = "f32"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = Target.parse(self.target)
        for product in [inner for inner in op.walk() if isinstance(inner, MatmulOp)]:
            if product.is_of_small_floats:
                widen_unless_multiplied(product, target)
            elif target.has_warpgroups:
                _multiply_small_floats(product, target, self.precision)
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
    right = op.operands[1]
    is_known = is_constant(right) and (isinstance(op, ConvOp) or len(shape_of(right)) == 2)
    if not is_known and not (any_right and isinstance(op, MatmulOp)):
        return
    _scale_behind(op, i32, lambda x, w: _product(op, x, w))


def _multiply_small_floats(op: MatmulOp, target: Target, precision: str) -> None:
    """Replaces a product of two tensors that were dequantised from floats of 8 bits, if it need not be as exact as one
    of f32."""
    element = op.type.get_element_type()
    allowed = precision if element == f32 else "f16" if element == f16 else "bf16" if element == bf16 else None
    if op.sums is not None or allowed not in ("f16", "bf16") or DYNAMIC_INDEX in op.shape:
        return

    def product(x: SSAValue, w: SSAValue) -> list[Operation]:
        made = MatmulOp(x, w, sums=f32, precision=BF16 if allowed == "bf16" else None)
        if is_multiplied(made, target) and outpaces_mma(made, target):
            return [made]
        made.erase()
        return []

    _scale_behind(op, None, product)


def _scale_behind(
    op: ConvOp | MatmulOp, element: Attribute | None, multiply: Callable[[SSAValue, SSAValue], list[Operation]]
) -> None:
    """Replaces a product of two dequantised tensors by that of their numbers, as `multiply` makes it of f32, times both
    scales; not if it makes none.

    element: of the numbers of both; None for floats of 8 bits
    """
    x, w = (dequantized(operand) for operand in op.operands)
    moves = [*(() if x is None else x.moves), *(() if w is None else w.moves)]
    elements = SMALL_FLOATS if element is None else (element,)
    if (
        x is None
        or w is None
        or not {tensor(each.numbers).get_element_type() for each in (x, w)} <= set(elements)
        or prod(shape_of(x.scale)) != 1
        or not _holds(x.scale, w.scale)
    ):
        discard(moves)
        return
    scale = _of_columns(op, w)
    product = multiply(x.numbers, w.numbers) if scale else []
    if not product:
        discard([*moves, *scale])
        return
    one = ReshapeOp(x.scale, [])
    factor = BinaryOp("mul", one.result, scale[-1].results[0])
    result = BinaryOp("mul", product[-1].results[0], factor.result)
    rounded = [] if op.type.get_element_type() == f32 else [CastOp(result.result, op.type.get_element_type())]
    replace_with(op, [*moves, *scale, *product, one, factor, result, *rounded])


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
    is_maximum = op.kind.data == "max" and op.type.get_element_type() == f32
    x = dequantized(op.x) if is_maximum and DYNAMIC_INDEX not in op.shape else None
    is_of_bytes = x is not None and tensor(x.numbers).get_element_type() == i32
    scale = None if x is None or not is_of_bytes else constant_value(x.scale)
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
    replace_with(op, [*new, BinaryOp("mul", new[-1].results[0], x.scale)])


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
        replace_with(quotient, new)
