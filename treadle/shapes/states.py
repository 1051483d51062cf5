"""Which inputs of a model are outputs of the call before: as a caller says it, and of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

T = TypeVar("T")

States: TypeAlias = Mapping[str, str] | str
"""By the name of an input that of the output that it is in the next call: `{"past": "present"}`; or `AUTO`."""

AUTO = "auto"
"""The pairs that exporters name alike: `past_key_values.0.key` and `present.0.key`."""


def states_text(states: States | None) -> str:
    """The states as a part of a cache's key."""
    if states is None:
        return ""
    return f" states {sorted(states.items()) if isinstance(states, Mapping) else states}"


@dataclass(frozen=True)
class State:
    """A tensor that is kept between calls: an input and an output of the program, by their numbers, neither of which a
    caller gives or gets; `in_place` where both are one buffer."""

    argument: int
    result: int
    in_place: bool


def given_of(inputs: Sequence[T], states: Sequence[State]) -> tuple[T, ...]:
    """Those of a program's inputs that a caller gives: all but the states."""
    return _without(inputs, [state.argument for state in states])


def made_of(outputs: Sequence[T], states: Sequence[State]) -> tuple[T, ...]:
    """Those of a program's outputs that a caller gets."""
    return _without(outputs, [state.result for state in states])


def _without(tensors: Sequence[T], numbers: Sequence[int]) -> tuple[T, ...]:
    return tuple(tensor for n, tensor in enumerate(tensors) if n not in numbers)


__all__ = ["AUTO", "State", "States", "given_of", "made_of", "states_text"]
