"""The schedule dialect: decisions as IR."""

from xdsl.ir import Dialect

from treadle.dialects.schedule.attributes import Choice, UseAttr, choice_text

SCHEDULE = Dialect("schedule", [], [UseAttr])

__all__ = ["SCHEDULE", "Choice", "UseAttr", "choice_text"]
