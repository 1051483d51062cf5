"""Recorded scalars: indices are positions, predicates are conditions, operations on floats are steps that cost."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, cast

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    FloatAttr,
    IndexType,
    IntegerAttr,
    MemRefType,
    VectorType,
    i1,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, ReduceOp
from treadle.dialects.graph.definition import FLOAT_BINARY, MATH, Scalar
from treadle.dialects.graph.dtypes import byte_width, is_float
from treadle.dialects.loop import SpaceAttr, swizzle_of
from treadle.dialects.loop.tiles import WARP
from treadle.index.expr import Expr
from treadle.index.positions import Position, Variable, position_of, row_major
from treadle.schedules.kernel_builder import (
    Index,
    IndexLike,
    KernelBuilder,
    Predicate,
    emit_reduce,
)
from treadle.schedules.work.gpu_work import ROUNDING, cost_of
from treadle.schedules.work.group import Group
from treadle.schedules.work.tree import (
    Access,
    AnyOf,
    Buffer,
    Chance,
    Comparison,
    Condition,
    Loop,
    Node,
    Otherwise,
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
    number: of a constant; 1 of a predicate that always holds
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

    @property
    def is_unbounded(self) -> bool:
        """Whether nothing is known of the bounds of an index."""
        return self.limits is None and self.position is not None and self.position.is_unbounded

    def used(self, kind: type[Operation] | None = None) -> None:
        """Says that an operation, of some kind, has it as an operand. A product is fused with the one addition that
        uses it."""
        self.uses_as_operand += 1
        if self.product is not None:
            is_fused = self.uses_as_operand == 1 and kind in (arith.AddfOp, arith.SubfOp)
            self.product.cost = 0.0 if is_fused else 1.0

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = SSAValue.__hash__


_INDEX_KINDS: dict[type[Operation], str] = {
    arith.AddiOp: "add", arith.SubiOp: "sub", arith.MuliOp: "mul", arith.DivUIOp: "div", arith.FloorDivSIOp: "div",
    arith.DivSIOp: "div", arith.RemUIOp: "mod", arith.RemSIOp: "mod", arith.MinSIOp: "min", arith.MaxSIOp: "max",
    arith.MinUIOp: "min", arith.MaxUIOp: "max",
}  # fmt: skip
_BOUNDING = (arith.MinSIOp, arith.MaxSIOp, arith.MinUIOp, arith.MaxUIOp)
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
            found = Value(i1, None, () if comparison.is_known else (comparison,))
            found.number = 1 if comparison.is_known else None
            return found
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
        if kind == "and" and (a.number == 1 or b.number == 1):
            return b if a.number == 1 else a
        found = Value(i1)
        if kind in ("eq", "ne") and b.number is not None:
            is_same = bool(b.number) == (kind == "eq")
            found.conditions = a.conditions if is_same else (Otherwise(a.conditions),)
        elif kind == "and":
            found.conditions = (*a.conditions, *b.conditions)
        elif kind == "or":
            sides = a.conditions, b.conditions
            found.conditions = (AnyOf(sides),) if all(sides) else ()
        else:
            found.conditions = (Chance(0.5),)
        if not (a.conditions and b.conditions):
            self._here.append(Step(operands=(a, b), result=found))  # of values that were loaded
        return found

    def select(self, condition: Predicate | Scalar, a: Scalar, b: Scalar) -> Scalar:
        plain = condition.value if isinstance(condition, Predicate) else condition
        then, otherwise = cast("Value", a), cast("Value", b)
        if then.position is not None and otherwise.position is not None:
            return one_of(then, otherwise)
        if then.type == i1:
            return Value(i1, None, (Chance(0.5),))
        return self._computed(arith.SelectOp, (cast("Value", plain), then, otherwise), then.type)

    def math(self, kind: str, a: Scalar) -> Scalar:
        return self._computed(MATH[kind], (cast("Value", a),), a.type)

    def _computed(self, kind: type[Operation], operands: tuple[Value, ...], type: Attribute) -> Value:
        """The result of an operation on scalars or vectors."""
        found, sources = Value(type), _NOTHING
        for operand in operands:
            operand.used(kind)
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
        if isinstance(op, arith.ConstantOp):
            return cast("Value", self.constant(_number(op), type))
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
        if isinstance(op, arith.CmpiOp) and operands[0].type == i1:
            return self._logic(_PREDICATES[op.predicate.value.data], *operands)
        found = self._computed(kind, operands, type)
        if isinstance(type, IndexType):
            found.position = unknown_index()
        elif kind in _BOUNDING:
            found.limits = _clamped(_INDEX_KINDS[kind], *operands)
        return found

    def _given(self, operands: tuple[Value, ...], type: Attribute, cost: float = 0.0) -> Value:
        """The result of an operation on values."""
        result = Value(type)
        for operand in operands:
            operand.used()
            if operand.sources:
                result.sources = result.sources | operand.sources
        self._here.append(Step(cost, operands=operands, result=result))
        return result

    def mma(self, a: SSAValue, b: SSAValue, c: SSAValue) -> SSAValue:
        result = self._given((cast("Value", a), cast("Value", b), cast("Value", c)), c.type)
        step, type = self._here[-1], a.type
        assert isinstance(step, Step)
        assert isinstance(type, VectorType)
        # A lane has a 32nd of each operand, C's are 16 x 8.
        step.tensor = 2.0 * 16 * 8 * (prod(type.get_shape()) * WARP // 16)
        step.tensor_bytes = byte_width(type.element_type)
        return result

    def round_tf32(self, fragment: SSAValue) -> SSAValue:
        type = fragment.type
        count = type.element_count() if isinstance(type, VectorType) else 1
        return self._given((cast("Value", fragment),), type, ROUNDING * count)

    # Loops and memory.

    @contextmanager
    def _inside(self, inside: list[Node]) -> Generator[None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        outer, self._here = self._here, inside
        yield
        self._here = outer

    def _counted(self, name: str, begin: Value, end: Value, step: int) -> tuple[Loop, Position]:
        """A loop over an index, and its variable. Of bounds that depend on other variables it runs as often as at the
        middle of their range, of bounds of which nothing is known once."""
        (lo, first), (least, last) = begin.bounds, end.bounds
        most = max(1, -((lo - last) // step))
        is_constant = lo == first and least == last
        mean = float(most) if is_constant else max(1.0, (max(0, least - first) + last - lo) / 2 / step)
        if begin.is_unbounded or end.is_unbounded:
            mean = 1.0
        variable, start = Variable(name, most), self._position(begin)
        counts = step == 1 and start.as_int == 0
        return Loop(variable, mean, is_constant=is_constant, counts=counts), variable.position() * step + start

    def _access(
        self, buffer: Buffer, indices: Sequence[IndexLike], is_store: bool, conditions: tuple[Condition, ...]
    ) -> Access:
        place = [self._position(i) for i in indices]
        swizzled = None if buffer.swizzle is None else (place[-2], place[-1])
        access = Access(buffer, row_major(place, buffer.shape), is_store, conditions, swizzled=swizzled)
        self._here.append(access)
        return access

    def _loaded(self, access: Access, type: Attribute) -> Value:
        result = access.value = Value(type)
        if access.buffer.is_register:
            result.sources = frozenset((access.buffer,))
        return result


def unknown_index() -> Position:
    """An index that comes from memory."""
    return Variable("data", _UNKNOWN, is_data=True, is_unbounded=True).position()


def one_of(first: Value, second: Value) -> Value:
    """One of two indices: as a position the one that is no constant."""
    assert first.position is not None
    assert second.position is not None
    found = Value(_INDEX, second.position if first.position.as_int is not None else first.position)
    found.limits = min(first.bounds[0], second.bounds[0]), max(first.bounds[1], second.bounds[1])
    return found


def buffer_of(name: str, type: Attribute) -> Buffer:
    """The buffer of a memref."""
    assert isinstance(type, MemRefType)
    memory = type.memory_space
    space = memory.data if isinstance(memory, SpaceAttr) else None
    return Buffer(name, type.get_shape(), type.get_element_type(), space, swizzle_of(type))


def _index_of(value: Value) -> Value:
    """A number as an index."""
    if value.position is not None:
        position = value.position
    elif value.limits is None:
        position = unknown_index()
    else:
        position = Variable("data", value.limits[1] + 1, is_data=True).position()
    found = Value(_INDEX, position)
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
