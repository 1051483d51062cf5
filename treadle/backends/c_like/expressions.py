"""Values as C expressions, with as few parentheses as C's precedence allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

from xdsl.dialects import arith, memref, scf, vector
from xdsl.dialects.builtin import (
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    VectorType,
)
from xdsl.ir import Attribute, Operation, SSAValue

from treadle.backends.c_like.constants import constant_integer, folded_integer, splat_number
from treadle.backends.c_like.folding import Folding
from treadle.backends.c_like.language import Language
from treadle.backends.c_like.operators import (
    COMPARISONS,
    CONVERSIONS,
    FLOAT_COMPARISONS,
    FUNCTIONS,
    INTEGER_FUNCTIONS,
    NEGATED_COMPARISONS,
    OPERATORS,
    UNSIGNED,
    Level,
)
from treadle.dialects.loop import LaneCompareOp, LaneMaskOp, LaneSelectOp, StridedLoadOp

TRUE_BIT = 1


@dataclass(frozen=True)
class Text:
    """An expression and the precedence of its outermost operator."""

    text: str
    level: Level = Level.PRIMARY

    def at(self, level: Level) -> str:
        """The text for a place that takes operators of at least this precedence."""
        return self.text if self.level >= level else f"({self.text})"


class ExpressionPrinter:
    """Writes values: by name where `names` has one, else by the expression of the operation that computes them."""

    def __init__(self, language: Language, folding: Folding) -> None:
        self.language = language
        self.folding = folding
        self.names: dict[SSAValue, str] = {}
        self._flat: set[SSAValue] = set()
        self._writers: tuple[tuple[type[Operation] | tuple[type[Operation], ...], Callable[..., Text]], ...] = (
            (arith.ConstantOp, self._constant),
            (tuple(OPERATORS), self._operator),
            ((arith.AndIOp, arith.OrIOp, arith.XOrIOp), self._bits),
            (arith.CmpiOp, self._compare_integers),
            (arith.CmpfOp, self._compare_floats),
            (arith.SelectOp, self._select),
            (arith.NegfOp, self._negate),
            (CONVERSIONS, self._convert),
            (arith.BitcastOp, self._bitcast),
            (tuple(FUNCTIONS), self._call),
            (tuple(INTEGER_FUNCTIONS), self._call_integer),
            (scf.IfOp, self._ternary),
            (memref.LoadOp, self._load),
            (vector.LoadOp, self._vector_load),
            (vector.MaskedLoadOp, self._masked_load),
            (LaneMaskOp, self._lane_mask),
            (LaneCompareOp, self._lane_compare),
            (LaneSelectOp, self._lane_select),
            (StridedLoadOp, self._strided_load),
            (vector.BroadcastOp, self._broadcast),
            (vector.ExtractOp, self._extract),
            (vector.ReductionOp, self._reduce),
        )

    def text(self, value: SSAValue) -> Text:
        """The expression for a value."""
        name = self.names.get(value)
        if name is not None:
            return Text(name)
        assert isinstance(value.owner, Operation), f"{value} has no name"
        return self.computed(value.owner)

    def at(self, value: SSAValue, level: Level = Level.TERNARY) -> str:
        """The expression for a value, in a place that takes operators of at least `level`."""
        return self.text(value).at(level)

    def computed(self, op: Operation) -> Text:
        """The expression that an operation stands for."""
        for kinds, write in self._writers:
            if isinstance(op, kinds):
                return write(op)
        special = self.language.expression(op, self)
        if special is None:
            self.language.reject(op)
        return Text(special)

    def element(self, buffer: SSAValue, indices: Sequence[SSAValue]) -> str:
        """One element of a buffer, as an lvalue."""
        type = cast(MemRefType, buffer.type)
        name = self.at(buffer, Level.PRIMARY)
        if self.is_flat(buffer):
            return f"{name}[{self._offset(type, indices, buffer)}]"
        return name + "".join(f"[{self.at(index)}]" for index in indices)

    def declare_flat(self, buffer: SSAValue) -> None:
        """Says that a buffer is a pointer or a one-dimensional array, whatever its rank."""
        self._flat.add(buffer)

    def is_flat(self, buffer: SSAValue) -> bool:
        """Whether the text addresses the buffer by one number."""
        return buffer in self._flat

    def vector_operand(self, value: SSAValue, level: Level) -> str:
        """A vector operand of an operator that also takes a scalar: a broadcast is written as the scalar."""
        scalar = self._splat_scalar(value)
        return self.at(value, level) if scalar is None else scalar.at(level)

    def _splat_scalar(self, value: SSAValue) -> Text | None:
        if value in self.names or not self.language.has_operators(value.type):
            return None
        if isinstance(value.owner, vector.BroadcastOp) and not isinstance(value.owner.source.type, VectorType):
            return self.text(value.owner.source)
        if isinstance(value.owner, arith.ConstantOp) and isinstance(value.type, VectorType):
            number = splat_number(value.owner)
            return None if number is None else self._number(value.type.element_type, number)
        return None

    def _offset(self, type: MemRefType, indices: Sequence[SSAValue], buffer: SSAValue) -> str:
        strides = type.get_strides()
        if strides is None or None in strides or -1 in strides:
            owner = buffer.owner if isinstance(buffer.owner, Operation) else buffer.owner.parent_op()
            assert owner is not None
            self.language.reject(owner, f"a buffer of type {type}", "buffers of static extents")
        constant, terms = 0, list[str]()
        for index, stride in zip(indices, cast(Sequence[int], strides), strict=True):
            known = constant_integer(index)
            if known is not None:
                constant += known * stride
            elif stride == 1:
                terms.append(self.at(index, Level.ADD))
            else:
                terms.append(f"{self.at(index, Level.MULTIPLY)} * {stride}")
        if constant > 0 or not terms:
            terms.append(str(constant))
        return " + ".join(terms) + (f" - {-constant}" if constant < 0 and terms else "")

    def _number(self, type: Attribute, value: float) -> Text:
        text = self.language.literal(type, value)
        return Text(text, Level.UNARY if text.startswith("-") else Level.PRIMARY)

    def _constant(self, op: arith.ConstantOp) -> Text:
        if isinstance(op.value, IntegerAttr | FloatAttr):
            number = op.value.value.data
            if isinstance(op.result.type, IntegerType) and op.result.type.width.data == 1:
                number = abs(number)
            if self.language.widening(op.result.type) and not self.language.has_operators(op.result.type):
                return self._narrowed(self._number(op.result.type, number), op.result.type)
            return self._number(op.result.type, number)
        type = op.result.type
        number = splat_number(op)
        if number is None or not isinstance(type, VectorType):
            self.language.reject(op, f"a constant of type {type}", "scalars and splat vectors")
        positive_zero = number == 0 and not str(number).startswith("-")
        scalar = self._number(type.element_type, number).text
        return Text(self.language.splat(type, scalar, positive_zero))

    def _wide(self, value: SSAValue, level: Level) -> str:
        """A scalar operand of an arithmetic operator; 16-bit floats without operators become floats."""
        widening = self.language.widening(value.type)
        if widening is None or self.language.has_operators(value.type):
            return self.at(value, level)
        return f"{widening[0]}({self.at(value)})"

    def _narrowed(self, text: Text, type: Attribute) -> Text:
        widening = self.language.widening(type)
        if widening is None or self.language.has_operators(type):
            return text
        return Text(f"{widening[1]}({text.text})")

    def _operator(self, op: Operation) -> Text:
        symbol, level = OPERATORS[type(op)]
        lhs, rhs = op.operands
        if isinstance(op, UNSIGNED) and not isinstance(lhs.type, IndexType):
            unsigned = self.language.unsigned(lhs.type)
            left, right = (f"({unsigned}){self.at(v, Level.UNARY)}" for v in (lhs, rhs))
            return Text(f"({self.language.type_name(lhs.type)})({left} {symbol} {right})", Level.UNARY)
        known = folded_integer(op)
        if known is not None:
            return self._number(lhs.type, known)  # C would compute it in 32 bits
        if isinstance(op, arith.AddiOp):
            return self._sum(lhs, rhs)
        if isinstance(lhs.type, VectorType):
            return self._vector_operator(symbol, level, lhs, rhs)
        if level is Level.SHIFT:
            return Text(f"{self.at(lhs, Level.UNARY)} {symbol} {self.at(rhs, Level.UNARY)}", level)
        text = f"{self._wide(lhs, level)} {symbol} {self._wide(rhs, level.tighter)}"
        return self._narrowed(Text(text, level), op.results[0].type)

    def _sum(self, lhs: SSAValue, rhs: SSAValue) -> Text:
        known = constant_integer(rhs)
        if known is not None and -(1 << 31) < known < 0:
            return Text(f"{self.at(lhs, Level.ADD)} - {-known}", Level.ADD)
        return Text(f"{self.at(lhs, Level.ADD)} + {self.at(rhs, Level.ADD)}", Level.ADD)

    def _vector_operator(self, symbol: str, level: Level, lhs: SSAValue, rhs: SSAValue) -> Text:
        # At most one side may be written as a scalar.
        if self._splat_scalar(lhs) is not None and self._splat_scalar(rhs) is None:
            return Text(f"{self.vector_operand(lhs, level)} {symbol} {self.at(rhs, level.tighter)}", level)
        return Text(f"{self.at(lhs, level)} {symbol} {self.vector_operand(rhs, level.tighter)}", level)

    def _bits(self, op: arith.AndIOp | arith.OrIOp | arith.XOrIOp) -> Text:
        lhs, rhs = op.lhs, op.rhs
        if op.result.type != IntegerType(1):
            symbol, level = {"andi": ("&", Level.AND_BITS), "ori": ("|", Level.OR_BITS)}.get(
                op.name.split(".")[1], ("^", Level.XOR_BITS)
            )
            return Text(f"{self.at(lhs, Level.UNARY)} {symbol} {self.at(rhs, Level.UNARY)}", level)
        if isinstance(op, arith.XOrIOp):
            if constant_integer(rhs) is not None and abs(constant_integer(rhs) or 0) == TRUE_BIT:
                return Text(f"!{self.at(lhs, Level.UNARY)}", Level.UNARY)
            return Text(f"{self.at(lhs, Level.RELATION)} != {self.at(rhs, Level.RELATION)}", Level.EQUALITY)
        symbol, level = ("&&", Level.AND) if isinstance(op, arith.AndIOp) else ("||", Level.OR)
        sides = (self.text(lhs), self.text(rhs))
        # `a && b || c` is right but warned about, and hard to read.
        parts = [t.text if t.level is level else t.at(Level.EQUALITY) for t in sides]
        return Text(f" {symbol} ".join(parts), level)

    def _compare_integers(self, op: arith.CmpiOp) -> Text:
        symbol, unsigned = COMPARISONS[op.predicate.value.data]
        if not unsigned:
            return self._relation(symbol, self.at(op.lhs, Level.SHIFT), self.at(op.rhs, Level.SHIFT))
        cast_to = f"({self.language.unsigned(op.lhs.type)})"
        sides = (f"{cast_to}{self.at(side, Level.UNARY)}" for side in (op.lhs, op.rhs))
        return self._relation(symbol, *sides)

    def _relation(self, symbol: str, lhs: str, rhs: str) -> Text:
        return Text(f"{lhs} {symbol} {rhs}", Level.EQUALITY if symbol in ("==", "!=") else Level.RELATION)

    def _compare_floats(self, op: arith.CmpfOp) -> Text:
        predicate = op.predicate.value.data
        lhs, rhs = (self._wide(side, Level.SHIFT) for side in (op.lhs, op.rhs))
        if predicate in FLOAT_COMPARISONS:
            return self._relation(FLOAT_COMPARISONS[predicate], lhs, rhs)
        if predicate in NEGATED_COMPARISONS:
            return Text(f"!({lhs} {NEGATED_COMPARISONS[predicate]} {rhs})", Level.UNARY)
        name = arith.CMPF_COMPARISON_OPERATIONS[predicate]
        if name in ("false", "true"):
            return Text("0" if name == "false" else "1")
        if name in ("ord", "uno") and op.lhs is op.rhs:
            return self._relation("==" if name == "ord" else "!=", lhs, rhs)
        type = op.lhs.type if self.language.widening(op.lhs.type) is None else self._float()
        function = self.language.function("unordered" if name in ("ord", "uno") else "differ", type)
        call = f"{function}({lhs}, {rhs})"
        return Text(call) if name in ("uno", "one") else Text(f"!{call}", Level.UNARY)

    def _float(self) -> Attribute:
        return next(t for t, name in self.language.scalars.items() if name == "float")

    def _select(self, op: arith.SelectOp) -> Text:
        return self._choice(op.cond, self.text(op.lhs), self.text(op.rhs))

    def _choice(self, condition: SSAValue, then: Text, otherwise: Text) -> Text:
        # A choice inside the first branch needs no parentheses in C, but its reader does.
        text = f"{self.at(condition, Level.OR)} ? {then.at(Level.OR)} : {otherwise.text}"
        return Text(text, Level.TERNARY)

    def _ternary(self, op: scf.IfOp) -> Text:
        branches = [cast(scf.YieldOp, region.block.last_op).arguments[0] for region in op.regions]
        return self._choice(op.cond, self.text(branches[0]), self.text(branches[1]))

    def _negate(self, op: arith.NegfOp) -> Text:
        operand = self._wide(op.operand, Level.UNARY)
        operand = f"({operand})" if operand.startswith("-") else operand
        return self._narrowed(Text(f"-{operand}", Level.UNARY), op.result.type)

    def _convert(self, op: Operation) -> Text:
        source, target = op.operands[0], op.results[0].type
        widening = self.language.widening(source.type)
        if widening is not None and not self.language.has_operators(source.type):
            text = f"{widening[0]}({self.at(source)})"
            return Text(text) if isinstance(op, arith.ExtFOp) else self._cast(target, Text(text))
        narrowing = self.language.widening(target)
        if narrowing is not None and not self.language.has_operators(target):
            return Text(f"{narrowing[1]}({self.at(source)})")
        one_bit = source.type == IntegerType(1)
        if target == IntegerType(1):
            return Text(f"{self.at(source, Level.UNARY)} & 1", Level.AND_BITS)
        if isinstance(op, arith.ExtSIOp | arith.SIToFPOp) and one_bit:
            return Text(f"-{self._cast(target, self.text(source)).text}", Level.UNARY)
        if isinstance(op, arith.ExtUIOp | arith.UIToFPOp) and not one_bit:
            return self._cast(target, self._cast_to(self.language.unsigned(source.type), self.text(source)))
        return self._cast(target, self.text(source))

    def _cast(self, type: Attribute, text: Text) -> Text:
        return self._cast_to(self.language.type_name(type), text)

    def _cast_to(self, name: str, text: Text) -> Text:
        return Text(f"({name}){text.at(Level.UNARY)}", Level.UNARY)

    def _bitcast(self, op: arith.BitcastOp) -> Text:
        name = "bits" if isinstance(op.result.type, IntegerType) else "from_bits"
        float_type = op.input.type if name == "bits" else op.result.type
        return Text(f"{self.language.function(name, float_type)}({self.at(op.input)})")

    def _call(self, op: Operation) -> Text:
        type_ = op.results[0].type
        widening = self.language.widening(type_)
        if widening is None:
            function = self.language.function(FUNCTIONS[type(op)], type_)
            return Text(f"{function}({', '.join(self.at(operand) for operand in op.operands)})")
        function = self.language.function(FUNCTIONS[type(op)], self._float())
        operands = [f"{widening[0]}({self.at(operand)})" for operand in op.operands]
        return Text(f"{widening[1]}({function}({', '.join(operands)}))")

    def _call_integer(self, op: Operation) -> Text:
        function = self.language.function(INTEGER_FUNCTIONS[type(op)], op.results[0].type)
        return Text(f"{function}({', '.join(self.at(operand) for operand in op.operands)})")

    def _load(self, op: memref.LoadOp) -> Text:
        return Text(self.element(op.memref, op.indices))

    def _vector_load(self, op: vector.LoadOp) -> Text:
        address = f"&{self.element(op.base, op.indices)}"
        return Text(self.language.vector_load(op.result.type, address), Level.UNARY)

    def _masked_load(self, op: vector.MaskedLoadOp) -> Text:
        type, otherwise = cast(VectorType, op.result.type), op.pass_thru.owner
        address = f"&{self.element(op.base, op.indices)}"
        zero = isinstance(otherwise, arith.ConstantOp) and splat_number(otherwise) == 0
        if zero and isinstance(op.mask.owner, vector.CreateMaskOp):
            return Text(f"{self.language.function('load_first', type)}({address}, {self.first_lanes(op.mask)})")
        mask, rest = self.at(op.mask), self.at(op.pass_thru)
        return Text(f"{self.language.function('load_where', type)}({address}, {mask}, {rest})")

    def first_lanes(self, mask: SSAValue) -> str:
        """The number of lanes that a mask of `vector.create_mask` lets through."""
        assert isinstance(mask.owner, vector.CreateMaskOp)
        return self.at(mask.owner.mask_dim_sizes[0])

    def _lane_mask(self, op: LaneMaskOp) -> Text:
        function = self.language.function("lanes", op.mask.type)
        return Text(f"{function}({self.at(op.lo)}, {self.at(op.hi)})")

    def _lane_compare(self, op: LaneCompareOp) -> Text:
        rhs = self.vector_operand(op.rhs, Level.SHIFT)
        return self._relation(FLOAT_COMPARISONS[op.code], self.at(op.lhs, Level.SHIFT), rhs)

    def _lane_select(self, op: LaneSelectOp) -> Text:
        function = self.language.function("select", op.result.type)
        return Text(f"{function}({', '.join(self.at(operand) for operand in op.operands)})")

    def _strided_load(self, op: StridedLoadOp) -> Text:
        type = op.result.type
        stride, operands = op.stride.value.data, [f"&{self.element(op.buffer, op.indices)}"]
        name, operands = ("load_strided", [*operands, str(stride)]) if stride else ("load_splat", operands)
        if op.mask is not None and op.otherwise is not None:
            name, operands = f"{name}_where", [*operands, self.at(op.mask), self.at(op.otherwise)]
        return Text(f"{self.language.function(name, type)}({', '.join(operands)})")

    def _broadcast(self, op: vector.BroadcastOp) -> Text:
        if isinstance(op.source.type, VectorType):
            self.language.reject(op, "a broadcast of a vector", "a broadcast of a scalar")
        return Text(self.language.splat(op.vector.type, self.at(op.source), False))

    def _extract(self, op: vector.ExtractOp) -> Text:
        """One element, or one of the parts along the first dimensions, at its row-major position."""
        type = op.vector.type
        assert isinstance(type, VectorType)
        constant, terms = 0, list[str]()
        mixed, shape = op.get_mixed_position(), type.get_shape()
        for axis, at in enumerate(mixed):
            stride = prod(shape[axis + 1 : len(mixed)])
            known = at if isinstance(at, int) else constant_integer(at)
            if known is not None:
                constant += known * stride
            elif isinstance(at, SSAValue):
                text = self.at(at, Level.ADD if stride == 1 else Level.MULTIPLY)
                terms.append(text if stride == 1 else f"{text} * {stride}")
        position = " + ".join([*terms, *([str(constant)] if constant or not terms else [])])
        whole = self.at(op.vector, Level.PRIMARY)
        if isinstance(op.result.type, VectorType):
            return Text(self.language.part(whole, position, op.result.type))
        return Text(self.language.lane(whole, position, type))

    def _reduce(self, op: vector.ReductionOp) -> Text:
        kinds = {"add": "add", "maximumf": "max", "minimumf": "min"}
        kind = kinds.get(op.kind.data.value)
        if kind is None:
            self.language.reject(op, f"vector.reduction <{op.kind.data.value}>", ", ".join(kinds))
        call = f"{self.language.function(f'reduce_{kind}', op.vector.type)}({self.at(op.vector)})"
        if op.acc is None:
            return Text(call)
        if kind == "add":
            return Text(f"{self.at(op.acc, Level.ADD)} + {call}", Level.ADD)
        return Text(f"{self.language.function(kind, op.dest.type)}({self.at(op.acc)}, {call})")
