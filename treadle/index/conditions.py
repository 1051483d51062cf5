"""What is known of indices from the IR: predicates, the branches around an operation, how a value is defined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import TypeAlias

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, Operation, SSAValue

from treadle.index.bounds import facts_of, range_under
from treadle.index.comparison import Comparison
from treadle.index.expr import Expr, var
from treadle.index.ranges import UNBOUNDED, Range, intersection, is_empty, is_inside, range_union
from treadle.index.reader import IndexReader


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


__all__ = ["Bounds", "comparisons_around", "comparisons_in"]
