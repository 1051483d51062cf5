"""Reductions that several threads, or the lanes of vectors, share: where there are few elements to compute, and each is
the sum of many.

Source: MetaSchedule (NeurIPS 2022), figure 5's Cross-Thread-Reduction and Add-RFactor; the conditions are those of its
sources (`NeedsRFactorOrCrossThreadReduction`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.ir import SSAValue

from treadle.index.algebra import stride_along
from treadle.schedules.nest.workload import Workload
from treadle.schedules.rules.draft import Draft
from treadle.schedules.rules.sizes import sizes_of
from treadle.schedules.rules.tiling import has_reuse

_ROWS = 8
"""Elements that a block's threads, or one thread's vectors, compute at once. Assumed, not measured, as the next one."""
_MOST_THREADS = 512


def cross_thread(draft: Draft) -> Sequence[Draft]:
    """The draft as it is, and with the terms of an element spread over threads of a GPU, next to one another.

    ```mlir
    %i, %j = schedule.axes 1 spatial, 1 reduction
    ```
    becomes that, and
    ```mlir
    %i, %j = schedule.axes 1 spatial, 1 reduction
    %threads_i, %threads_j = schedule.sample_tile "threads" 2 from ([1, 2, 4], [32, 64]) product 32 to 512 step 32
    %i0, %i1 = schedule.split %i by (%threads_i)
    %j0, %j1 = schedule.split %j by (%threads_j)
    schedule.arrange block(%i0) thread(%i1) loop(%j0) thread(%j1)
    ```
    """
    if not draft.target.is_cuda or draft.is_complete or not _has_few_elements(draft.workload):
        return ()
    warp = draft.target.warp_size
    after, rows, others, terms = _rows_and_terms(draft)
    lanes = [1 << n for n in range(3, 10) if 1 << n <= max(warp, after.extent(terms))]
    sizes = (sizes_of(after.extent(rows), _ROWS), lanes)
    after, (t, k) = after.sample_tile("threads", 2, sizes, (warp, _MOST_THREADS), step=warp, of=(rows, terms))
    after, (i0, i1) = after.split(rows, [t])
    after, (k0, k1) = after.split(terms, [k])
    return [draft, after.arrange([("block", [*others, i0]), ("thread", [i1]), ("loop", [k0]), ("thread", [k1])])]


def vector_lanes(draft: Draft) -> Sequence[Draft]:
    """The draft as it is, and with the terms of an element spread over the lanes of a CPU's vectors (rfactor), where
    they lie one after another.

    ```mlir
    %i, %j = schedule.axes 1 spatial, 1 reduction
    ```
    becomes that, and
    ```mlir
    %i, %j = schedule.axes 1 spatial, 1 reduction
    %rows = schedule.sample "rows" from [1, 2, 3, 4, 6, 8]
    %lanes = schedule.sample "lanes" from [16, 32, 64]
    %i0, %i1 = schedule.split %i by (%rows)
    %j0, %j1 = schedule.split %j by (%lanes)
    schedule.arrange block(%i0) repeat(%i1) loop(%j0) loop(%j1)
    schedule.mark vector %j1
    ```
    """
    workload, lanes = draft.workload, draft.target.lanes
    if draft.target.is_cuda or draft.is_complete or workload is None or not _has_few_elements(workload):
        return ()
    last = len(workload.extents) - 1
    if not any(read.is_term and stride_along(read.indices[-1], last) == 1 for read in workload.reads if read.indices):
        return ()
    after, rows, others, terms = _rows_and_terms(draft)
    after, count = after.sample("rows", sizes_of(after.extent(rows), _ROWS))
    after, width = after.sample("lanes", [lanes, 2 * lanes, 4 * lanes])
    after, (i0, i1) = after.split(rows, [count])
    after, (k0, k1) = after.split(terms, [width])
    after = after.arrange([("block", [*others, i0]), ("repeat", [i1]), ("loop", [k0]), ("loop", [k1])])
    return [draft, after.mark("vector", k1)]


def _has_few_elements(workload: Workload | None) -> bool:
    """Whether elements have many terms: more than there are elements, where tiles are read several times; at least a
    warp's worth elsewhere."""
    if workload is None or workload.kind is None or not workload.spatial:
        return False
    elements, terms = prod(workload.extents[: workload.spatial]), prod(workload.extents[workload.spatial :])
    return terms >= (max(32, elements) if has_reuse(workload) else 32)


def _rows_and_terms(draft: Draft) -> tuple[Draft, SSAValue, list[SSAValue], SSAValue]:
    """The longest of the last two spatial axes, the other spatial ones, and the reduction as one axis."""
    draft, axes = draft.axes()
    terms = axes.reduction[0]
    if len(axes.reduction) > 1:
        draft, terms = draft.fuse(*axes.reduction)
    rows = max(axes.spatial[-2:], key=draft.extent)
    return draft, rows, [axis for axis in axes.spatial if axis is not rows], terms


__all__ = ["cross_thread", "vector_lanes"]
