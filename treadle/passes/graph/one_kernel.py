"""Which operators a template schedules as they are."""

from __future__ import annotations

from xdsl.dialects.builtin import DYNAMIC_INDEX

from treadle.dialects.graph import Operator, WholeOp, definition
from treadle.schedules.row_analysis import Rows, analyse_rows
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target


def is_one_kernel(op: Operator) -> bool:
    """Whether the whole operator computes rows that one kernel can hold."""
    if DYNAMIC_INDEX in op.shape:
        return False
    compute = definition(op)
    rows = analyse_rows(compute)
    compute.erase()
    return isinstance(rows, Rows) and rows.worth_one_kernel


def has_template(op: WholeOp, target: Target) -> bool:
    """Whether a template of the target is made for such an operator, which then stays whole."""
    templates = (t for t in TEMPLATES.values() if t.runs_on(target) and not t.takes_all)
    return any(t.fits(op) and t.has_default(op, target) and t.keeps_whole(op) for t in templates)


__all__ = ["has_template", "is_one_kernel"]
