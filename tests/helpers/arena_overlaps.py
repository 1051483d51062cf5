"""A check of planned modules that shares no code with the planner."""

from __future__ import annotations

from itertools import combinations
from math import prod

from xdsl.dialects.builtin import ModuleOp

from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.host import BufferOp, LaunchOp


def overlaps(module: ModuleOp) -> list[tuple[BufferOp, BufferOp]]:
    """The pairs of arena buffers of a planned module that share a byte while both are in use.

    There is none if the plan is right. A buffer is in use from the first launch that names it to the last.
    """
    used: dict[BufferOp, list[int]] = {}
    launches = [op for op in module.walk() if isinstance(op, LaunchOp)]
    for step, launch in enumerate(launches):
        for buffer in launch.buffers:
            if isinstance(buffer.owner, BufferOp) and buffer.owner.kind.data == "arena":
                used.setdefault(buffer.owner, []).append(step)
    return [(a, b) for a, b in combinations(used, 2) if _share(a, b) and _meet(used[a], used[b])]


def _bytes(op: BufferOp) -> range:
    assert op.position is not None
    start = op.position.value.data
    return range(start, start + prod(op.type.get_shape()) * byte_width(op.type.get_element_type()))


def _share(a: BufferOp, b: BufferOp) -> bool:
    return max(_bytes(a).start, _bytes(b).start) < min(_bytes(a).stop, _bytes(b).stop)


def _meet(a: list[int], b: list[int]) -> bool:
    return max(a[0], b[0]) <= min(a[-1], b[-1])


__all__ = ["overlaps"]
