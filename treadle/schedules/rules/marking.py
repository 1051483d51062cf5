"""How loops are printed: the innermost level as vectors, a short one unrolled.

Source: MetaSchedule (NeurIPS 2022), figure 5's Parallel-Vectorize-Unroll. Parallel loops are the levels in `block`.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.schedules.rules.draft import Draft

_UNROLLED = 16
"""Iterations of a reduction loop that is unrolled, at most. Assumed, not measured."""


def vectorised(draft: Draft) -> Sequence[Draft]:
    """Marks the innermost level of a CPU's nest, if it is spatial and in `repeat`.

    ```mlir
    schedule.arrange block(%i0, %j0) loop(%k) repeat(%i1, %j1)
    ```
    becomes
    ```mlir
    schedule.arrange block(%i0, %j0) loop(%k) repeat(%i1, %j1)
    schedule.mark vector %j1
    ```
    """
    if draft.target.is_cuda or not draft.groups:
        return ()
    role, levels = draft.groups[-1]
    return [draft.mark("vector", levels[-1])] if role == "repeat" else ()


def unrolled(draft: Draft) -> Sequence[Draft]:
    """Marks the innermost reduction loop, if the value taken makes it short; the loop as it is, is the alternative.

    ```mlir
    schedule.arrange block(%i0, %j0) loop(%k0) loop(%k1) repeat(%i1, %j1)
    ```
    becomes that, and
    ```mlir
    schedule.arrange block(%i0, %j0) loop(%k0) loop(%k1) repeat(%i1, %j1)
    schedule.mark unroll %k1
    ```
    """
    loops = [level for role, levels in draft.groups if role == "loop" for level in levels]
    if not loops or draft.nest is None:
        return ()
    innermost = draft.nest.levels[draft.nest.numbers("loop")[-1]]
    if innermost.vector or not 1 < innermost.trips <= _UNROLLED:
        return ()
    return [draft, draft.mark("unroll", loops[-1])]


__all__ = ["unrolled", "vectorised"]
