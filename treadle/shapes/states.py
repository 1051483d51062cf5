"""Which inputs of a model are outputs of the call before, as a caller says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

States: TypeAlias = Mapping[str, str] | str
"""By the name of an input that of the output that it is in the next call: `{"past": "present"}`; or `AUTO`."""

AUTO = "auto"
"""The pairs that exporters name alike: `past_key_values.0.key` and `present.0.key`."""


def states_text(states: States | None) -> str:
    """The states as a part of a cache's key."""
    if states is None:
        return ""
    return f" states {sorted(states.items()) if isinstance(states, Mapping) else states}"


__all__ = ["AUTO", "States", "states_text"]
