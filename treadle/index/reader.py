"""Index arithmetic of the IR (`arith` on `index`) read into expressions, and what the IR says of them.

A variable's key is the SSA value that it stands for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from math import prod
from typing import TypeAlias

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType, MemRefType, Signedness, TensorType
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from treadle.errors import TreadleError
from treadle.index.algebra import Comparison, comparisons_of, function_of
from treadle.index.bounds import facts_of, range_under
from treadle.index.expr import (
    UNBOUNDED,
    Expr,
    Range,
    const,
    floordiv,
    intersection,
    is_empty,
    is_inside,
    mod,
    range_max,
    range_min,
    range_of_bits,
    range_sum,
    range_union,
    var,
)

# The interface by which an operation bounds the indices that it defines.


class HasIndexRanges(Operation, ABC):
    """An operation that bounds indices: arguments of its blocks, or its results.

    Index algebra asks every operation through it, and depends on no dialect but `arith` and `scf`.
    """

    @abstractmethod
    def index_range(self, value: SSAValue) -> Range | None:
        """The inclusive bounds of a block argument or a result; None where it is no index that this bounds."""


_INDEX_BITS = 64


def integer_range(value: SSAValue) -> Range:
    """The bounds of an integer, by its type and by the constants that clamp it."""
    op, type = value.owner, value.type
    if isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr):
        return op.value.value.data, op.value.value.data
    if isinstance(op, arith.MinSIOp):
        return range_min(integer_range(op.lhs), integer_range(op.rhs))
    if isinstance(op, arith.MaxSIOp):
        return range_max(integer_range(op.lhs), integer_range(op.rhs))
    if not isinstance(type, IntegerType) or type.width.data == 1:
        return None, None
    bits = type.width.data
    if type.signedness.data is Signedness.UNSIGNED:
        return (0, (1 << bits) - 1) if bits < _INDEX_BITS else (None, None)
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


class IndexReader:
    """Reads index arithmetic into expressions; every value is read once.

    A value that is no arithmetic becomes a variable. Its bounds are those that its operation gives (`HasIndexRanges`);
    else loop variables are bounded by their loop, minima and maxima by their operands, results of branches by both
    sides; arguments of other blocks count from 0. Other values, such as data and values carried by loops, are
    unbounded.

    known: expressions for given values, for example digits of one variable
    functions: a value that is no arithmetic is an unknown function of the indices that it is computed from, and so
        advances along none of them by one stride; without, it is a variable by itself

    Unsigned division and remainder are read as floor division: their operands are non-negative by contract.
    """

    def __init__(self, known: Mapping[SSAValue, Expr] | None = None, functions: bool = False) -> None:
        self._functions = functions
        self._read: dict[SSAValue, Expr] = dict(known or {})

    def read(self, value: SSAValue) -> Expr:
        """The expression that computes `value`, an index."""
        expr = self._read.get(value)
        if expr is None:
            expr = self._read[value] = self._through(value)
        return expr

    def comparisons(
        self, op: arith.CmpiOp, replacement: Mapping[SSAValue, Expr] | None = None
    ) -> tuple[Comparison, ...] | None:
        """The conjunction that a comparison of indices is, with variables replaced; None where it is unsigned
        and has no signed form."""
        lhs, rhs = self.read(op.lhs), self.read(op.rhs)
        if replacement:
            lhs, rhs = lhs.substitute(replacement), rhs.substitute(replacement)
        return comparisons_of(arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data], lhs, rhs)

    def _through(self, value: SSAValue) -> Expr:
        op = value.owner
        if not isinstance(value.type, IndexType) or isinstance(op, Block):
            return self._opaque(value)
        if isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr):
            return const(op.value.value.data)
        if isinstance(op, arith.AddiOp):
            return self.read(op.lhs) + self.read(op.rhs)
        if isinstance(op, arith.SubiOp):
            return self.read(op.lhs) - self.read(op.rhs)
        if isinstance(op, arith.MuliOp):
            return self.read(op.lhs) * self.read(op.rhs)
        if isinstance(op, arith.DivUIOp | arith.FloorDivSIOp | arith.DivSIOp | arith.RemUIOp | arith.RemSIOp):
            return self._quotient(op, value)
        return self._opaque(value)

    def _quotient(
        self,
        op: arith.DivUIOp | arith.FloorDivSIOp | arith.DivSIOp | arith.RemUIOp | arith.RemSIOp,
        value: SSAValue,
    ) -> Expr:
        dividend, divisor = self.read(op.lhs), self.read(op.rhs).as_int()
        if divisor is None or divisor <= 0:
            return self._opaque(value)
        lo, _ = dividend.range()
        if isinstance(op, arith.DivSIOp | arith.RemSIOp) and (lo is None or lo < 0):
            return self._opaque(value)
        if isinstance(op, arith.RemUIOp | arith.RemSIOp):
            return mod(dividend, divisor)
        return floordiv(dividend, divisor)

    def _opaque(self, value: SSAValue) -> Expr:
        op = value.owner
        if self._functions and not isinstance(op, Block):
            inside = [i for i in op.operands if isinstance(i.type, IndexType) or not isinstance(i.owner, Block)]
            return function_of(value, [self.read(i) for i in inside if not isinstance(i.type, TensorType)])
        lo, hi = self._range(value)
        return const(lo) if lo is not None and lo == hi else var(value, lo, hi)

    def _range(self, value: SSAValue) -> Range:
        op = value.owner
        definer = op.parent_op() if isinstance(op, Block) else op
        given = definer.index_range(value) if isinstance(definer, HasIndexRanges) else None
        if given is not None:
            return given
        if isinstance(op, Block):
            return self._loop_range(value, op)
        if isinstance(op, arith.MinUIOp | arith.MinSIOp):
            return range_min(self.read(op.lhs).range(), self.read(op.rhs).range())
        if isinstance(op, arith.MaxUIOp | arith.MaxSIOp):
            return range_max(self.read(op.lhs).range(), self.read(op.rhs).range())
        if isinstance(op, arith.SelectOp):
            return self._selected(op)
        if isinstance(op, arith.AndIOp | arith.OrIOp | arith.XOrIOp):
            return range_of_bits(self.read(op.lhs).range(), self.read(op.rhs).range())
        if isinstance(op, arith.IndexCastOp):
            return integer_range(op.input)
        if isinstance(op, scf.IfOp) and isinstance(value.type, IndexType):
            return self._branch_range(op, op.results.index(value))
        if isinstance(op, scf.ForOp) and isinstance(value.type, IndexType):
            return self._carried_range(value)
        return None, None

    def _carried_range(self, value: SSAValue) -> Range:
        """The bounds of an index that loops carry, which are known where all that it may be are numbers and
        remainders."""
        pending, seen, found = [value], set[SSAValue](), list[Range]()
        while pending:
            each = pending.pop()
            if each in seen:
                continue
            seen.add(each)
            sources = _carried_from(each)
            if sources is not None:
                pending += sources
            elif isinstance(each.owner, arith.RemUIOp) and (divisor := self.read(each.owner.rhs).as_int()):
                found.append((0, divisor - 1))
            elif isinstance(each.owner, arith.ConstantOp):
                found.append(self.read(each).range())
            else:
                return None, None
        return reduce(range_union, found)

    def _branch_range(self, op: scf.IfOp, position: int) -> Range:
        """The bounds of the values that both branches yield; xDSL accepts a branch that yields nothing."""
        ends = [block.last_op for region in op.regions for block in region.blocks]
        yielded = [end.operands[position] for end in ends if end is not None and position < len(end.operands)]
        if len(yielded) < 2:
            return None, None
        lhs, rhs = (self.read(value).range() for value in yielded)
        return range_union(lhs, rhs)

    def _selected(self, op: arith.SelectOp) -> Range:
        """The bounds of both sides, each under the condition that selects it."""
        lhs, rhs, condition = self.read(op.lhs), self.read(op.rhs), op.cond.owner
        found: Sequence[Comparison] = ()
        if isinstance(condition, arith.CmpiOp) and isinstance(condition.lhs.type, IndexType):
            found = self.comparisons(condition) or ()
        otherwise = [found[0].negated()] if len(found) == 1 else []
        sides = range_under(lhs, facts_of(found)), range_under(rhs, facts_of(otherwise))
        possible = [side for side in sides if not is_empty(side)]
        return reduce(range_union, possible or [lhs.range(), rhs.range()])

    def _loop_range(self, value: SSAValue, block: Block) -> Range:
        loop = block.parent_op()
        if not isinstance(value, BlockArgument) or not isinstance(loop, scf.ForOp):
            return 0, None
        if not isinstance(value.type, IndexType):
            return None, None
        if value.index > 0:
            return self._carried_range(value)
        (lo, first), (_, end) = self.read(loop.lb).range(), self.read(loop.ub).range()
        step = self.read(loop.step).as_int()
        if end is not None and step is not None and lo == first and lo is not None and end > lo and step > 0:
            return lo, lo + (end - 1 - lo) // step * step
        return lo, None if end is None else end - 1


def _carried_from(value: SSAValue) -> Sequence[SSAValue] | None:
    """What a value that a loop carries may be: before the first iteration, and after one; None for others."""
    owner = value.owner
    loop = owner.parent_op() if isinstance(owner, Block) else owner
    if not isinstance(loop, scf.ForOp):
        return None
    position = value.index - isinstance(owner, Block) if isinstance(value, BlockArgument | OpResult) else -1
    end = loop.body.block.last_op
    return None if position < 0 or end is None else (loop.iter_args[position], end.operands[position])


# What is known of indices from the IR: predicates, the branches around an operation, how a value is defined.


def comparisons_in(reader: IndexReader, condition: SSAValue, holds: bool = True) -> Iterator[Comparison]:
    """The comparisons of indices that are necessary for a condition (of type i1) to be true, or to be false."""
    op = condition.owner
    if isinstance(op, arith.AndIOp if holds else arith.OrIOp):
        for side in op.operands:
            yield from comparisons_in(reader, side, holds)
    elif isinstance(op, arith.CmpiOp) and isinstance(op.lhs.type, IndexType):
        found = reader.comparisons(op) or ()
        if holds:
            yield from found
        elif len(found) == 1:
            yield found[0].negated()


def comparisons_around(reader: IndexReader, op: Operation) -> Iterator[Comparison]:
    """The comparisons that are true wherever an operation runs: those of the branches around it, and that its loops run
    at all."""
    inner, outer = op, op.parent_op()
    while outer is not None:
        if isinstance(outer, scf.IfOp):
            yield from comparisons_in(reader, outer.cond, inner.parent_region() is outer.true_region)
        if isinstance(outer, scf.ForOp) and isinstance(outer.lb.type, IndexType):
            yield Comparison("slt", reader.read(outer.lb) - reader.read(outer.ub))
        inner, outer = outer, outer.parent_op()


_Choice: TypeAlias = arith.SelectOp | arith.MinSIOp | arith.MaxSIOp
_CHOICES = 6
"""The most selects whose branches are analysed separately: mirroring or clamping at borders takes two a dimension. A
minimum or maximum is the last choice: its sides say something of every access that is clamped, at a price."""


class Bounds:
    """The ranges of indices under conditions and under what defines them: loops and minima have symbolic bounds."""

    def __init__(self, reader: IndexReader) -> None:
        self._reader = reader
        self._definitions: dict[SSAValue, tuple[Expr, ...]] = {}

    def range(self, e: Expr, comparisons: Iterable[Comparison], enough: Range = UNBOUNDED) -> Range:
        """The bounds of `e` where the comparisons hold.

        enough: closer bounds are not looked for, and this is the answer if the comparisons contradict each other;
            selects, minima and maxima are analysed by their sides only if it is given
        """
        facts = list(facts_of(comparisons))
        found = self._range(e, facts, enough, _CHOICES)
        if found is None:
            return e.range() if enough == UNBOUNDED else enough
        return found

    def _range(self, e: Expr, facts: Sequence[Expr], enough: Range, choices: int) -> Range | None:
        """The bounds of e; None if the facts contradict each other."""
        if any(hi is not None and hi < 0 for _, hi in (fact.range() for fact in facts)):
            return None
        found = self._under(e, facts, enough)
        if is_empty(found):
            return None
        if enough == UNBOUNDED or is_inside(found, enough):
            return found
        chosen = _choice(e, facts) if choices > 0 else None
        if chosen is None:
            return found
        left = choices - (1 if isinstance(chosen, arith.SelectOp) else _CHOICES)
        sides: list[Range] = []
        for value, conditions in self._sides(chosen):
            side = {chosen.result: value}
            given = [*(fact.substitute(side) for fact in facts), *facts_of(conditions)]
            taken = self._range(e.substitute(side), given, enough, left)
            sides += [] if taken is None else [taken]
        return intersection(found, reduce(range_union, sides)) if sides else None

    def _sides(self, op: _Choice) -> Iterator[tuple[Expr, Iterable[Comparison]]]:
        """The two values that an operation may have, and what holds if it has them."""
        lhs, rhs = self._reader.read(op.lhs), self._reader.read(op.rhs)
        if isinstance(op, arith.SelectOp):
            yield lhs, comparisons_in(self._reader, op.cond, True)
            yield rhs, comparisons_in(self._reader, op.cond, False)
            return
        kinds = ("sle", "sge") if isinstance(op, arith.MinSIOp) else ("sge", "sle")
        for value, kind in zip((lhs, rhs), kinds, strict=True):
            yield value, [Comparison(kind, lhs - rhs)]

    def _under(self, e: Expr, given: Sequence[Expr], enough: Range) -> Range:
        """The bounds of e under facts, and under the definitions of the variables."""
        facts = list(given)
        steps: dict[SSAValue, Expr] = {}
        seen: set[object] = set()
        open_expressions = [e, *facts]
        while open_expressions:
            for v in open_expressions.pop().vars():
                if v.key in seen or not isinstance(v.key, SSAValue):
                    continue
                seen.add(v.key)
                found = self._defining(v.key)
                facts += found
                open_expressions += found
                whole = self._in_steps(v.key)
                if whole is not None:
                    steps[v.key] = whole
        return range_under(e.substitute(steps), [fact.substitute(steps) for fact in facts], enough)

    def _in_steps(self, value: SSAValue) -> Expr | None:
        """The variable of a loop that begins at a constant, in terms of the number of the iteration; None for a step of
        1."""
        loop = value.owner.parent_op() if isinstance(value.owner, Block) else None
        if not isinstance(loop, scf.ForOp) or value is not loop.body.block.args[0]:
            return None
        start, step = self._reader.read(loop.lb).as_int(), self._reader.read(loop.step).as_int()
        lo, hi = self._reader.read(value).range()
        if start is None or step is None or step < 2 or lo != start:
            return None
        return var(("iteration", value), 0, None if hi is None else (hi - start) // step) * step + start

    def _defining(self, value: SSAValue) -> tuple[Expr, ...]:
        found = self._definitions.get(value)
        if found is None:
            found = self._definitions[value] = tuple(f for f in self._facts(value) if f.terms)
        return found

    def _facts(self, value: SSAValue) -> Iterator[Expr]:
        """Expressions that are never negative because of how a value is defined."""
        op, read = value.owner, self._reader.read
        own = read(value)
        if isinstance(op, arith.MinSIOp | arith.MinUIOp):
            yield from (read(side) - own for side in op.operands)
        elif isinstance(op, arith.MaxSIOp | arith.MaxUIOp):
            yield from (own - read(side) for side in op.operands)
        elif isinstance(op, Block) and isinstance(loop := op.parent_op(), scf.ForOp) and value is op.args[0]:
            yield own - read(loop.lb)
            yield read(loop.ub) - 1 - own


def _choice(e: Expr, facts: Iterable[Expr]) -> _Choice | None:
    """A select of indices that is a variable of the expressions; without one, a minimum or maximum of `e`."""
    keys = [v.key for each in (e, *facts) for v in each.vars()]
    selects = (key.owner for key in keys if isinstance(key, SSAValue) and isinstance(key.owner, arith.SelectOp))
    own = (v.key.owner for v in e.vars() if isinstance(v.key, SSAValue))
    return next(selects, None) or next((op for op in own if isinstance(op, _Choice)), None)


# How many bits the index arithmetic of a kernel needs, by the ranges of its values, not by the sizes of its
# buffers.

_NARROW: Range = (-(1 << 31), (1 << 31) - 1)
"""The range of an integer of 32 bits."""


def index_reach(root: Operation) -> Range:
    """Bounds of every index that is computed inside an operation; None on a side where one is not known.

    Intermediate results count (a product that is divided again, what a dividend is shifted by), as do a loop's variable
    after its last iteration and the addresses of the elements of local buffers, which text may compute from indices.
    """
    total: Range = (0, 0)
    reader = IndexReader()
    for op in root.walk():
        for found in _reached(op, reader):
            total = range_union(total, found)
    return total


def index_bits(root: Operation, where: str) -> int:
    """32 or 64: the bits that every index inside an operation fits; 64 where bounds are not known.

    Raises TreadleError, naming `where`, for an index that is known to reach beyond 64 bits.
    """
    reach = index_reach(root)
    lo, hi = reach
    if (lo is not None and lo < -(1 << 63)) or (hi is not None and hi >= 1 << 63):
        raise TreadleError(
            f"an index reaches {lo} to {hi}", where, "tensors whose positions fit 64 bits, stored or not"
        )
    return 32 if is_inside(reach, _NARROW) else 64


def _reached(op: Operation, reader: IndexReader) -> Iterator[Range]:
    if isinstance(op, scf.ForOp) and isinstance(op.lb.type, IndexType):
        yield range_sum(reader.read(op.body.block.args[0]).range(), reader.read(op.step).range())
    for value in _defined(op):
        if isinstance(value.type, IndexType):
            yield reader.read(value).range()
        elif isinstance(value.type, MemRefType):
            yield 0, prod(value.type.get_shape())


def _defined(op: Operation) -> Iterator[SSAValue]:
    yield from op.results
    for region in op.regions:
        for block in region.blocks:
            yield from block.args
