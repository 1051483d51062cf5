"""Rules: Python functions that write schedule programs for whatever definition they are given."""

from treadle.schedules.rules.draft import Axes, Draft
from treadle.schedules.rules.programs import Rule, programs

__all__ = ["Axes", "Draft", "Rule", "programs"]
