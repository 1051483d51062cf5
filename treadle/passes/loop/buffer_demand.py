"""Which elements of a kernel's own buffer are read where something is needed, in terms of the buffer's indices."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Block, SSAValue

from treadle.dialects.graph.fused import Constraint, dimension
from treadle.dialects.loop import AllocOp, LoadOp, Space, SpaceAttr, StoreOp, type_of
from treadle.index.expr import Expr, Monomial, Var, floordiv, mod, sum_of
from treadle.passes.loop.loop_iterations import value_of


def is_accessed_by_element(alloc: AllocOp) -> bool:
    """Whether nobody but one thread's loads and stores accesses a buffer."""
    space = type_of(alloc.buffer).memory_space
    is_of_thread = isinstance(space, SpaceAttr) and space.data is Space.REGISTER
    return is_of_thread and all(isinstance(use.operation, LoadOp | StoreOp) for use in alloc.buffer.uses)


def constraint_on(alloc: AllocOp, index: Sequence[Expr], least: Expr, extent: int) -> Constraint | None:
    """`least < extent`, where an element of a buffer is read at `index`, as a constraint on the element.

    With a buffer of 64 rows that a loop over tiles reads at `8 * tile + row`, for row up to 7, `first + 8 * tile <
    extent` is `first + 8 * (d0 floordiv 8) < extent`. None where what is compared depends on more than the buffer's
    index, and what does not change as long as the buffer exists.
    """
    home = alloc.parent
    if home is None:
        return None
    digits: dict[object, Expr] = {}
    for d, position in enumerate(index):
        digits |= _digits(position, dimension(d), home)
    compared = least.substitute(digits)
    return None if any(_changes(v, home) for v in compared.vars()) else Constraint(compared, extent)


def _digits(position: Expr, index: Expr, home: Block) -> dict[object, Expr]:
    """The variables of loops around an access in terms of its index: `tile` and `row` of `8 * tile + row`; not those
    that overlap with smaller ones."""
    moving = {monomial: k for monomial, k in position.terms if any(_changes(v, home) for v in _variables(monomial))}
    below, found, terms = sum_of(moving, 0), dict[object, Expr](), sorted(moving.items(), key=lambda term: -term[1])
    rest = index - (position - below)
    for monomial, k in terms:
        below = below - Expr(((monomial, k),), 0)
        least, most = below.range()
        atom = monomial[0] if len(monomial) == 1 else None
        if not isinstance(atom, Var) or least is None or most is None or least < 0 or most >= k:
            break
        found[atom.key] = floordiv(rest, k)
        rest = mod(rest, k)
    return found


def _variables(monomial: Monomial) -> Sequence[Var]:
    return Expr(((monomial, 1),), 0).vars()


def _changes(v: Var, home: Block) -> bool:
    """Whether a variable may have several values while a buffer of a block exists; dimensions are its own index."""
    value = value_of(v)
    if not isinstance(value, SSAValue):
        return not isinstance(value, str)
    owner = value.owner if isinstance(value.owner, Block) else value.owner.parent
    return owner is None or (owner is not home and home.is_ancestor(owner))


__all__ = ["constraint_on", "is_accessed_by_element"]
