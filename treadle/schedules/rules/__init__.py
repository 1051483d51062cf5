"""Rules: Python functions that write schedule programs for whatever definition they are given.

`docs/schedule-programs.md` explains them.
"""

from treadle.schedules.rules.defaults import default_rules
from treadle.schedules.rules.draft import Axes, Draft
from treadle.schedules.rules.fusing import fused
from treadle.schedules.rules.marking import unrolled, vectorised
from treadle.schedules.rules.programs import Rule, programs
from treadle.schedules.rules.reduction import cross_thread, vector_lanes
from treadle.schedules.rules.staging import staged
from treadle.schedules.rules.templates import templates, tensor_cores
from treadle.schedules.rules.tiling import tiled

__all__ = [
    "Axes", "Draft", "Rule", "cross_thread", "default_rules", "fused", "programs", "staged", "templates",
    "tensor_cores", "tiled", "unrolled", "vector_lanes", "vectorised",
]  # fmt: skip
