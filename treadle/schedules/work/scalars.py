"""Recorded scalars: indices are positions, predicates are conditions, operations on floats are steps that cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    FloatAttr,
    IndexType,
    IntegerAttr,
    VectorType,
    i1,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, ReduceOp
from treadle.dialects.graph.definition import FLOAT_BINARY, MATH, Scalar
from treadle.dialects.graph.dtypes import is_float
from treadle.index.expr import Expr
from treadle.index.positions import Position, Variable, position_of
from treadle.schedules.kernel_builder import (
    Index,
    IndexLike,
    KernelBuilder,
    Predicate,
    emit_reduce,
)
from treadle.schedules.work.gpu_work import cost_of
from treadle.schedules.work.group import Group
from treadle.schedules.work.tree import (
    AnyOf,
    Buffer,
    Chance,
    Comparison,
    Condition,
    Node,
    Step,
)

_INDEX = IndexType()
_HERE = Block()
"""Where recorded values are defined: nowhere."""
_UNKNOWN = 1 << 20
"""Values of an index that comes from memory, of which nothing is known."""
_NOTHING: frozenset[Buffer] = frozenset()


class Value(SSAValue):
    """A value of a kernel that is recorded.

    position: of an index; limits: the bounds of a number that is not what its position says, such as a minimum
    conditions: of a predicate, all of which hold where it does
    buffer: of a memref; given: the value of the one element of it that can be loaded
    sources: the register buffers that it was computed from
    product: the multiplication that gave it, which is free in an addition
    """

    first_use = None
    _name = None
    limits: tuple[int, int] | None = None
    buffer: Buffer | None = None
    given: Value | None = None
    producer: ComputeOp | None = None
    sources: frozenset[Buffer] = frozenset()
    product: Step | None = None
    uses_as_operand = 0
    number: float | None = None

    def __init__(self, type: Attribute, position: Position | None = None, conditions: tuple[Condition, ...] = ()):
        self._type = type
        self.position, self.conditions = position, conditions

    @property
    def owner(self) -> Block:
        return _HERE

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the largest value of an index."""
        assert self.position is not None
        return self.position.bounds if self.limits is None else self.limits

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = SSAValue.__hash__


_INDEX_KINDS: dict[type[Operation], str] = {
    arith.AddiOp: "add", arith.SubiOp: "sub", arith.MuliOp: "mul", arith.DivUIOp: "div", arith.FloorDivSIOp: "div",
    arith.DivSIOp: "div", arith.RemUIOp: "mod", arith.RemSIOp: "mod", arith.MinSIOp: "min", arith.MaxSIOp: "max",
    arith.MinUIOp: "min", arith.MaxUIOp: "max",
}  # fmt: skip
_LOGIC: dict[type[Operation], str] = {arith.AndIOp: "and", arith.OrIOp: "or", arith.XOrIOp: "xor"}
_CASTS = (arith.IndexCastOp,)
_COMPARISONS = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}
_PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "slt", "sle", "sgt", "sge")
"""By the numbers of `arith.cmpi`'s predicates, the unsigned ones of numbers that are not negative."""


