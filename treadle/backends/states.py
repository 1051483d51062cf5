"""The memory of what a program keeps between calls, among the tensors that its entry takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from treadle.shapes.states import State, made_of

Array = NDArray[Any]


class Tensor(Protocol):
    """An input of a program."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str | np.dtype[Any]: ...


T = TypeVar("T", bound=Tensor)


def zeros(tensor: Tensor) -> Array:
    """An array for a tensor."""
    return np.zeros(tensor.shape, tensor.dtype)


class StateMemory:
    """An array for each state in place, and two for another, which take turns as argument and as result.

    inputs: the program's, with the states
    zeros:  makes an array of zeros for one of them
    """

    def __init__(self, states: Sequence[State], inputs: Sequence[T], zeros: Callable[[T], Array] = zeros):
        self._states = tuple(states)
        self._now = [zeros(inputs[state.argument]) for state in states]
        self._next = [
            now if state.in_place else zeros(inputs[state.argument])
            for state, now in zip(states, self._now, strict=True)
        ]

    @property
    def now(self) -> Sequence[Array]:
        """What the next call reads."""
        return self._now

    @property
    def after(self) -> Sequence[Array]:
        """Where the next call writes."""
        return self._next

    def inputs(self, given: Sequence[Array]) -> list[Array]:
        """All inputs of the program: what a caller gives, and the states in their places."""
        return _merged(given, [state.argument for state in self._states], self._now)

    def outputs(self, made: Sequence[Array]) -> list[Array]:
        """All outputs of the program: those for the caller, and where the states are written."""
        return _merged(made, [state.result for state in self._states], self._next)

    def advance(self) -> None:
        """After a call: what it wrote is what the next one reads."""
        self._now, self._next = self._next, self._now

    def taken(self, made: Sequence[Array]) -> list[Array]:
        """The caller's outputs out of all of the program's; those of states are what the next call reads."""
        for state, array in zip(self._states, self._next, strict=True):
            array[...] = made[state.result]
        self.advance()
        return list(made_of(made, self._states))

    def clear(self) -> None:
        """All elements are 0 again."""
        for array in (*self._now, *self._next):
            array[...] = np.zeros((), array.dtype)


def _merged(arrays: Sequence[Array], numbers: Sequence[int], inserted: Sequence[Array]) -> list[Array]:
    if not numbers:
        return list(arrays)
    places, rest = dict(zip(numbers, inserted, strict=True)), iter(arrays)
    return [places[n] if n in places else next(rest) for n in range(len(arrays) + len(inserted))]


__all__ = ["StateMemory", "zeros"]
