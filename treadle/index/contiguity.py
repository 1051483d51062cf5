"""Contiguity: addresses and conditions as functions of `lanes` consecutive values of a variable.

The variable is written as `lanes * group + lane`; a vector takes the lanes of one group. An address is a *run* if
consecutive lanes access consecutive elements, and lane 0 one at a multiple of `lanes`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, SSAValue

from treadle.index.algebra import Comparison, alignment, depends_on, function_of, split_linear
from treadle.index.expr import Expr, const, floordiv, is_inside, var
from treadle.index.reader import IndexReader

LANE = "lane"
"""The key of the variable that numbers the lanes of a vector."""
GROUP = "group"
"""The key of the variable that numbers the vectors."""

_CONNECTIVES = (arith.AndIOp, arith.OrIOp, arith.XOrIOp)


def in_lanes(extent: int, lanes: int) -> Expr:
    """A variable of `extent` values as the number of a vector of `lanes` and a lane in it."""
    groups = -(-extent // lanes)
    group = var(GROUP, 0, groups - 1) if groups > 1 else const(0)
    return group * lanes + var(LANE, 0, lanes - 1)


def varies(e: Expr) -> bool:
    """Whether the lanes of one vector may have different values."""
    return depends_on(e, LANE)


def is_run(position: Expr, lanes: int) -> bool:
    """Whether consecutive lanes have consecutive positions, the first at a multiple of their number."""
    split = split_linear(position, LANE)
    return split is not None and split[0] == 1 and alignment(split[1]) % lanes == 0


def agree(comparison: Comparison, lanes: int) -> bool:
    """Whether a comparison holds in all lanes of each vector or in none: its difference has one sign in them."""
    kind, difference = comparison.kind, comparison.difference
    if not varies(difference):
        return True
    if kind in ("sle", "sgt"):
        difference = difference - 1
    return kind not in ("eq", "ne") and not varies(floordiv(difference, lanes))


def moves_as_vectors(positions: Iterable[Expr], conditions: Iterable[Comparison], lanes: int) -> bool:
    """Whether every position is uniform or a run, under conditions on which the lanes agree."""
    return all(not varies(p) or is_run(p, lanes) for p in positions) and all(agree(c, lanes) for c in conditions)


def merged_dimensions(
    extents: Sequence[int], places: Sequence[Expr], keys: Iterable[Hashable]
) -> tuple[list[int], list[Expr]]:
    """A tensor's extents, and an element's place along each, where neighbouring dimensions that a variable of `keys`
    moves along together are one: `i div 4` and `i mod 4` along 3 and 4 are `i` along 12."""
    extents, places, keys = list(extents), list(places), list(keys)
    for n in reversed(range(len(extents) - 1)):
        outer, inner, extent = places[n], places[n + 1], extents[n + 1]
        shared = any(depends_on(outer, key) and depends_on(inner, key) for key in keys)
        if shared and is_inside(inner.range(), (0, extent - 1)):
            places[n : n + 2] = [outer * extent + inner]
            extents[n : n + 2] = [extents[n] * extent]
    return extents, places


def widest(most: int, allows: Callable[[int], bool]) -> int:
    """The largest power of two up to `most` that is allowed; 1 always is."""
    return next((2**e for e in range(most.bit_length() - 1, 0, -1) if allows(2**e)), 1)


@dataclass(frozen=True)
class Lanes:
    """`count` values of a loop's variable at a time, in the loop's index arithmetic.

    reader: of the loop's indices; variable: counts from 0 to extent - 1; count: divides the extent

    A value that is no arithmetic but is computed from the variable (`min(%i, 5)`) may differ from lane to lane.
    """

    reader: IndexReader
    variable: SSAValue
    extent: int
    count: int

    def read(self, index: SSAValue) -> Expr:
        """The expression of an index, over group and lane in place of the variable."""
        return self.reader.read(index).substitute(self._in_lanes([index]))

    def is_run(self, indices: Sequence[SSAValue]) -> bool:
        """Whether an access is to consecutive elements along the last dimension, at the same index in the others."""
        if not indices:
            return False
        *outer, last = map(self.read, indices)
        return not any(map(varies, outer)) and is_run(last, self.count)

    def agree(self, predicate: SSAValue, is_inside: Callable[[SSAValue], bool]) -> bool:
        """Whether a predicate holds in all lanes of each vector or in none; what is outside the loop does."""
        op = predicate.owner
        if isinstance(op, arith.ConstantOp) or not is_inside(predicate):
            return True
        if isinstance(op, _CONNECTIVES):
            return all(self.agree(side, is_inside) for side in op.operands)
        if not isinstance(op, arith.CmpiOp) or not isinstance(op.lhs.type, IndexType):
            return False
        comparisons = self.reader.comparisons(op, self._in_lanes(op.operands))
        return comparisons is not None and all(agree(c, self.count) for c in comparisons)

    def _in_lanes(self, indices: Iterable[SSAValue]) -> dict[SSAValue, Expr]:
        """The replacements for the variable, and for values computed from it, in the expressions of some indices."""
        lanes = in_lanes(self.extent, self.count)
        found = {self.variable: lanes}
        for v in (v for index in indices for v in self.reader.read(index).vars()):
            key: object = v.key
            if isinstance(key, SSAValue) and key not in found and self._is_computed_from(key):
                found[key] = function_of(key, [lanes])
        return found

    def _is_computed_from(self, value: SSAValue) -> bool:
        """Whether a value may depend on the variable: it is defined where the variable is known."""
        home = self.variable.owner
        waiting, seen = [value], {value}
        for each in waiting:
            op = each.owner
            if op is home:
                return True
            if not isinstance(home, Block) or not home.is_ancestor(op):
                continue
            if isinstance(op, Block) or op.regions:
                return True
            new = [operand for operand in op.operands if operand not in seen]
            waiting += new
            seen.update(new)
        return False
