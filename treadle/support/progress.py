"""How work that takes long reports its progress."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""Called with the step that begins, as text, and the fraction (0 to 1) of the whole that is done."""


def no_progress(step: str, fraction: float) -> None:
    """Reports nothing."""
