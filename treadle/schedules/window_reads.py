"""Which reads of a reduction slide: neighbours of one output index share all but one element of their windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType
from xdsl.ir import BlockArgument, Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, ReduceOp
from treadle.index.expr import var
from treadle.schedules.access_analysis import DefinitionAccesses

_SLIDE = "slide"
_STEPS = (1, 2, 3, 4)
"""Distances of windows that are looked for; farther apart, windows of the usual sizes do not overlap."""


@dataclass(frozen=True)
class Windows:
    """Windows that slide along one output dimension: element `i` of the dimension reads positions `step * i + k`
    for k in the reduction's dimension `term`.

    dim: of the output; sliding: the reads at those positions; shared: reads that do not depend on i
    """

    compute: ComputeOp
    reduce: ReduceOp
    dim: int
    term: int
    step: int
    sliding: tuple[AtOp, ...]
    shared: tuple[AtOp, ...]

    @property
    def extent(self) -> int:
        """How many windows there are along the dimension."""
        return self.compute.shape[self.dim]

    @property
    def width(self) -> int:
        """Positions of a window."""
        return self.reduce.shape[self.term]

    def is_shared(self, value: SSAValue) -> bool:
        """Whether a value of the definition is the same for all windows and all of their positions."""
        along = {self.compute.body.block.args[self.dim], self.reduce.body.block.args[self.term]}
        return along.isdisjoint(_keys(DefinitionAccesses(self.compute), [value]))


def windows_of(compute: ComputeOp, reduce: ReduceOp) -> Windows | None:
    """The windows of a definition along the first of its last dimensions but one that has any; None without any.

    The last dimension is left to neighbouring threads, whose accesses are to be consecutive.
    """
    args, rank = compute.body.block.args, len(compute.shape)
    for dim in range(rank - 2, -1, -1):
        for term, k in enumerate(reduce.body.block.args):
            found = None if compute.shape[dim] == 1 else _along(compute, reduce, args[dim], k)
            if found is not None and reduce.shape[term] > 1:
                step, sliding, shared = found
                return Windows(compute, reduce, dim, term, step, sliding, shared)
    return None


def slides_along(compute: ComputeOp, reduce: ReduceOp, dim: int) -> bool:
    """Whether windows slide along a dimension of the output."""
    i = compute.body.block.args[dim]
    return any(_along(compute, reduce, i, k) is not None for k in reduce.body.block.args)


def _along(
    compute: ComputeOp, reduce: ReduceOp, i: BlockArgument, k: BlockArgument
) -> tuple[int, tuple[AtOp, ...], tuple[AtOp, ...]] | None:
    """The step between windows, the reads that slide and those that all windows share; None where others are left."""
    plain = DefinitionAccesses(compute)
    sliding: list[AtOp] = []
    shared: list[AtOp] = []
    steps: set[int] = set()
    for at in [op for op in reduce.body.block.ops if isinstance(op, AtOp)]:
        used = [*at.indices, *([] if at.predicate is None else [at.predicate])]
        if i not in _keys(plain, used):
            shared.append(at)
            continue
        step = _step(compute, used, i, k)
        if step is None:
            return None
        sliding.append(at)
        steps.add(step)
    if len(steps) != 1:
        return None
    return steps.pop(), tuple(sliding), tuple(shared)


def _step(compute: ComputeOp, used: Sequence[SSAValue], i: BlockArgument, k: BlockArgument) -> int | None:
    """s where everything that is used depends on i and k through s * i + k alone."""
    for step in _STEPS:
        position = var(_SLIDE, None, None)
        keys = _keys(DefinitionAccesses(compute, {k: position - var(i, 0, compute.shape[i.index] - 1) * step}), used)
        if i not in keys and _SLIDE in keys:
            return step
    return None


def _keys(accesses: DefinitionAccesses, values: Sequence[SSAValue]) -> set[object]:
    """The variables that indices, and comparisons of indices, are computed from."""
    keys: set[object] = set()
    for value in values:
        op = value.owner
        if isinstance(value.type, IndexType):
            keys |= {v.key for v in accesses.index(value).vars()}
        elif isinstance(op, arith.CmpiOp) and isinstance(op.lhs.type, IndexType):
            keys |= {v.key for comparison in accesses.comparisons(op) for v in comparison.difference.vars()}
        elif isinstance(op, Operation):
            keys |= _keys(accesses, op.operands)
    return keys