class ScalarRecorder(KernelBuilder):
    """The part of a recorder that computes: what `DefinitionBuilder` and definitions do.

    _group: whose definitions are evaluated; _here: where steps are recorded
    """

    _group: Group
    _here: list[Node]

    def index(self, i: IndexLike) -> Index:
        return Index(self._value(i), self)

    def expression(self, e: Expr, known: Mapping[Any, Index]) -> Index:
        positions = {key: self._position(each) for key, each in known.items()}
        return Index(Value(_INDEX, position_of(e, positions)), self)

    def _value(self, i: IndexLike) -> Value:
        if isinstance(i, Index):
            i = i.value
        if isinstance(i, int):
            return Value(_INDEX, Position(i, {}))
        assert isinstance(i, Value)
        return i

    def _position(self, i: IndexLike) -> Position:
        position = self._value(i).position
        assert position is not None
        return position

    def _ssa(self, i: IndexLike) -> SSAValue:
        return self._value(i)

    def constant(self, value: float, type: Attribute = _INDEX) -> Scalar:
        if isinstance(type, IndexType):
            return Value(type, Position(int(value), {}))
        found = Value(type, None, (Chance(0.0),) if type == i1 and not value else ())
        found.number = value
        return found

    def zeros(self, type: VectorType) -> SSAValue:
        return Value(type)

    def div(self, a: Scalar, b: int) -> Scalar:
        return a if b == 1 else Value(_INDEX, self._position(a) // b)

    def mod(self, a: Scalar, b: int) -> Scalar:
        return Value(_INDEX, self._position(a) % b)

    def binary(self, kind: str, a: Scalar | int, b: Scalar | int) -> Scalar:
        left = Value(_INDEX, Position(a, {})) if isinstance(a, int) else cast("Value", a)
        right = Value(_INDEX, Position(b, {})) if isinstance(b, int) else cast("Value", b)
        if left.position is not None and right.position is not None:
            return self._index_binary(kind, left, right)
        if left.type == i1:
            return self._logic(kind, left, right)
        if kind in _COMPARISONS:
            return self._computed(arith.CmpfOp if is_float(left.type) else arith.CmpiOp, (left, right), i1)
        if is_float(left.type):
            return self._computed(FLOAT_BINARY[kind], (left, right), left.type)
        found = Value(left.type)
        if kind in ("min", "max"):
            found.limits = _clamped(kind, left, right)
        return found

    def _index_binary(self, kind: str, a: Value, b: Value) -> Value:
        left, right = cast("Position", a.position), cast("Position", b.position)
        if kind in _COMPARISONS:
            comparison = Comparison(_COMPARISONS[kind], left - right)
            return Value(i1, None, () if comparison.is_known else (comparison,))
        if kind == "add":
            return Value(_INDEX, left + right)
        if kind == "sub":
            return Value(_INDEX, left - right)
        if kind == "mul":
            return Value(_INDEX, left * right)
        if kind in ("div", "mod"):
            by = right.as_int
            assert by is not None, "a kernel divides by constants"
            return Value(_INDEX, left // by if kind == "div" else left % by)
        # As if it were not clamped: as far as tiles do not overhang, it is not.
        (alo, ahi), (blo, bhi) = a.bounds, b.bounds
        if (ahi <= blo) if kind == "min" else (alo >= bhi):
            return a
        if (bhi <= alo) if kind == "min" else (blo >= ahi):
            return b
        found = Value(_INDEX, right if left.as_int is not None else left)
        pick = min if kind == "min" else max
        found.limits = pick(alo, blo), pick(ahi, bhi)
        return found

    def _logic(self, kind: str, a: Value, b: Value) -> Value:
        found = Value(i1)
        if kind == "and":
            found.conditions = (*a.conditions, *b.conditions)
        elif kind == "or":
            sides = a.conditions, b.conditions
            found.conditions = (AnyOf(sides),) if all(sides) else ()
        else:
            found.conditions = (Chance(0.5),)
        return found

    def select(self, condition: Predicate | Scalar, a: Scalar, b: Scalar) -> Scalar:
        plain = condition.value if isinstance(condition, Predicate) else condition
        then, otherwise = cast("Value", a), cast("Value", b)
        if then.position is not None and otherwise.position is not None:
            found = Value(_INDEX, otherwise.position if then.position.as_int is not None else then.position)
            found.limits = min(then.bounds[0], otherwise.bounds[0]), max(then.bounds[1], otherwise.bounds[1])
            return found
        if then.type == i1:
            return Value(i1, None, (Chance(0.5),))
        return self._computed(arith.SelectOp, (cast("Value", plain), then, otherwise), then.type)

    def math(self, kind: str, a: Scalar) -> Scalar:
        return self._computed(MATH[kind], (cast("Value", a),), a.type)

    def _computed(self, kind: type[Operation], operands: tuple[Value, ...], type: Attribute) -> Value:
        """The result of an operation on scalars or vectors."""
        found, sources = Value(type), _NOTHING
        for operand in operands:
            operand.uses_as_operand += 1
            if operand.product is not None:
                # A product is fused with the one addition that uses it.
                is_fused = operand.uses_as_operand == 1 and kind in (arith.AddfOp, arith.SubfOp)
                operand.product.cost = 0.0 if is_fused else 1.0
            if operand.sources:
                sources = sources | operand.sources
        found.sources = sources
        cost = cost_of(kind, type)
        if cost or any(operand.position is None for operand in operands):
            step = Step(cost, is_select=kind is arith.SelectOp, operands=operands, result=found)
            self._here.append(step)
            if kind is arith.MulfOp:
                found.product = step
        return found

    def evaluated(self, op: Operation, values: dict[SSAValue, SSAValue]) -> Scalar:
        each = self._group.evaluation(op)
        if each.kind is AtOp:
            where = None if each.predicate is None else values[each.predicate]
            otherwise = None if each.otherwise is None else values[each.otherwise]
            return self.load(values[each.source], [values[i] for i in each.indices], where, otherwise)
        if isinstance(op, ReduceOp):
            return emit_reduce(self, op, values)
        return self._of_operation(op, tuple([cast("Value", values[operand]) for operand in each.operands]), each.type)

    def _of_operation(self, op: Operation, operands: tuple[Value, ...], type: Attribute) -> Value:
        kind = op.__class__
        if kind is arith.ConstantOp:
            return cast("Value", self.constant(_number(cast("arith.ConstantOp", op)), type))
        if operands[0].position is not None:
            index_kind = _INDEX_KINDS.get(kind)
            if index_kind is not None:
                return self._index_binary(index_kind, *operands)
            if isinstance(op, arith.CmpiOp):
                difference = self._position(operands[0]) - self._position(operands[1])
                comparison = Comparison(_PREDICATES[op.predicate.value.data], difference)
                return Value(i1, None, () if comparison.is_known else (comparison,))
        if kind in _CASTS and isinstance(type, IndexType):
            return _index_of(operands[0])
        if kind is arith.SelectOp:
            return cast("Value", self.select(*operands))
        if kind in _LOGIC and type == i1:
            return self._logic(_LOGIC[kind], *operands)
        found = self._computed(kind, operands, type)
        if isinstance(type, IndexType):
            found.position = unknown_index()
        return found


def unknown_index() -> Position:
    """An index that comes from memory."""
    return Variable("data", _UNKNOWN, is_data=True).position()


def _index_of(value: Value) -> Value:
    """A number as an index."""
    most = _UNKNOWN if value.limits is None else value.limits[1] + 1
    found = Value(_INDEX, value.position or Variable("data", most, is_data=True).position())
    found.limits = value.limits
    return found


def _clamped(kind: str, a: Value, b: Value) -> tuple[int, int]:
    """The bounds of the minimum or the maximum of two numbers."""
    (alo, ahi), (blo, bhi) = (_limits(each) for each in (a, b))
    pick = min if kind == "min" else max
    return pick(alo, blo), pick(ahi, bhi)


def _limits(value: Value) -> tuple[int, int]:
    if value.number is not None:
        return int(value.number), int(value.number)
    return (-_UNKNOWN, _UNKNOWN) if value.limits is None else value.limits


def _number(op: arith.ConstantOp) -> float:
    """The value of a constant."""
    value = op.value
    return value.value.data if isinstance(value, FloatAttr | IntegerAttr) else 0
