"""Chooses the loops of a kernel that are unrolled in its Python: those with constant bounds and short bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from treadle.backends.reference.kernel_launch import space_of
from treadle.backends.reference.kernel_scalars import literal
from treadle.dialects import loop, task

_LONGEST = 256
"""The limit of an unrolled loop's operations: more take longer to compile than they save."""

Rounds = Sequence[Sequence[int]]


def unrolled(op: scf.ForOp | task.ForOp, names: Mapping[SSAValue, str]) -> Rounds | None:
    """The variables' values in each iteration of a loop that is to be unrolled; None for any other loop.

    A loop with barriers is not unrolled, since a barrier is identified by its operation, nor one that allocates buffers
    of a block.
    """
    rounds = _rounds(op, names)
    if rounds is None or any(map(_stays_one, op.body.walk())):
        return None
    return rounds if len(rounds) * _length(op.body.block, names) <= _LONGEST else None


def _rounds(op: scf.ForOp | task.ForOp, names: Mapping[SSAValue, str]) -> Rounds | None:
    if isinstance(op, task.ForOp):
        worker, mapping = 0 if op.worker is None else literal(names.get(op.worker, "")), op.mapping.data
        return mapping(worker) if worker is not None and worker in range(mapping.workers) else None
    low, high, step = (literal(names.get(value, "")) for value in (op.lb, op.ub, op.step))
    return None if low is None or high is None or not step else [(at,) for at in range(low, high, step)]


def _length(block: Block, names: Mapping[SSAValue, str]) -> int:
    """The operations of a body when loops with constant bounds in it are unrolled."""
    return sum(_length_of(op, names) for op in block.ops)


def _length_of(op: Operation, names: Mapping[SSAValue, str]) -> int:
    inside = sum(_length(block, names) for region in op.regions for block in region.blocks)
    rounds = _rounds(op, names) if isinstance(op, scf.ForOp | task.ForOp) else None
    return 1 + inside * (1 if rounds is None else len(rounds))


def _stays_one(op: Operation) -> bool:
    if isinstance(op, loop.BarrierOp | loop.ArriveOp):
        return True
    return isinstance(op, loop.AllocOp) and space_of(op.results[0].type) not in (None, loop.Space.REGISTER)


__all__ = ["unrolled"]
