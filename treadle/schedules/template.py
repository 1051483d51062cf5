"""What a schedule template is: an anchor, declared knobs, limits, and a builder of kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from treadle.dialects.graph import ComputeOp, WholeOp
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.errors import TreadleError
from treadle.target import Target

Anchor: TypeAlias = ComputeOp | WholeOp
Choices: TypeAlias = Mapping[str, Choice]


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


class Template(ABC):
    """Schedules one kind of anchor on one kind of target."""

    name: ClassVar[str]
    kind: ClassVar[str]
    """The kind of target: cpu or cuda."""
    knobs: ClassVar[tuple[Knob, ...]]

    @abstractmethod
    def fits(self, anchor: Anchor) -> bool:
        """Whether the template can schedule this anchor."""

    @abstractmethod
    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        """The choice made without a search."""

    @abstractmethod
    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        """The scheduled kernel of the anchor alone, taking the anchor's operands."""

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        """TreadleError naming the limit and the margin by which a combination of choices exceeds it.

        A template without limits of its own inherits this one, which accepts everything.
        """
        del anchor, choices, target

    def check(self, anchor: Anchor, choices: Choices, target: Target, where: str) -> None:
        """TreadleError unless the choices are in the space and within the target's limits."""
        if self.kind != ("cuda" if target.is_cuda else "cpu"):
            raise TreadleError(f"template {self.name!r} is for {self.kind} targets, not {target.name}", where)
        if not self.fits(anchor):
            raise TreadleError(f"template {self.name!r} does not schedule {anchor.name}", where)
        knobs = {knob.name: knob for knob in self.knobs}
        for name, value in choices.items():
            if name not in knobs:
                raise TreadleError(f"template {self.name!r} has no knob {name!r}", where, sorted(knobs))
            if not knobs[name].allows(value):
                accepted = [str(v) for v in knobs[name].values]
                raise TreadleError(f"knob {name!r} of template {self.name!r} is {value}", where, accepted)
        missing = [name for name in knobs if name not in choices]
        if missing:
            raise TreadleError(f"template {self.name!r} needs a value for {', '.join(missing)}", where)
        try:
            self.limits(anchor, choices, target)
        except TreadleError as error:
            raise TreadleError(error.message, where, error.accepted) from error


def number(choices: Choices, name: str) -> int:
    """The value of a numeric knob."""
    value = choices[name]
    assert isinstance(value, int)
    return value
