"""A kernel's work as a record's field, from which a cost model learns without lowering the kernel again.

{"blocks": 24, "threads": 1, "share": 12, "bodies": [[768, 32, 6, 0, 1, 0], ...], "reuse": [[0, 98304], ...]}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, fields
from typing import Any

from treadle.schedules.search.record_numbers import real, whole
from treadle.schedules.search.work import Body, Reuse, Work


class OtherCountsError(ValueError):
    """A work that was recorded before as much was counted as today."""


_DIGITS = 6
"""More than a model can tell apart."""


def work_record(work: Work) -> dict[str, Any]:
    """Numbers and lists of numbers."""
    return {
        "blocks": work.blocks,
        "threads": work.threads,
        "share": _short(work.share),
        "bodies": [[_short(number) for number in astuple(body)] for body in work.bodies],
        "reuse": [[_short(number) for number in astuple(step)] for step in work.reuse],
    }


def work_of_record(found: Mapping[str, Any]) -> Work:
    """What was recorded; ValueError, KeyError or TypeError for anything else.

    OtherCountsError for what was recorded before as much was counted as today.
    """
    if any(len(body) != len(fields(Body)) for body in found["bodies"]):
        raise OtherCountsError("a body has another number of counts")
    bodies = tuple(Body(*map(real, body)) for body in found["bodies"])
    reuse = tuple(Reuse(*map(real, step)) for step in found["reuse"])
    if not reuse:
        raise ValueError("a kernel moves some bytes")
    return Work(whole(found["blocks"], 1), whole(found["threads"], 1), bodies, reuse, real(found["share"]))


def _short(number: float) -> float:
    rounded = float(f"{number:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded


__all__ = ["OtherCountsError", "work_of_record", "work_record"]
