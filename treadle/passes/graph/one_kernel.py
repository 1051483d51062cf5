"""Which operators a template schedules as they are."""

from __future__ import annotations

from xdsl.dialects.builtin import DYNAMIC_INDEX

from treadle.dialects.graph import Operator, definition
from treadle.schedules.row_analysis import Rows, analyse_rows


def is_one_kernel(op: Operator) -> bool:
    """Whether the whole operator computes rows that one kernel can hold."""
    if DYNAMIC_INDEX in op.shape:
        return False
    compute = definition(op)
    rows = analyse_rows(compute)
    compute.erase()
    return isinstance(rows, Rows) and rows.worth_one_kernel


__all__ = ["is_one_kernel"]
