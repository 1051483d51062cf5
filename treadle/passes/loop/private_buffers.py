"""Buffers of a kernel that carry nothing from one iteration of a loop to another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType, i1
from xdsl.ir import Block, Operation, SSAValue

from treadle.dialects.effects import is_pure
from treadle.dialects.loop import AllocOp, SpaceAttr, type_of


def is_of_launch(alloc: AllocOp) -> bool:
    """Whether all blocks of a launch share a buffer."""
    space = type_of(alloc.buffer).memory_space
    return isinstance(space, SpaceAttr) and space.data.is_global


def is_private(buffer: SSAValue, loop: scf.ForOp) -> bool:
    """Whether what an iteration writes to a buffer is seen in that iteration only.

    So it is with a buffer that is made in it. One that is made outside is undefined before the loop. If nothing outside
    uses it, and some block around all uses accesses it in the same way each time it runs, it stores each time what it
    reads, since it has to the first time.
    """
    alloc, body = buffer.owner, loop.body.block
    if not isinstance(alloc, AllocOp) or is_of_launch(alloc):
        return False
    if body.is_ancestor(alloc):
        return True
    uses = [use.operation for use in buffer.uses]
    if not uses or not all(body.is_ancestor(op) for op in uses):
        return False
    return any(_always_alike(uses, block, body) for block in _common_blocks(uses, body))


def _common_blocks(uses: Sequence[Operation], body: Block) -> Iterator[Block]:
    """The blocks inside the loop that hold all uses, outwards."""
    first, *others = (list(_blocks_around(op, body)) for op in uses)
    return (block for block in first if all(block in chain for chain in others))


def _always_alike(uses: Iterable[Operation], within: Block, body: Block) -> bool:
    """Whether what a block accesses does not depend on when it runs."""
    steering = dict.fromkeys(value for op in uses for value in _steering(op, within))
    return not any(_varies(value, body, within) for value in steering)


def _blocks_around(op: Operation, body: Block) -> Iterator[Block]:
    block = op.parent
    while block is not None:
        yield block
        if block is body:
            return
        parent = block.parent_op()
        block = None if parent is None else parent.parent


def _steering(op: Operation, within: Block) -> Iterator[SSAValue]:
    """What says whether, how often and where an operation accesses a buffer, each time a block around it runs."""
    yield from (value for value in op.operands if isinstance(value.type, IndexType) or value.type == i1)
    parent = op.parent_op()
    while parent is not None and parent is not within.parent_op():
        yield from parent.operands
        parent = parent.parent_op()


def _varies(value: SSAValue, body: Block, within: Block) -> bool:
    """Whether a value may differ from one iteration to another; indices of loops inside the block do so by what steers
    these."""
    waiting, seen = [value], {value}
    for each in waiting:
        owner = each.owner
        home = owner if isinstance(owner, Block) else owner.parent
        if home is None or not (home is body or body.is_ancestor(home)):
            continue
        if isinstance(owner, Block):
            carried = isinstance(owner.parent_op(), scf.ForOp) and owner.args[0] is not each
            if carried or owner is within or not within.is_ancestor(owner):
                return True
            continue
        if not is_pure(owner):
            return True
        new = [operand for operand in owner.operands if operand not in seen]
        waiting += new
        seen.update(new)
    return False


__all__ = ["is_of_launch", "is_private"]
