"""The body of a vectorised loop, operation by operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.builder import Builder
from xdsl.dialects import arith, scf, vector
from xdsl.dialects.builtin import IndexType, VectorType, f32, i1
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint

from treadle.dialects.loop import (
    LaneMaskOp,
    LoadOp,
    StoreOp,
    StridedLoadOp,
    StridedStoreOp,
)
from treadle.dialects.scalar import number_op
from treadle.index.algebra import Comparison, alignment, split_linear
from treadle.index.contiguity import LANE, varies
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Expr, const, floordiv, var
from treadle.index.reader import IndexReader
from treadle.passes.loop.kernels import constant_index
from treadle.passes.loop.vector_forms import Unsupported, check_access, is_elementwise, vector_form
from treadle.schedules.work.rules import IN_MEMORY

# The blocks of a vectorised loop while they are written.


class Writer:
    """A block that is being written, and the emitter of its index arithmetic."""

    def __init__(self, block: Block, point: InsertPoint, emitter: IndexEmitter):
        self._block = block
        self._builder = Builder(point)
        self._emitter = emitter

    def insert(self, op: Operation) -> None:
        """Writes an operation at the end."""
        self._builder.insert(op)

    def emit(self, expr: Expr | int) -> SSAValue:
        """The value of an index expression."""
        self._emitter.move(self._builder.insertion_point)
        return self._emitter.emit(expr)

    def inside(self, block: Block) -> Writer:
        """The level of a block inside the operation that was inserted last; invariant index arithmetic goes before that
        operation."""
        parent = block.parent_op()
        assert parent is not None
        self._emitter.move(InsertPoint.before(parent))
        point = InsertPoint.at_end(block)
        return Writer(block, point, self._emitter.inside(point))

    def compare(self, comparison: Comparison) -> SSAValue:
        """Whether a comparison holds that all lanes agree on."""
        compare = arith.CmpiOp(self.emit(comparison.difference), self.emit(0), comparison.kind)
        self.insert(compare)
        return compare.result

    def combine(self, kind: type[Operation], a: SSAValue | None, b: SSAValue) -> SSAValue:
        """An operation on two values; the second one where there is no first."""
        if a is None:
            return b
        op = kind(a, b)  # pyright: ignore[reportCallIssue]
        self.insert(op)
        return op.results[0]


# Predicates of a vectorised loop: from comparisons of indices to the lanes in which they hold.


@dataclass(frozen=True)
class Uniform:
    """A truth value that is the same in all lanes."""

    value: SSAValue


Condition: TypeAlias = Comparison | Uniform


def depends_on_lane(condition: Condition) -> bool:
    """Whether a condition may hold in some lanes and not in others."""
    return isinstance(condition, Comparison) and varies(condition.difference)


@dataclass(frozen=True)
class LaneRange:
    """Lanes from the largest of `lows` up to, without, the smallest of `highs`, if all of `uniform` hold."""

    lows: tuple[Expr, ...]
    highs: tuple[Expr, ...]
    uniform: tuple[Condition, ...]

    def is_everything(self) -> bool:
        return not (self.lows or self.highs or self.uniform)


def lanes_where(comparisons: Sequence[Condition], lanes: int) -> LaneRange:
    """The lanes in which all comparisons hold; Unsupported where one is not affine in the lane."""
    lows: list[Expr] = []
    highs: list[Expr] = []
    uniform: list[Condition] = []
    for comparison in comparisons:
        if isinstance(comparison, Uniform) or not depends_on_lane(comparison):
            uniform.append(comparison)
            continue
        is_low, bound = _bound(comparison)
        lo, hi = bound.range()
        if is_low and (hi is None or hi > 0):
            lows.append(bound)
        elif not is_low and (lo is None or lo < lanes):
            highs.append(bound)
    return LaneRange(tuple(dict.fromkeys(lows)), tuple(dict.fromkeys(highs)), tuple(uniform))


def _bound(comparison: Comparison) -> tuple[bool, Expr]:
    """(True, b) for lane >= b, (False, b) for lane < b."""
    split = split_linear(comparison.difference, LANE)
    slope = None if split is None else split[0].as_int()
    if split is None or slope is None or comparison.kind in ("eq", "ne"):
        raise Unsupported(f"a predicate that is not affine in the lane: {comparison.difference}")
    rest = split[1]
    if comparison.kind in ("sle", "sgt"):
        rest = rest - 1
    below = comparison.kind in ("slt", "sle")
    # below: slope * lane + rest < 0, else >= 0.
    if slope > 0:
        return not below, -floordiv(rest, slope)
    return below, floordiv(rest, -slope) + 1


index = IndexType()
_INDEX_ARITHMETIC = (
    arith.AddiOp, arith.SubiOp, arith.MuliOp, arith.DivUIOp, arith.RemUIOp, arith.FloorDivSIOp, arith.ConstantOp,
)  # fmt: skip


def vectorize_loop(loop: scf.ForOp, lanes: int) -> None:
    """Replaces a loop by its vector form; Unsupported, with the loop untouched, where it has none."""
    if constant_index(loop.lb) != 0 or constant_index(loop.step) != 1 or loop.iter_args:
        raise Unsupported("a loop that does not count up from 0 by 1")
    block = loop.parent_block()
    assert block is not None
    writer = _VectorWriter(lanes, IndexReader())
    outer = Writer(block, InsertPoint.before(loop), IndexEmitter(InsertPoint.before(loop)))
    end = writer.reader.read(loop.ub)
    trips = floordiv(end + (lanes - 1), lanes)
    variable = loop.body.block.args[0]
    before = set(block.ops)
    try:
        if trips.as_int() == 1:
            writer.begin(variable, const(0), end)
            writer.block(loop.body.block, outer)
        else:
            body = Block(arg_types=[index])
            new = scf.ForOp(outer.emit(0), outer.emit(trips), outer.emit(1), [], Region(body))
            new.attributes = {k: v for k, v in loop.attributes.items() if k != "loop.vector"}
            new.location = loop.location
            outer.insert(new)
            body.args[0].name_hint = variable.name_hint
            writer.begin(variable, var(body.args[0], 0, _last(trips)), end)
            writer.block(loop.body.block, outer.inside(body))
            body.add_op(scf.YieldOp())
    except Unsupported:
        for op in reversed([op for op in block.ops if op not in before]):
            op.detach()
            op.erase(safe_erase=False)
        raise
    loop.detach()
    loop.erase()


def _last(trips: Expr) -> int | None:
    hi = trips.range()[1]
    return None if hi is None else hi - 1


class _VectorWriter:
    """Writes the vector form of a scalar loop body.

    A scalar value is kept as it is where all lanes agree (`_scalars`), becomes a vector (`_vectors`), or, for
    comparisons of indices, a set of conditions (`_conditions`). Index arithmetic is not copied: each use is emitted
    anew from its expression, in which the loop's variable is `lanes * j + lane`.
    """

    def __init__(self, lanes: int, reader: IndexReader):
        self.reader = reader
        self._lanes = lanes
        self._substitution: dict[SSAValue, Expr] = {}
        self._scalars: dict[SSAValue, SSAValue] = {}
        self._vectors: dict[SSAValue, SSAValue] = {}
        self._conditions: dict[SSAValue, tuple[Condition, ...]] = {}
        self._always: tuple[Condition, ...] = ()

    def begin(self, variable: SSAValue, trip: Expr, end: Expr) -> None:
        """Sets the loop's variable, and the condition under which a lane is inside the loop."""
        whole = trip * self._lanes + var(LANE, 0, self._lanes - 1)
        self._substitution[variable] = whole
        if alignment(end) % self._lanes:
            self._always = (Comparison("slt", whole - end),)

    def block(self, block: Block, level: Writer) -> None:
        """Writes the operations of a block of the scalar loop."""
        for op in block.ops:
            if not isinstance(op, scf.YieldOp):
                self._operation(op, level)

    def _operation(self, op: Operation, level: Writer) -> None:
        if isinstance(op, _INDEX_ARITHMETIC) and isinstance(op.results[0].type, IndexType):
            return
        if isinstance(op, arith.CmpiOp) and isinstance(op.lhs.type, IndexType):
            found = self.reader.comparisons(op, self._substitution)
            if found is None:
                raise Unsupported("an unsigned comparison of numbers that may be negative")
            self._conditions[op.result] = found
        elif isinstance(op, arith.AndIOp) and (op.lhs in self._conditions or op.rhs in self._conditions):
            self._conditions[op.result] = self._condition(op.lhs) + self._condition(op.rhs)
        elif isinstance(op, LoadOp):
            self._load(op, level)
        elif isinstance(op, StoreOp):
            self._store(op, level)
        elif isinstance(op, scf.ForOp):
            self._loop(op, level)
        elif is_elementwise(op):
            self._elementwise(op, level)
        else:
            raise Unsupported(f"{op.name} inside a vector loop")

    def _expr(self, value: SSAValue) -> Expr:
        return self.reader.read(value).substitute(self._substitution)

    def _is_uniform(self, value: SSAValue) -> bool:
        if isinstance(value.type, IndexType):
            return not varies(self._expr(value))
        return value not in self._vectors and not any(map(depends_on_lane, self._conditions.get(value, ())))

    def _condition(self, value: SSAValue) -> tuple[Condition, ...]:
        """A predicate as comparisons and truth values that all have to hold."""
        if value in self._conditions:
            return self._conditions[value]
        if value in self._vectors:
            raise Unsupported("a predicate that is no comparison of indices")
        return (Uniform(self._scalars.get(value, value)),)

    def _scalar(self, value: SSAValue, level: Writer) -> SSAValue:
        if isinstance(value.type, IndexType):
            return level.emit(self._expr(value))
        if value in self._conditions:
            return self._truth(self._conditions[value], level)
        return self._scalars.get(value, value)

    def _truth(self, comparisons: Sequence[Condition], level: Writer) -> SSAValue:
        """The conjunction of comparisons that all lanes agree on."""
        result: SSAValue | None = None
        for comparison in comparisons:
            truth = comparison.value if isinstance(comparison, Uniform) else level.compare(comparison)
            if result is None:
                result = truth
            else:
                both = arith.AndIOp(result, truth)
                level.insert(both)
                result = both.result
        assert result is not None
        return result

    def _vector(self, value: SSAValue, level: Writer) -> SSAValue:
        """The value in every lane."""
        known = self._vectors.get(value)
        if known is not None:
            return known
        if value.type == i1:
            return self._mask(self._condition(value), level) or self._lane_mask(0, self._lanes, level)
        if not self._is_uniform(value):
            raise Unsupported("an index that differs between lanes used as a value")
        scalar = self._scalar(value, level)
        broadcast = vector.BroadcastOp(scalar, self._type(scalar.type))
        level.insert(broadcast)
        return broadcast.results[0]

    def _type(self, element: Attribute) -> VectorType:
        """The vector of an element in memory or in every lane. Bools in memory are bytes, which no mask is."""
        if element not in IN_MEMORY:
            raise Unsupported(f"vectors of {element}")
        return VectorType(element, [self._lanes])

    def _mask(self, comparisons: Sequence[Condition], level: Writer) -> SSAValue | None:
        """The mask of the lanes in which all comparisons hold; None for all lanes."""
        where = lanes_where(comparisons, self._lanes)
        if where.is_everything():
            return None
        lo: SSAValue | None = None
        for bound in where.lows:
            lo = level.combine(arith.MaxSIOp, lo, level.emit(bound))
        hi: SSAValue | None = None
        for bound in where.highs:
            hi = level.combine(arith.MinSIOp, hi, level.emit(bound))
        hi = level.emit(self._lanes) if hi is None else hi
        if where.uniform:
            select = arith.SelectOp(self._truth(where.uniform, level), hi, level.emit(0))
            level.insert(select)
            hi = select.result
        return self._lane_mask(0 if lo is None else lo, hi, level)

    def _lane_mask(self, lo: SSAValue | int, hi: SSAValue | int, level: Writer) -> SSAValue:
        lo, hi = (level.emit(bound) if isinstance(bound, int) else bound for bound in (lo, hi))
        mask = LaneMaskOp(lo, hi, self._lanes)
        level.insert(mask)
        return mask.mask

    def _address(self, op: LoadOp | StoreOp) -> tuple[list[Expr], int]:
        """The index of lane 0, and the stride of the lanes along the last dimension."""
        exprs = [self._expr(i) for i in op.indices]
        if any(map(varies, exprs[:-1])):
            raise Unsupported("lanes along an outer dimension of a buffer")
        if not exprs:
            return [], 0
        split = split_linear(exprs[-1], LANE)
        stride = None if split is None else split[0].as_int()
        if split is None or stride is None:
            raise Unsupported(f"an index that is not affine in the lane: {exprs[-1]}")
        return [*exprs[:-1], split[1]], stride

    def _predicate(self, op: LoadOp | StoreOp) -> tuple[Condition, ...]:
        if op.predicate is None:
            return ()
        return self._condition(op.predicate)

    def _load(self, op: LoadOp, level: Writer) -> None:
        where, stride = self._address(op)
        predicate = self._predicate(op)
        if stride == 0:
            self._uniform_load(op, where, predicate, level)
            return
        if predicate and not any(map(depends_on_lane, predicate)):
            self._guarded_load(op, where, stride, predicate, level)
            return
        self._finish(op, self._vector_load(op, where, stride, (*self._always, *predicate), level), level)

    def _vector_load(
        self,
        op: LoadOp,
        where: Sequence[Expr],
        stride: int,
        conditions: Sequence[Condition],
        level: Writer,
        otherwise: SSAValue | None = None,
    ) -> Operation:
        """The load of the lanes in which the conditions hold, not inserted yet.

        otherwise: what the other lanes get, where it is written already
        """
        type = self._type(op.result.type)
        indices = [level.emit(e) for e in where]
        mask = self._mask(conditions, level)
        check_access(type, stride, mask)
        if mask is None:
            if stride != 1:
                return StridedLoadOp(op.buffer, indices, stride, type)
            return vector.LoadOp(op.buffer, indices, type)
        otherwise = otherwise or self._otherwise(op, level)
        if stride != 1:
            return StridedLoadOp(op.buffer, indices, stride, type, mask, otherwise)
        return vector.MaskedLoadOp(op.buffer, indices, mask, otherwise)

    def _guarded_load(
        self, op: LoadOp, where: Sequence[Expr], stride: int, predicate: tuple[Condition, ...], level: Writer
    ) -> None:
        """A load on whose predicate all lanes agree: a branch, since masked loads of no lane are slow where their
        address is no memory."""
        otherwise = self._otherwise(op, level)
        load = self._vector_load(op, where, stride, self._always, level, otherwise)
        load.location, load.attributes = op.location, load.attributes | op.attributes
        taken, skipped = scf.YieldOp(load.results[0]), scf.YieldOp(otherwise)
        taken.location = skipped.location = op.location
        new = scf.IfOp(self._truth(predicate, level), [otherwise.type], [load, taken], [skipped])
        new.location = op.location
        new.results[0].name_hint = op.result.name_hint
        level.insert(new)
        self._vectors[op.result] = new.results[0]

    def _otherwise(self, op: LoadOp, level: Writer) -> SSAValue:
        if op.otherwise is not None:
            return self._vector(op.otherwise, level)
        zero = number_op(0, op.result.type)
        level.insert(zero)
        return self._vector(zero.results[0], level)

    def _uniform_load(self, op: LoadOp, where: Sequence[Expr], predicate: tuple[Condition, ...], level: Writer) -> None:
        varies = op.otherwise is not None and not self._is_uniform(op.otherwise)
        if varies or any(map(depends_on_lane, predicate)):
            self._splat_load(op, where, predicate, level)
            return
        guard = self._truth(predicate, level) if predicate else None
        otherwise = None if op.otherwise is None else self._scalar(op.otherwise, level)
        new = LoadOp(op.buffer, [level.emit(e) for e in where], guard, otherwise)
        new.location = op.location
        new.attributes |= op.attributes
        new.result.name_hint = op.result.name_hint
        level.insert(new)
        self._scalars[op.result] = new.result
        self._substitution[op.result] = var(new.result, None, None)

    def _splat_load(self, op: LoadOp, where: Sequence[Expr], predicate: tuple[Condition, ...], level: Writer) -> None:
        """One element in all lanes in which the predicate is true: a strided load of stride 0."""
        mask = self._mask((*self._always, *predicate), level)
        type, indices = self._type(op.result.type), [level.emit(e) for e in where]
        check_access(type, 0, mask)
        otherwise = None if mask is None else self._otherwise(op, level)
        self._finish(op, StridedLoadOp(op.buffer, indices, 0, type, mask, otherwise), level)

    def _store(self, op: StoreOp, level: Writer) -> None:
        where, stride = self._address(op)
        if stride == 0:
            raise Unsupported("lanes that write one element")
        type = self._type(op.value.type)
        value = self._vector(op.value, level)
        indices = [level.emit(e) for e in where]
        predicate = self._predicate(op)
        if type.element_type != f32 and stride == 1 and predicate and not self._depends_on_lane(predicate):
            self._guarded_store(op, value, indices, predicate, level)
            return
        mask = self._mask((*self._always, *predicate), level)
        check_access(type, stride, mask)
        if stride != 1:
            new: Operation = StridedStoreOp(value, op.buffer, indices, stride, mask)
        elif mask is None:
            new = vector.StoreOp(value, op.buffer, indices)
        else:
            new = vector.MaskedStoreOp(op.buffer, indices, mask, value)
        new.location = op.location
        new.attributes |= op.attributes
        level.insert(new)

    def _depends_on_lane(self, predicate: Sequence[Condition]) -> bool:
        return any(map(depends_on_lane, (*self._always, *predicate)))

    def _guarded_store(
        self, op: StoreOp, value: SSAValue, indices: Sequence[SSAValue], predicate: Sequence[Condition], level: Writer
    ) -> None:
        """A store on whose predicate all lanes agree, of elements of which there are no masked stores: a branch."""
        store, end = vector.StoreOp(value, op.buffer, indices), scf.YieldOp()
        new = scf.IfOp(self._truth(predicate, level), [], [store, end])
        store.attributes |= op.attributes
        for each in (store, end, new):
            each.location = op.location
        level.insert(new)

    def _finish(self, old: Operation, new: Operation, level: Writer) -> None:
        new.location = old.location
        new.attributes |= old.attributes
        new.results[0].name_hint = old.results[0].name_hint
        level.insert(new)
        self._vectors[old.results[0]] = new.results[0]

    def _loop(self, op: scf.ForOp, level: Writer) -> None:
        """An inner loop: the same loop, carrying vectors."""
        for bound in (op.lb, op.ub, op.step):
            if not self._is_uniform(bound):
                raise Unsupported("a loop inside whose bounds differ between lanes")
        lower, upper, step = (self._scalar(bound, level) for bound in (op.lb, op.ub, op.step))
        initial = [self._vector(value, level) for value in op.iter_args]
        body = Block(arg_types=[index, *(value.type for value in initial)])
        new = scf.ForOp(lower, upper, step, initial, Region(body))
        new.attributes = {k: v for k, v in op.attributes.items() if k != "loop.vector"}
        new.location = op.location
        level.insert(new)
        old_variable, *old_carried = op.body.block.args
        for old, arg in zip(op.body.block.args, body.args, strict=True):
            arg.name_hint = old.name_hint
        lo, hi = self.reader.read(old_variable).range()
        self._substitution[old_variable] = var(body.args[0], lo, hi)
        self._vectors.update(zip(old_carried, body.args[1:], strict=True))
        inner = level.inside(body)
        self.block(op.body.block, inner)
        end = op.body.block.last_op
        assert isinstance(end, scf.YieldOp)
        body.add_op(scf.YieldOp(*(self._vector(value, inner) for value in end.arguments)))
        for old, result in zip(op.results, new.results, strict=True):
            result.name_hint = old.name_hint
            self._vectors[old] = result

    def _elementwise(self, op: Operation, level: Writer) -> None:
        if all(self._is_uniform(value) for value in op.operands):
            self._copy(op, level)
            return
        operands = [self._vector(value, level) for value in op.operands]
        self._finish(op, vector_form(op, operands), level)

    def _copy(self, op: Operation, level: Writer) -> None:
        """An operation that gives the same in every lane."""
        new = op.clone({value: self._scalar(value, level) for value in op.operands})
        level.insert(new)
        result = op.results[0]
        self._scalars[result] = new.results[0]
        if isinstance(result.type, IndexType):
            lo, hi = self.reader.read(result).range()
            self._substitution[result] = var(new.results[0], lo, hi)
