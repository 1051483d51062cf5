"""Spaces of schedules as values: every combination of a template's choices that the hardware allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from math import prod
from typing import TypeAlias, cast

from treadle.dialects.schedule import Choice, choice_text
from treadle.errors import TreadleError

Choices: TypeAlias = Mapping[str, Choice]

_LONGEST_LIST = 8
"""Values that a message lists one by one, even if they are a run of numbers."""


@dataclass(frozen=True)
class Knob:
    """One decision that a template leaves open.

    name: its name in `#schedule.use`; values: what may be chosen; meaning: one line for users
    """

    name: str
    values: tuple[Choice, ...]
    meaning: str

    def allows(self, value: Choice) -> bool:
        """Whether the value is in the space; `true` is not 1 here, although Python says so."""
        return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in self.values)


@dataclass(frozen=True)
class Space:
    """The product of some knobs, without the combinations that `limits` rejects by raising TreadleError.

    A knob may depend on the others: the space then holds one value of it for each combination of the rest.
    It is enumerated lazily, in the order of the knobs and of their values: the last knob changes fastest. Its size
    depends on what the hardware offers, not on the divisors of an extent. Source: Hidet (ASPLOS 2023), section 4.3.
    """

    template: str
    """Whose space it is, for messages."""
    knobs: tuple[Knob, ...]
    limits: Callable[[Choices], None]
    dependent: Mapping[str, Callable[[Choices], Choice]] = field(default_factory=dict[str, Callable[[Choices], Choice]])
    """Knobs whose value follows from the choices for the others."""

    @property
    def combinations(self) -> int:
        """How many combinations there are before any is rejected."""
        return prod(len(knob.values) for knob in self.knobs if knob.name not in self.dependent)

    def __iter__(self) -> Iterator[dict[str, Choice]]:
        return (choices for choices in self._product() if self._beyond(choices) is None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, choices: object) -> bool:
        return isinstance(choices, Mapping) and self.exclusion(cast(Choices, choices)) is None

    def exclusion(self, choices: Choices) -> TreadleError | None:
        """Why a combination is not in the space: a knob that is missing, unknown or out of its values, or the limit
        and the margin by which it is exceeded. None for one that is."""
        knobs = {knob.name: knob for knob in self.knobs}
        for name, value in choices.items():
            if name not in knobs:
                return TreadleError(f"template {self.template!r} has no knob {name!r}", accepted=sorted(knobs))
            if not knobs[name].allows(value):
                return self._not_allowed(knobs[name], value)
        missing = [name for name in knobs if name not in choices]
        if missing:
            return TreadleError(f"template {self.template!r} needs a value for {', '.join(missing)}")
        for name, follows in self.dependent.items():
            if choices[name] != (value := follows(choices)):
                message = f"knob {name!r} of template {self.template!r} is {choice_text(choices[name])}, "
                return TreadleError(f"{message}which the others decide", accepted=choice_text(value))
        return self._beyond(choices)

    def _beyond(self, choices: Choices) -> TreadleError | None:
        """The limit that a combination of the knobs' values exceeds."""
        try:
            self.limits(choices)
        except TreadleError as error:
            return error
        return None

    def excluded(self) -> Iterator[tuple[dict[str, Choice], TreadleError]]:
        """The combinations that are rejected, each with the reason."""
        for choices in self._product():
            error = self.exclusion(choices)
            if error is not None:
                yield choices, error

    def pinned(self, **choices: Choice) -> Space:
        """The part of the space in which some knobs have one value. Raises TreadleError for a value outside it."""
        for knob in self.knobs:
            if knob.name in choices and not knob.allows(choices[knob.name]):
                raise self._not_allowed(knob, choices[knob.name])
        knobs = (replace(k, values=(choices[k.name],)) if k.name in choices else k for k in self.knobs)
        return replace(self, knobs=tuple(knobs))

    def following(self, dependent: Mapping[str, Callable[[Choices], Choice]]) -> Space:
        """The part of the space in which some knobs have the value that a function of the other choices gives."""
        return replace(self, dependent={**self.dependent, **dependent})

    def _not_allowed(self, knob: Knob, value: Choice) -> TreadleError:
        message = f"knob {knob.name!r} of template {self.template!r} is {choice_text(value)}"
        return TreadleError(message, accepted=values_text(knob.values))

    def _product(self) -> Iterator[dict[str, Choice]]:
        free = [knob for knob in self.knobs if knob.name not in self.dependent]
        for values in product(*(knob.values for knob in free)):
            choices = dict(zip((knob.name for knob in free), values, strict=True))
            yield choices | {name: follows(choices) for name, follows in self.dependent.items()}


def values_text(values: Sequence[Choice], text: Callable[[Choice], str] = choice_text) -> str:
    """Values as a list, each as `text` spells it (default: as IR does); of a long run of numbers its ends."""
    numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    if len(values) <= _LONGEST_LIST or len(numbers) < len(values):
        return ", ".join(map(text, values))
    ends = f"{numbers[0]} to {numbers[-1]}"
    if all(after == before + 1 for before, after in pairwise(numbers)):
        return ends
    if numbers[0].bit_count() == 1 and all(after == 2 * before for before, after in pairwise(numbers)):
        return f"powers of 2 from {ends}"
    return ", ".join(map(text, values))
