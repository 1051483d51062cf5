"""Rules: Python functions that write schedule programs for whatever definition they are given.

`docs/schedule-programs.md` explains them.
"""

from treadle.schedules.rules.draft import Axes, Draft
from treadle.schedules.rules.programs import Rule, programs
from treadle.schedules.rules.staging import located, staged
from treadle.schedules.rules.templates import templates, tensor_cores
from treadle.schedules.rules.tiling import (
    cross_thread,
    default_rules,
    fused,
    tensorized,
    tiled,
    unrolled,
    vector_lanes,
    vectorised,
)

__all__ = [
    "Axes", "Draft", "Rule", "cross_thread", "default_rules", "fused", "located", "programs", "staged",
    "templates", "tensor_cores", "tensorized", "tiled", "unrolled", "vector_lanes", "vectorised",
]  # fmt: skip
