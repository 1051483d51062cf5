"""Decisions in lines of JSON, where a tuple is a list."""

from __future__ import annotations

from typing import Any, cast

from treadle.dialects.schedule import Choice
from treadle.schedules.search.record_numbers import MOST, whole


def decisions_of_record(found: Any) -> dict[str, Choice]:
    """Decisions as JSON says them; ValueError, AttributeError or the like for anything else."""
    return {name: _choice(value) for name, value in found.items()}


def _choice(value: object) -> Choice:
    if isinstance(value, bool | str):
        return value
    if not isinstance(value, list):
        return whole(value, -MOST)
    numbers = cast("list[object]", value)
    if not numbers:
        raise ValueError("an empty list is no choice")
    return tuple(whole(number, -MOST) for number in numbers)


__all__ = ["decisions_of_record"]
