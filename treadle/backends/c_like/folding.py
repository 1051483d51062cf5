"""Decides which values are written inside the expression that uses them, and which get a name.

A value with one use is written where it is used, unless that would change what it means or how often it is computed:
a load never passes a store to its buffer or a barrier, and nothing moves into a loop.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import arith, memref, scf, vector
from xdsl.dialects.builtin import i1
from xdsl.ir import Attribute, Block, Operation, SSAValue, Use

from treadle.dialects.effects import (
    Convergent,
    accesses,
    buffers_read,
    buffers_written,
    is_allocation,
    is_load,
    may_write,
    only_computes,
)

LARGEST_EXPRESSION = 16
"""Operations that one expression may hold; beyond it, an intermediate value gets a name."""

_TRANSPARENT = (vector.BroadcastOp, vector.CreateMaskOp)


def always_folded(op: Operation) -> bool:
    """Constants and broadcasts: written at every use, however many there are."""
    return isinstance(op, (arith.ConstantOp, *_TRANSPARENT))


def written_buffers(block: Block) -> set[SSAValue[Attribute]]:
    """The buffers that something below `block` stores to, or counts in."""
    return set[SSAValue[Attribute]]().union(*map(buffers_written, block.ops))


def read_buffers(block: Block) -> set[SSAValue[Attribute]]:
    """The buffers that something below `block` loads from, or counts in."""
    return set[SSAValue[Attribute]]().union(*map(buffers_read, block.ops))


class Folding:
    """What `folded`, `dead` and `is_ternary` answer about the operations below `block`.

    named_choices: loads that a selection chooses between, or that stand on the right of `&&` and `||`, get names:
        written there, they would be done on a condition only
    """

    def __init__(self, block: Block, *, named_choices: bool = False) -> None:
        self._named_choices = named_choices
        self.folded: set[SSAValue[Attribute]] = set()
        self.dead: set[Operation] = set()
        self._ternaries: set[Operation] = set()
        self._statements: dict[Operation, Operation] = {}
        self._analyse(block)
        self._bound_sizes(block)

    def is_ternary(self, op: Operation) -> bool:
        """Whether an `scf.if` is written as `condition ? a : b`."""
        return op in self._ternaries

    def _analyse(self, block: Block) -> None:
        # Backwards, so that the statement of a user is known before its operands are analysed.
        for op in reversed(list(block.ops)):
            if self._is_dead(op):
                self.dead.add(op)
                continue
            if isinstance(op, scf.IfOp) and self._could_be_ternary(op):
                self._ternaries.add(op)
            if self._folds(op):
                self.folded.add(op.results[0])
            for region in op.regions:
                for inner in region.blocks:
                    self._analyse(inner)

    def _is_dead(self, op: Operation) -> bool:
        if not (only_computes(op) or is_load(op) or is_allocation(op)):
            return False
        return all(use.operation in self.dead for result in op.results for use in result.uses)

    def _live_uses(self, value: SSAValue) -> Iterator[Use]:
        """The uses of a value, and for those that are written at every use, their uses."""
        for use in value.uses:
            if use.operation in self.dead:
                continue
            if isinstance(use.operation, _TRANSPARENT):
                yield from self._live_uses(use.operation.results[0])
            else:
                yield use

    def _could_be_ternary(self, op: scf.IfOp) -> bool:
        if len(op.results) != 1 or not op.false_region.blocks:
            return False
        return all(self._is_expression(region.block) for region in op.regions)

    def _is_expression(self, block: Block) -> bool:
        """Whether a branch computes nothing that would need a name. Looks ahead of the analysis, hence by structure."""
        for op in block.ops:
            if isinstance(op, scf.YieldOp) or always_folded(op):
                continue
            if not (only_computes(op) or is_load(op) or (isinstance(op, scf.IfOp) and self._could_be_ternary(op))):
                return False
            if sum(1 for _ in self._live_uses(op.results[0])) > 1:
                return False
        return sum(1 for _ in block.ops) <= LARGEST_EXPRESSION

    def _folds(self, op: Operation) -> bool:
        if len(op.results) != 1:
            return False
        if always_folded(op):
            return True
        if op.has_trait(Convergent):
            return self._ends_in_its_block(op)
        if not (only_computes(op) or is_load(op) or op in self._ternaries):
            return False
        uses = list(self._live_uses(op.results[0]))
        if len(uses) != 1:
            return False
        if self._in_ternary(op):
            return True
        reads = buffers_read(op)
        if self._named_choices and reads and self._is_chosen(uses[0]):
            return False
        user = uses[0].operation
        statement = self._statement(user)
        if reads and isinstance(statement, scf.ForOp):
            return False  # a bound is evaluated once an iteration
        return self._reaches(op, statement, reads)

    def _is_chosen(self, use: Use) -> bool:
        """Whether a value would be written where it is computed on a condition only, in a branch of a selection or on
        the right of `&&` and `||`, by itself or in a larger expression."""
        while True:
            user = use.operation
            if use.index > 0 and (isinstance(user, arith.SelectOp) or _skips(user)):
                return True
            if len(user.results) != 1 or user.results[0] not in self.folded:
                return False
            use = next(iter(self._live_uses(user.results[0])))

    def _ends_in_its_block(self, op: Operation) -> bool:
        """Whether the only user is a store or the block's end: then it is evaluated exactly where it would be alone."""
        users = [use.operation for use in op.results[0].uses if use.operation not in self.dead]
        if accesses(op) != [] or len(users) != 1 or users[0].parent_block() is not op.parent_block():
            return False
        return isinstance(users[0], scf.YieldOp | memref.StoreOp)

    def _in_ternary(self, op: Operation) -> bool:
        parent = op.parent_op()
        return parent is not None and parent in self._ternaries

    def _statement(self, op: Operation) -> Operation:
        """The operation that is written as a statement and holds the text of `op`, which was analysed before."""
        known = self._statements.get(op)
        if known is None:
            known = self._statements[op] = self._found_statement(op)
        return known

    def _found_statement(self, op: Operation) -> Operation:
        parent = op.parent_op()
        while parent is not None and parent in self._ternaries:
            op, parent = parent, parent.parent_op()
        if len(op.results) != 1 or op.results[0] not in self.folded:
            return op
        # Known already, since users are analysed first.
        return self._statement(next(iter(self._live_uses(op.results[0]))).operation)

    def _reaches(self, op: Operation, statement: Operation, reads: set[SSAValue[Attribute]]) -> bool:
        """Whether `op` may be written in `statement`: no loop lies around the statement only, and no write to `reads`
        between them."""
        home = op.parent_block()
        while statement.parent_block() is not home:
            if reads and any(may_write(before, reads) for before in _from_block_start(statement)):
                return False
            parent = statement.parent_op()
            if parent is None or isinstance(parent, scf.ForOp):
                return False
            statement = parent
        between = op.next_op
        while reads and between is not None and between is not statement:
            if may_write(between, reads):
                return False
            between = between.next_op
        return True

    def _bound_sizes(self, block: Block) -> None:
        sizes: dict[SSAValue[Attribute], int] = {}
        for op in block.walk():
            if len(op.results) != 1 or op.results[0] not in self.folded or always_folded(op):
                continue
            inside = [operand for region in op.regions for inner in region.walk() for operand in inner.operands]
            size = 1 + sum(sizes.get(operand, 0) for operand in (*op.operands, *inside))
            if size > LARGEST_EXPRESSION and not self._in_ternary(op):
                self.folded.discard(op.results[0])
                continue
            sizes[op.results[0]] = size


def _skips(op: Operation) -> bool:
    """Whether an operation is `&&` or `||` of C, whose right side is computed where the left one leaves it open."""
    return isinstance(op, arith.AndIOp | arith.OrIOp) and op.result.type == i1


def _from_block_start(statement: Operation) -> Iterator[Operation]:
    before = statement.prev_op
    while before is not None:
        yield before
        before = before.prev_op
