"""Axes taken as one before they are tiled."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.dialects.graph import ComputeOp
from treadle.schedules.access_analysis import collapsible_suffix
from treadle.schedules.rules.draft import Draft
from treadle.schedules.rules.tiling import has_reuse


def fused(draft: Draft) -> Sequence[Draft]:
    """The last spatial axes as one, as many as every read walks with one stride: vectors and warps then run across
    rows, and a tile is not cut at their ends. Where tiles are read several times, the axes as they are, too.

    ```mlir
    %i, %j, %k = schedule.axes 3 spatial, 0 reduction
    ```
    becomes, where the reads are those of `relu`,
    ```mlir
    %i, %j, %k = schedule.axes 3 spatial, 0 reduction
    %ijk = schedule.fuse %i, %j, %k
    ```
    """
    if draft.is_complete or draft.workload is None or not isinstance(draft.anchor, ComputeOp):
        return ()
    as_it_is, axes = draft.axes()
    first = collapsible_suffix(draft.anchor)
    walked = [axis for axis in axes.spatial if as_it_is.dimensions(axis)[0] >= first]
    if len(walked) < 2:
        return ()
    one, _ = as_it_is.fuse(*walked)
    return [as_it_is, one] if has_reuse(draft.workload) else [one]


__all__ = ["fused"]
