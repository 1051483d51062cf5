"""How far definitions are from the reductions that they are computed from."""

from __future__ import annotations

from collections.abc import Sequence, Set

from treadle.dialects.graph.compute import ComputeOp
from treadle.passes.graph.definition_analysis import is_injective

MOST_MERGED = 32
"""Definitions that one row computation may have been written as: a layer normalisation takes ten to fourteen. The bound
keeps the search linear in long chains."""


class ReductionDistance:
    """Which definitions lead to a reduction by way of less than `MOST_MERGED` others.

    computes: the definitions of one block, in program order
    """

    def __init__(self, computes: Sequence[ComputeOp]):
        self._injective = {compute for compute in computes if is_injective(compute)}
        self._producers = {compute: _producers(compute) for compute in computes}
        self._steps: dict[ComputeOp, int] = {}
        """The fewest steps from a definition to a reduction; none where there is no reduction."""
        for compute in computes:
            steps = [self._steps.get(p) if p in self._injective else 0 for p in self._producers[compute]]
            known = [each for each in steps if each is not None]
            if known:
                self._steps[compute] = 1 + min(known)

    def is_injective(self, compute: ComputeOp) -> bool:
        """Whether the definition has no reduction."""
        return compute in self._injective

    def leads_to_one(self, compute: ComputeOp, rejected: Set[ComputeOp]) -> bool:
        """Whether a definition reads a reduction that is not rejected, by way of a few definitions only."""
        if self._steps.get(compute, MOST_MERGED) >= MOST_MERGED:
            return False
        waiting, seen = [compute], {compute}
        for each in waiting:
            if len(seen) >= MOST_MERGED:
                break
            new = [p for p in self._producers[each] if p not in rejected and p not in seen]
            if any(p not in self._injective for p in new):
                return True
            waiting.extend(new)
            seen.update(new)
        return False


def _producers(compute: ComputeOp) -> list[ComputeOp]:
    return [tensor.owner for tensor in compute.tensors() if isinstance(tensor.owner, ComputeOp)]


__all__ = ["MOST_MERGED", "ReductionDistance"]
