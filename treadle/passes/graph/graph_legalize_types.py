"""graph-legalize-types: operators of element types that neither templates nor the target's unit compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import DYNAMIC_INDEX, IntegerType, ModuleOp, StringAttr, TensorType, bf16, f16, f32, f64, i32
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from treadle.dialects.graph import CastOp, ComputeOp, ConstantOp, ConvOp, MatmulOp, Operator, PoolOp
from treadle.errors import TreadleError
from treadle.passes.graph.graph_quantized_products import DEEPEST, is_byte_difference, is_constant
from treadle.passes.graph.rewriting import read_wide, replace_with, shape_of, tensor
from treadle.target import Target

_BYTE = 8


def _beside_products(op: Operator, target: Target) -> bool:
    """Where dense convolutions are products on the unit, the other windows."""
    return target.unit.bf16 and not (isinstance(op, ConvOp) and op.groups.value.data == 1)


def _off_unit(op: Operator, target: Target) -> bool:
    """Where the unit does not multiply the bytes of a dense convolution by constants."""
    if not target.multiplies_bytes or not isinstance(op, ConvOp) or op.groups.value.data != 1:
        return True
    is_static = not any(DYNAMIC_INDEX in shape_of(value) for value in (*op.operands, op.result))
    return not (is_static and is_constant(op.w) and is_byte_difference(op.x))


def _by_dequantized(op: Operator, target: Target) -> bool:
    """Where a product's matrix is computed from constants, of which one has 8 bits or fewer: kernels of few rows
    dequantise it where they multiply, which roundings would delay, and those of many round it to tiles of the unit."""
    types = _constants(op.b) if isinstance(op, MatmulOp) else None
    return any(isinstance(each, IntegerType) and each.width.data <= _BYTE for each in types or ())


def _constants(value: SSAValue, deepest: int = DEEPEST) -> set[Attribute] | None:
    """The element types of the constants that a tensor is computed from, through few operators; None where it depends
    on anything else."""
    op = value.owner
    if isinstance(op, ConstantOp):
        return {op.type.get_element_type()}
    read = op.tensors() if isinstance(op, ComputeOp) else op.operands if isinstance(op, Operator) else ()
    found = set[Attribute]()
    for each in read if deepest else ():
        types = _constants(each, deepest - 1)
        if types is None:  # of most products the first path to an input says so
            return None
        found |= types
    return found or None


@dataclass(frozen=True)
class Rule:
    """In which type operators of a class compute where their operands and result are of one of `elements`, and
    `where` holds (None: always)."""

    operator: type[Operator]
    elements: tuple[Attribute, ...]
    computes_in: Attribute
    where: Callable[[Operator, Target], bool] | None = None
    reads_source: tuple[int, ...] = ()
    """Operands that, where they were rounded from `computes_in`, are read as they were before."""
    gives_exact: bool = False
    """Whether readers that widen the result to `computes_in` get what it is rounded from."""
    precision: str | None = None
    """To what kernels may round operands: the new operator's `precision`."""


RULES: tuple[Rule, ...] = (
    Rule(MatmulOp, (bf16,), f32, _by_dequantized, reads_source=(1,), gives_exact=True, precision="bf16"),
    Rule(MatmulOp, (f16, bf16), f32),
    Rule(ConvOp, (bf16,), f32, _beside_products, reads_source=(0, 1), gives_exact=True),
    Rule(PoolOp, (bf16,), f32, _beside_products, gives_exact=True),
    Rule(ConvOp, (i32,), f64, _off_unit),
)
"""The templates of products sum in f32; those of windows are of f32, and of f64, which holds the sums of products of
bytes less zero points. A maximum is the same of rounded numbers, which are half as long to read."""
_NAMES = tuple(dict.fromkeys(rule.operator.name.removeprefix("graph.") for rule in RULES))


@dataclass(frozen=True)
class GraphLegalizeTypesPass(ModulePass):
    """Computes an operator in the type that `RULES` says, between casts.

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
    The casts fuse; what is stored stays narrow. A matrix of few bits, which is dequantised from constants and rounded,
    is read before it was rounded, and kernels may round it instead:
    ```mlir
    %c = graph.matmul %a, %w {precision = "bf16"} : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
    ```
    Where a rule takes what a tensor was rounded from,
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
    and others read the rounded image and result.

    operators: names of those that are looked at; without any, all that have rules.
    """

    name = "graph-legalize-types"
    target: str = "cpu"
    operators: tuple[str, ...] = ()

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        unknown = [name for name in self.operators if name not in _NAMES]
        if unknown:
            raise TreadleError(f"no rule for operator {unknown[0]!r}", self.name, _NAMES)
        target, names = Target.parse(self.target), self.operators or _NAMES
        rules = [rule for rule in RULES if rule.operator.name.removeprefix("graph.") in names]
        for inner in list(op.walk()):
            fitting = (rule for rule in rules if isinstance(inner, rule.operator) and _applies(rule, inner, target))
            if isinstance(inner, Operator) and (rule := next(fitting, None)) is not None:
                _compute_in(inner, rule)


def _applies(rule: Rule, op: Operator, target: Target) -> bool:
    return op.type.get_element_type() in rule.elements and (rule.where is None or rule.where(op, target))


def _compute_in(op: Operator, rule: Rule) -> None:
    casts = [CastOp(operand, rule.computes_in) for operand in op.operands]
    operands, types = [cast.result for cast in casts], [TensorType(rule.computes_in, op.shape)]
    exact = op.__class__.create(operands=operands, result_types=types, properties=op.properties)
    if rule.precision is not None:
        exact.properties["precision"] = StringAttr(rule.precision)
    rounding = CastOp(exact.results[0], op.type.get_element_type())
    replace_with(op, [*casts, exact, rounding])
    if rule.gives_exact:
        read_wide(rounding.result, exact.results[0])
        _erase_unread(rounding)
    for position in rule.reads_source:
        _read_source(casts[position])


def _read_source(cast: CastOp) -> None:
    """Has readers of a widened tensor read what it was rounded from."""
    rounding = cast.x.owner
    if isinstance(rounding, CastOp) and tensor(rounding.x).get_element_type() == cast.type.get_element_type():
        Rewriter.replace_op(cast, [], [rounding.x])
        _erase_unread(rounding)


def _erase_unread(op: CastOp) -> None:
    if not op.result.uses:
        Rewriter.erase_op(op)


__all__ = ["GraphLegalizeTypesPass"]
