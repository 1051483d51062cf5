"""graph-mixed-precision: products, convolutions and attention in a narrower type, the rest in f32."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType, bf16, f16, f32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import (
    AppendOp,
    AtOp,
    AttentionOp,
    BroadcastOp,
    CastOp,
    ComputeOp,
    ConcatOp,
    ConstantOp,
    ConvOp,
    ConvTransposeOp,
    GatherOp,
    MaskOp,
    MatmulOp,
    Operator,
    PadOp,
    PoolOp,
    ReshapeOp,
    ResizeOp,
    SliceOp,
    TransposeOp,
)
from treadle.dialects.graph.append import is_in_place
from treadle.dialects.graph.compute import yielded
from treadle.dialects.graph.definition import shape_of
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.dialects.scalar import number_op
from treadle.errors import TreadleError
from treadle.passes.graph.rewriting import Array, constant_of, constant_op, tensor

# Narrowing: which operators of a function work on f16 or bf16, and where values are cast.

_Heavy = MatmulOp | ConvOp | ConvTransposeOp | AttentionOp
_Mover = (
    AppendOp
    | ReshapeOp
    | TransposeOp
    | SliceOp
    | BroadcastOp
    | ConcatOp
    | PadOp
    | MaskOp
    | GatherOp
    | ResizeOp
    | PoolOp
)


class Narrowing:
    """Rewrites one function's operators of f32 to `element`."""

    def __init__(self, block: Block, element: Attribute):
        self.block, self.element = block, element
        self._narrowed: dict[SSAValue, SSAValue] = {}
        self._widened: list[CastOp] = []

    def run(self) -> None:
        """Narrows every operator that gains, in order."""
        chosen = self._chosen()
        for op in list(self.block.ops):
            if isinstance(op, Operator) and op in chosen:
                self._narrow(op)
        for cast in self._widened:
            if not cast.result.uses:
                Rewriter.erase_op(cast)

    def _chosen(self) -> set[Operator]:
        """The heavy operators, and the movers before and after them."""
        movers = [op for op in self.block.ops if isinstance(op, _Mover) and self._may_narrow(op)]
        chosen: set[Operator] = {op for op in self.block.ops if isinstance(op, _Heavy) and self._may_narrow(op)}
        narrow = {value for op in chosen for value in (*_operands(op), op.result)}
        grows = True
        while grows:
            joining = [op for op in movers if op not in chosen and not narrow.isdisjoint((*_operands(op), op.result))]
            chosen.update(joining)
            narrow.update(value for op in joining for value in (*_operands(op), op.result))
            grows = bool(joining)
        return chosen

    def _may_narrow(self, op: Operator) -> bool:
        """Whether an operator on f32 may be narrowed: it only selects among its operands or is heavy, and its constants
        fit."""
        if isinstance(op, MatmulOp) and op.sums is not None:
            return False
        if op.type.get_element_type() != f32 or (isinstance(op, PoolOp) and op.kind.data != "max"):
            return False
        if isinstance(op, AppendOp) and not is_in_place(op):
            return False
        constants = [constant_of(value) for value in _operands(op)]
        if isinstance(op, MaskOp):
            constants.append(np.array(op.fill.value.data, np.float32))
        return all(constant is None or self._fits(constant) for constant in constants)

    def _fits(self, constant: Array) -> bool:
        narrow = self._as_narrow(constant).astype(np.float32)
        return bool(np.all(np.isfinite(narrow) | ~np.isfinite(constant)))

    def _as_narrow(self, constant: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return constant.astype(numpy_dtype(self.element))

    def _narrow(self, op: Operator) -> None:
        mine = set(_operands(op))
        if isinstance(op, AppendOp):  # the program's own, whose type no caller sees
            Rewriter.replace_value_with_new_type(op.past, TensorType(self.element, op.shape))
        operands = [self._narrow_value(value) if value in mine else value for value in op.operands]
        type = TensorType(self.element, op.shape)
        properties = dict(op.properties)
        if isinstance(op, MaskOp):
            properties["fill"] = number_op(op.fill.value.data, self.element).value
        copy = op.__class__.create(operands=operands, result_types=[type], properties=properties)
        copy.location, copy.results[0].name_hint = op.location, op.result.name_hint
        if isinstance(op, AppendOp):
            op.result.replace_uses_with_if(copy.results[0], lambda use: isinstance(use.operation, ReturnOp))
        wide = self._widen(copy.results[0])
        Rewriter.insert_op([copy, wide], InsertPoint.before(op))
        Rewriter.replace_op(op, [], [wide.result])

    def _widen(self, value: SSAValue) -> CastOp:
        cast = CastOp(value, f32)
        self._widened.append(cast)
        return cast

    def _narrow_value(self, value: SSAValue) -> SSAValue:
        """A value in the narrow type, rounded where it is computed."""
        stored = self._stored(value)
        if stored is not None:
            return stored
        if value not in self._narrowed:
            constant = constant_of(value)
            self._narrowed[value] = self._rounded(value) if constant is None else self._converted(value, constant)
        return self._narrowed[value]

    def _stored(self, value: SSAValue) -> SSAValue | None:
        """What a value was widened from, where it has the narrow type: an operand of a cast, or a stored matrix."""
        owner, source = value.owner, None
        if isinstance(owner, CastOp):
            source = owner.x
        elif isinstance(owner, ComputeOp) and isinstance(wide := yielded(owner.body).owner, arith.ExtFOp):
            read = wide.input.owner
            if isinstance(read, AtOp) and read.predicate is None and [*read.indices] == [*owner.body.block.args]:
                source = read.source
        if source is None or tensor(source).get_element_type() != self.element:
            return None
        return source if shape_of(source) == shape_of(value) else None

    def _converted(self, value: SSAValue, constant: Array) -> SSAValue:
        op = constant_op(self._as_narrow(constant))
        owner = value.owner
        assert isinstance(owner, ConstantOp)
        op.location, op.result.name_hint = owner.location, value.name_hint
        Rewriter.insert_op(op, InsertPoint.after(owner))
        return op.result

    def _rounded(self, value: SSAValue) -> SSAValue:
        """Casts a value once; all its readers then read what was stored."""
        narrow = CastOp(value, self.element)
        owner = value.owner
        inside = isinstance(owner, Operation)
        point = InsertPoint.after(owner) if inside else InsertPoint.at_start(self.block)
        kept = not inside or any(isinstance(use.operation, ReturnOp) for use in value.uses)
        wide = self._widen(narrow.result)
        narrow.location = wide.location = owner.location if inside else narrow.location
        Rewriter.insert_op([narrow, wide], point)
        if not kept:
            value.replace_uses_with_if(wide.result, lambda use: use.operation is not narrow)
            self._narrowed[wide.result] = narrow.result
        return narrow.result


def _operands(op: Operator) -> list[SSAValue]:
    """The operands whose type follows that of the result: not indices, extents or a mask of scores."""
    if isinstance(op, GatherOp):
        return [op.data]
    if isinstance(op, MaskOp):
        return [op.x]
    if isinstance(op, AppendOp):
        return [op.new]
    if isinstance(op, AttentionOp):
        return [op.q, op.k, op.v]
    return list(op.operands)


_NARROW = {"f16": f16, "bf16": bf16}
_ACCEPTED = ("f32", "tf32", *_NARROW)


@dataclass(frozen=True)
class GraphMixedPrecisionPass(ModulePass):
    """Gives `matmul`, `conv`, `conv_transpose` and `attention` of f32 operands and results of f16 or bf16.

    ```mlir
    %m = graph.matmul %x, %w : (tensor<128x768xf32>, tensor<768x768xf32>) -> tensor<128x768xf32>
    %y = graph.unary "gelu" %m : (tensor<128x768xf32>) -> tensor<128x768xf32>
    ```
    becomes, with `precision=f16`,
    ```mlir
    %n = graph.cast %x to f16 : (tensor<128x768xf32>) -> tensor<128x768xf16>
    %h = graph.matmul %n, %w_f16 : (tensor<128x768xf16>, tensor<768x768xf16>) -> tensor<128x768xf16>
    %m = graph.cast %h to f32 : (tensor<128x768xf16>) -> tensor<128x768xf32>
    %y = graph.unary "gelu" %m : (tensor<128x768xf32>) -> tensor<128x768xf32>
    ```
    Everything else stays f32: functions, norms, softmax, sums. So do masks of attention, and operators with a constant
    that f16 cannot hold. Operators that only move data, and maximum pooling, follow their neighbours. A value is
    rounded once, where it is computed, and all its readers take the rounded one (unless it is an input or a result of
    the function), so that one copy is stored. A state that is appended to is kept in the narrow type. Sums inside
    the converted operators run in f32: that is their definition.

    precision: f32 changes nothing. tf32 keeps all types, and marks each matmul with `precision = "tf32"`: its operands
    may be rounded to 10 bits of mantissa by tensor cores.
    Source: Micikevicius et al., "Mixed precision training", ICLR 2018, sections 3.1 and 3.3.
    """

    name = "graph-mixed-precision"
    precision: str = "f32"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.precision not in _ACCEPTED:
            raise TreadleError(f"unknown precision {self.precision!r}", self.name, _ACCEPTED)
        if self.precision == "tf32":
            for matmul in [inner for inner in op.walk() if isinstance(inner, MatmulOp)]:
                if matmul.type.get_element_type() == f32 and matmul.sums is None:
                    matmul.precision = StringAttr("tf32")
        narrow = _NARROW.get(self.precision)
        if narrow is None:
            return
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and function.body.blocks:
                Narrowing(function.body.block, narrow).run()
                function.update_function_type()
