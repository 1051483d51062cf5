"""Vectors: loads, masks, and operations on lanes."""

from __future__ import annotations

from math import prod
from typing import cast

from xdsl.dialects import arith, vector
from xdsl.dialects.builtin import VectorType, f32
from xdsl.ir import SSAValue

from treadle.backends.c_like.language import FLOAT_COMPARISONS, Precedence
from treadle.backends.c_like.scalars import constant_integer, splat_number
from treadle.backends.c_like.values import Text, Values, Writers, relation
from treadle.dialects.loop import (
    LaneCompareOp,
    LaneConvertOp,
    LaneLookupOp,
    LaneMaskOp,
    LaneSelectOp,
    RoundPairOp,
    StridedLoadOp,
)


class Vectors:
    """Writes operations that build vectors, and extract from them."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._language = values.language
        self.writers: Writers = (
            (vector.LoadOp, self._vector_load),
            (vector.MaskedLoadOp, self._masked_load),
            (LaneMaskOp, self._lane_mask),
            (LaneCompareOp, self._lane_compare),
            (LaneSelectOp, self._lane_select),
            (LaneConvertOp, self._lane_convert),
            (LaneLookupOp, self._lane_lookup),
            (RoundPairOp, self._round_pair),
            (StridedLoadOp, self._strided_load),
            (vector.BroadcastOp, self._broadcast),
            (vector.ExtractOp, self._extract),
            (vector.ReductionOp, self._reduce),
        )

    def _vector_load(self, op: vector.LoadOp) -> Text:
        address = f"&{self._values.element(op.base, op.indices)}"
        return Text(self._language.vector_load(op.result.type, address), Precedence.UNARY)

    def _masked_load(self, op: vector.MaskedLoadOp) -> Text:
        type, otherwise = cast(VectorType, op.result.type), op.pass_thru.owner
        address = f"&{self._values.element(op.base, op.indices)}"
        zero = isinstance(otherwise, arith.ConstantOp) and splat_number(otherwise) == 0
        if zero and isinstance(op.mask.owner, vector.CreateMaskOp):
            return Text(f"{self._language.function('load_first', type)}({address}, {self.first_lanes(op.mask)})")
        mask, rest = self._values.mask(op.mask), self._values.at(op.pass_thru)
        return Text(f"{self._language.function('load_where', type)}({address}, {mask}, {rest})")

    def first_lanes(self, mask: SSAValue) -> str:
        """The number of lanes that a mask of `vector.create_mask` lets through."""
        assert isinstance(mask.owner, vector.CreateMaskOp)
        return self._values.at(mask.owner.mask_dim_sizes[0])

    def _lane_mask(self, op: LaneMaskOp) -> Text:
        function = self._language.function("lanes", op.mask.type)
        return Text(f"{function}({self._values.at(op.lo)}, {self._values.at(op.hi)})")

    def _lane_compare(self, op: LaneCompareOp) -> Text:
        rhs = self._values.vector_operand(op.rhs, Precedence.SHIFT)
        return relation(FLOAT_COMPARISONS[op.code], self._values.at(op.lhs, Precedence.SHIFT), rhs)

    def _lane_select(self, op: LaneSelectOp) -> Text:
        type, (mask, *sides) = op.result.type, op.operands
        whole = isinstance(mask.owner, LaneMaskOp) and type.element_type == f32
        function = self._language.function("select_where" if whole else "select", type)
        where = self._values.mask(mask) if whole else self._values.at(mask)
        return Text(f"{function}({where}, {', '.join(map(self._values.at, sides))})")

    def _lane_convert(self, op: LaneConvertOp) -> Text:
        source, target = cast(VectorType, op.source.type), op.result.type
        inner = op.source.owner
        if isinstance(inner, LaneConvertOp) and cast(VectorType, inner.source.type).element_type == f32:
            return Text(self._language.clamped(self._values.at(inner.source), source, target))
        return Text(self._language.converted(self._values.at(op.source), source, target))

    def _lane_lookup(self, op: LaneLookupOp) -> Text:
        function = self._language.function("lookup", op.result.type)
        entries = ", ".join(self._language.literal(f32, entry) for entry in op.entries())
        return Text(f"{function}({self._values.at(op.source)}, {entries})")

    def _round_pair(self, op: RoundPairOp) -> Text:
        function = self._language.function("round_pair", op.even.type)
        return Text(f"{function}({self._values.at(op.even)}, {self._values.at(op.odd)})")

    def _strided_load(self, op: StridedLoadOp) -> Text:
        type = op.result.type
        stride, operands = op.stride.value.data, [f"&{self._values.element(op.buffer, op.indices)}"]
        name, operands = ("load_strided", [*operands, str(stride)]) if stride else ("load_splat", operands)
        if op.mask is not None and op.otherwise is not None:
            name, operands = f"{name}_where", [*operands, self._values.mask(op.mask), self._values.at(op.otherwise)]
        return Text(f"{self._language.function(name, type)}({', '.join(operands)})")

    def _broadcast(self, op: vector.BroadcastOp) -> Text:
        if isinstance(op.source.type, VectorType):
            self._language.reject(op, "a broadcast of a vector", "a broadcast of a scalar")
        return Text(self._language.splat(op.vector.type, self._values.at(op.source), False))

    def _extract(self, op: vector.ExtractOp) -> Text:
        """One element, or one of the parts along the first dimensions, at its row-major position."""
        type, mixed = cast(VectorType, op.vector.type), op.get_mixed_position()
        constant, terms = 0, list[str]()
        for axis, at in enumerate(mixed):
            stride = prod(type.get_shape()[axis + 1 : len(mixed)])
            known = at if isinstance(at, int) else constant_integer(at)
            if known is not None:
                constant += known * stride
            elif isinstance(at, SSAValue):
                text = self._values.at(at, Precedence.ADD if stride == 1 else Precedence.MULTIPLY)
                terms.append(text if stride == 1 else f"{text} * {stride}")
        position = " + ".join([*terms, *([str(constant)] if constant or not terms else [])])
        whole = self._values.at(op.vector, Precedence.PRIMARY)
        if isinstance(op.result.type, VectorType):
            return Text(self._language.part(whole, position, op.result.type))
        return Text(self._language.lane(whole, position, type))

    def _reduce(self, op: vector.ReductionOp) -> Text:
        kinds = {"add": "add", "maximumf": "max", "minimumf": "min"}
        kind = kinds.get(op.kind.data.value)
        if kind is None:
            self._language.reject(op, f"vector.reduction <{op.kind.data.value}>", ", ".join(kinds))
        call = f"{self._language.function(f'reduce_{kind}', op.vector.type)}({self._values.at(op.vector)})"
        if op.acc is None:
            return Text(call)
        if kind == "add":
            return Text(f"{self._values.at(op.acc, Precedence.ADD)} + {call}", Precedence.ADD)
        return Text(f"{self._language.function(kind, op.dest.type)}({self._values.at(op.acc)}, {call})")
