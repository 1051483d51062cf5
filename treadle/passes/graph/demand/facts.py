"""Facts about extents: conjunctions of `expression + constant < extent`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from xdsl.dialects import arith
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import AtOp, DemandedAttr
from treadle.dialects.graph.fused import Constraint
from treadle.errors import TreadleError
from treadle.index.expr import Expr

Facts: TypeAlias = Mapping[tuple[Expr, int], int]
"""(an expression without its constant, the number of an extent) -> the constant, with which it is less than the extent.
The larger the constant, the more a fact says; none at all say nothing."""

Extents: TypeAlias = Mapping[SSAValue, int]
"""The arguments of @main that are extents, and their numbers."""


def extents_of(main: FuncOp) -> Extents:
    """The last arguments of @main, as many as its attribute `extents` names; none without it."""
    names = main.attributes.get("extents")
    if not isinstance(names, ArrayAttr) or not names.data:
        return {}
    count, args = len(names.data), main.body.block.args
    return {arg: n for n, arg in enumerate(args[len(args) - count :])}


def unknown_extent(number: int, count: int) -> TreadleError:
    """The error of a demand on an extent that @main, which has `count`, does not have."""
    accepted = f"extents from number 0 to {count - 1}" if count else "no demands"
    return TreadleError(f"a demand names extent number {number}, and @main has {count}", accepted=accepted)


class ExtentArguments:
    """The arguments of @main that are extents, by their numbers."""

    def __init__(self, extents: Extents):
        self._tensors = {number: tensor for tensor, number in extents.items()}

    def __getitem__(self, number: int) -> SSAValue:
        """TreadleError for a number that there is not."""
        if number not in self._tensors:
            raise unknown_extent(number, len(self._tensors))
        return self._tensors[number]


def enclosing_function(op: Operation) -> FuncOp | None:
    """The function that an operation is in; None if it is in none."""
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, FuncOp):
        parent = parent.parent_op()
    return parent


def both(a: Facts, b: Facts) -> Facts:
    """What holds where all of a and all of b hold."""
    if not a or not b:
        return a or b
    return {key: max(facts[key] for facts in (a, b) if key in facts) for key in (*a, *b)}


def either(a: Facts, b: Facts) -> Facts:
    """What holds wherever a or b hold."""
    return {key: min(constant, b[key]) for key, constant in a.items() if key in b}


def fact(e: Expr, extent: int) -> tuple[tuple[Expr, int], int]:
    """`e < extent` as an entry of facts."""
    return (e - e.constant, extent), e.constant


def facts_from(demanded: object, indices: Sequence[Expr]) -> Facts:
    """What a demand on a tensor says where the element at `indices` is needed."""
    constraints = demanded.data if isinstance(demanded, DemandedAttr) else ()
    return dict(fact(constraint.at(indices), constraint.extent) for constraint in constraints)


def demanded_from(facts: Facts) -> DemandedAttr:
    """The attribute for facts about dimensions (`treadle.dialects.graph.fused.dimension`)."""
    return DemandedAttr.of(Constraint(e + constant, extent) for (e, extent), constant in facts.items())


def extent_below(value: SSAValue, extents: Extents) -> int | None:
    """The number of an extent that is never less than an index: it is read, converted and clamped; else None.

    Extents count from 0, so that a lower limit up to 0 changes nothing.
    """
    op = value.owner
    if isinstance(op, arith.IndexCastOp):
        return extent_below(op.input, extents)
    if isinstance(op, arith.MinSIOp):
        found = (extent_below(side, extents) for side in op.operands)
        return next((number for number in found if number is not None), None)
    if isinstance(op, arith.MaxSIOp):
        known = [side for side in op.operands if not _is_at_most_zero(side)]
        return extent_below(known[0], extents) if len(known) == 1 else None
    if isinstance(op, AtOp) and not op.indices and op.predicate is None:
        return extents.get(op.source)
    return None


def _is_at_most_zero(value: SSAValue) -> bool:
    op = value.owner
    return isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr) and op.value.value.data <= 0


__all__ = [
    "Extents", "Facts", "both", "demanded_from", "either", "enclosing_function", "extent_below", "extents_of", "fact",
    "facts_from",
]  # fmt: skip
