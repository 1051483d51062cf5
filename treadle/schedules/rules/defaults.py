"""The rules that a search uses unless it is given others."""

from __future__ import annotations

from treadle.schedules.rules.fusing import fused
from treadle.schedules.rules.marking import unrolled, vectorised
from treadle.schedules.rules.programs import Rule
from treadle.schedules.rules.reduction import cross_thread, vector_lanes
from treadle.schedules.rules.staging import staged
from treadle.schedules.rules.templates import templates
from treadle.schedules.rules.tiling import tiled
from treadle.target import Target

CPU: tuple[Rule, ...] = (
    templates,
    fused,
    vector_lanes,
    tiled("SSRSRS"),
    tiled("SSRS", reuse=False),
    staged("register", alone=True),
    vectorised,
    unrolled,
)
"""For CPUs: the words are MetaSchedule's; a tile that is not read twice needs no level between two reduction loops."""
CUDA: tuple[Rule, ...] = (
    templates,
    fused,
    cross_thread,
    tiled("SRSSRRSRS"),
    tiled("SSSRRSRS"),
    tiled("SSSR", reuse=False),
    staged("shared", ahead=True),
    unrolled,
)
"""For GPUs."""


def default_rules(target: Target) -> tuple[Rule, ...]:
    """The rules for a target."""
    return CUDA if target.is_cuda else CPU


__all__ = ["CPU", "CUDA", "default_rules"]
