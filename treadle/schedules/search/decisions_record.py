"""Decisions in lines of JSON, where a tuple is a list."""

from __future__ import annotations

from typing import Any, cast

from treadle.dialects.schedule import Choice


def decisions_of_record(found: Any) -> dict[str, Choice]:
    """Decisions as JSON says them; ValueError, AttributeError or the like for anything else."""
    return {name: _choice(value) for name, value in found.items()}


def _choice(value: object) -> Choice:
    if isinstance(value, int | str):
        return value
    numbers = cast("list[object]", value) if isinstance(value, list) else []
    if not numbers or not all(isinstance(number, int) for number in numbers):
        raise ValueError(f"{value!r} is no choice")
    return tuple(cast("list[int]", numbers))


__all__ = ["decisions_of_record"]
