"""How loops are printed: the innermost level as vectors, a short one unrolled.

Source: MetaSchedule (NeurIPS 2022), figure 5's Parallel-Vectorize-Unroll. Parallel loops are the levels in `block`.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.schedules.rules.draft import Draft

_UNROLLED = 16
"""Terms that are unrolled, at most. Of one convolution in groups, the nine terms of a 3 x 3 window unrolled took 0.86
instead of 1.60 ms (two cores beside other jobs)."""


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
    """Marks the innermost reduction loops, as many as the values taken make short together; the loops as they are, are
    the alternative.

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
    if draft.nest is None:
        return ()
    known = [draft.nest.levels[n] for n in draft.nest.numbers("loop")]
    after, body = draft, 1
    for handle, level in zip(reversed(loops), reversed(known), strict=True):
        body *= level.trips
        if level.vector or body > _UNROLLED:
            break
        after = after.mark("unroll", handle) if level.trips > 1 else after
    return () if after is draft else [draft, after]


__all__ = ["unrolled", "vectorised"]
