"""Whether every value is defined before it is used, which xDSL's verifier does not check."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import IsolatedFromAbove


def undominated_use(module: ModuleOp) -> tuple[Operation, int] | None:
    """The first operation that uses a value whose definition does not dominate it, and which operand; None if there is
    none.

    Regions of several blocks, which Treadle's own stages never have, are not looked into.
    """
    for region in module.regions:
        for block in region.blocks:
            found = _search(block, set())
            if found is not None:
                return found
    return None


def _search(block: Block, outside: set[SSAValue]) -> tuple[Operation, int] | None:
    """Searches one block; `outside` are the values visible in it, to which its own are added during the walk."""
    own: list[SSAValue] = [value for value in block.args if value not in outside]
    outside.update(own)
    found = None
    for op in block.ops:
        found = _search_op(op, outside)
        if found is not None:
            break
        own.extend(op.results)
        outside.update(op.results)
    outside.difference_update(own)
    return found


def _search_op(op: Operation, visible: set[SSAValue]) -> tuple[Operation, int] | None:
    for position, operand in enumerate(op.operands):
        if operand not in visible:
            return op, position
    seen = set[SSAValue]() if op.has_trait(IsolatedFromAbove) else visible
    for region in op.regions:
        if len(region.blocks) != 1:
            continue
        found = _search(region.block, seen)
        if found is not None:
            return found
    return None
