"""What a schedule template is: an anchor, declared knobs, limits, and a builder of kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise, product
from math import prod
from typing import Any, ClassVar, TypeAlias, cast

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import ComputeOp, MatmulOp, ReduceOp, WholeOp
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice, choice_text
from treadle.errors import TreadleError
from treadle.support.extensions import note_source
from treadle.target import Target

# Limits of hardware that a schedule exceeds, as errors that searches can count by limit.


class LimitError(TreadleError):
    """A schedule needs more of something than there is.

    what: the limit, in plural: `threads`, `bytes of shared memory`; a template has one of each name
    used, allowed: how many the schedule takes or needs, and how many there are
    message, accepted: in the words of whoever rejects it; unless given, they say these numbers
    """

    what: str
    used: int
    allowed: int

    def __init__(
        self,
        what: str,
        used: int,
        allowed: int,
        where: object = None,
        message: str | None = None,
        accepted: str | None = None,
    ):
        self.what, self.used, self.allowed = what, used, allowed
        said = f"it takes {used} {what}, {used - allowed} too many" if message is None else message
        super().__init__(said, where, f"at most {allowed}" if accepted is None else accepted)

    def __reduce__(self) -> tuple[Any, ...]:
        """Unlike other exceptions, it is not made of its message alone."""
        return LimitError, (self.what, self.used, self.allowed, self.where, self.message, self.accepted)


def check_limit(
    what: str,
    used: int,
    allowed: int,
    where: object = None,
    message: str | None = None,
    accepted: str | None = None,
) -> None:
    """LimitError where more is used than is allowed."""
    if used > allowed:
        raise LimitError(what, used, allowed, where, message, accepted)


def check_limits(who: str, limits: Iterable[tuple[str, int, int]], target: Target) -> None:
    """LimitError for the first of some limits of a target, each with what is used and allowed, that is exceeded.

    who: what takes too much, for the message
    """
    for what, used, allowed in limits:
        message = f"{who} takes {used} {what}, {used - allowed} too many"
        check_limit(what, used, allowed, None, message, f"at most {allowed} on {target.name}")


def check_divides(what: str, part: int, whole: int, message: str, accepted: str) -> None:
    """LimitError where parts do not divide a whole: the parts that cover it take more than there is."""
    check_limit(what, whole + -whole % part, whole, None, message, accepted)


# Spaces of schedules as values: every combination of a template's choices that the hardware allows.

Choices: TypeAlias = Mapping[str, Choice]

_LONGEST_LIST = 8
"""Values that a message lists one by one, even if they are a run of numbers."""


@dataclass(frozen=True)
class Knob:
    """One decision that a template leaves open.

    name: its name in `#schedule.use`; values: what may be chosen; meaning: one line for users
    unless_given: its value where a schedule does not give it, if it may be left out: no search tries others
    """

    name: str
    values: tuple[Choice, ...]
    meaning: str
    unless_given: Choice | None = None

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
        return prod(len(knob.values) for knob in self._free)

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
        missing = [name for name, knob in knobs.items() if name not in choices and knob.unless_given is None]
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

    @cached_property
    def _free(self) -> list[Knob]:
        """The knobs that a search decides."""
        return [knob for knob in self.knobs if knob.name not in self.dependent and knob.unless_given is None]

    def _product(self) -> Iterator[dict[str, Choice]]:
        for values in product(*(knob.values for knob in self._free)):
            choices = dict(zip((knob.name for knob in self._free), values, strict=True))
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


Anchor: TypeAlias = ComputeOp | WholeOp


class Template(ABC):
    """Schedules one kind of anchor on one kind of target."""

    name: ClassVar[str]
    kind: ClassVar[str]
    """The kind of target: cpu or cuda."""
    least_capability: ClassVar[int] = 0
    """The compute capability from which on GPUs have its instructions, 80 for `sm_80`."""
    knobs: ClassVar[tuple[Knob, ...]]
    precision: ClassVar[str] = "f32"
    """How exact products of f32 are; a template of a lower precision is a default only where that is asked for."""
    takes_all: ClassVar[bool] = False
    """Whether it schedules every definition, so that fitting says nothing about being a good choice."""

    copies_ahead: ClassVar[bool] = False
    """Whether operands come by asynchronous copies, which a prologue that computes would make wait."""

    reads_by_columns: ClassVar[bool] = False
    """Whether what a product's matrix is dequantised from is to lie by columns, each in the order of its terms."""

    def __init_subclass__(cls) -> None:
        """Has caches know the sources of a template that is none of Treadle's."""
        super().__init_subclass__()
        note_source(cls)

    def runs_on(self, target: Target) -> bool:
        """Whether the target is of the template's kind, and has its instructions."""
        return self.kind == target.kind and self.least_capability <= target.capability

    @abstractmethod
    def fits(self, anchor: Anchor) -> bool:
        """Whether the template can schedule this anchor."""

    @abstractmethod
    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        """The choice made without a search."""

    def has_default(self, anchor: Anchor, target: Target) -> bool:
        """Whether the target has room for a default of an anchor that fits; if not, another template is tried."""
        del anchor, target
        return True

    def obstacle(self, anchor: Anchor, target: Target) -> str | None:
        """Why an operator of its kind does not get it by default, for people; None where it does, and for operators of
        other kinds."""
        del anchor, target
        return None

    def keeps_whole(self, anchor: Anchor) -> bool:
        """Whether an operator that it schedules stays one for it, rather than become those that it is made of."""
        del anchor
        return True

    @abstractmethod
    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        """The scheduled kernel of the anchor alone, taking the anchor's operands."""

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        """TreadleError naming the limit and the margin by which a combination of choices exceeds it.

        A template without limits of its own inherits this one, which accepts everything.
        """
        del anchor, choices, target

    def evaluations(self, anchor: Operation, operand: SSAValue, target: Target) -> Fraction | None:
        """How often the kernel of the default choices computes an element of an operand, by which prologues are judged.

        None, unless overridden, where that is as often as the definition reads it.
        """
        del anchor, operand, target
        return None

    def decided(self, anchor: Anchor, target: Target) -> Choices:
        """The knobs that the anchor itself decides, with the only value worth choosing; none by default."""
        del anchor, target
        return {}

    def dependent(self, anchor: Anchor, target: Target) -> Mapping[str, Callable[[Choices], Choice]]:
        """The knobs for which the other knobs' choices leave one value worth choosing, and how it follows from them;
        none by default."""
        del anchor, target
        return {}

    def canonical(self, anchor: Anchor, choices: Choices, target: Target) -> Choices:
        """The combination that stands for all which give the same kernel, such as blocks longer than a small tensor.

        A search tries only those that are their own; unless overridden, all are.
        """
        del anchor, target
        return choices

    def of_part(self, anchor: Anchor, part: Anchor, choices: Choices, target: Target) -> Choices:
        """The choices for an anchor of which often only a part is needed, from those of the part; the same unless
        overridden."""
        del anchor, part, target
        return choices

    def in_call(self, anchor: Anchor, whole: Anchor, choices: Choices, target: Target) -> Choices:
        """The choices whose kernel does for an anchor what that of these choices does in a call that computes as much
        of the whole one: the same unless overridden, since what a block does is known from the whole one."""
        del anchor, whole, target
        return choices

    def listed(self, anchor: Anchor, target: Target) -> Iterable[Choices] | None:
        """The candidates of a template that lists them, since its knobs have more values than are worth trying; None,
        unless overridden, where the space is the product of the knobs."""
        del anchor, target
        return None

    def canonical_forms(self, anchor: Anchor, target: Target, tried: Iterable[Choices]) -> list[Choices]:
        """The canonical forms of some combinations and of the default that are within the limits, each once."""
        every = (*tried, self.default(anchor, target))
        found = {tuple(kept.items()): kept for kept in (self.canonical(anchor, each, target) for each in every)}
        whole = self.legal(anchor, target)
        return [kept for kept in found.values() if kept in whole]

    def candidates(self, anchor: Anchor, target: Target) -> Iterable[Choices]:
        """The combinations that are listed, or those of the space that are their own canonical ones: all different
        kernels, each once."""
        listed = self.listed(anchor, target)
        if listed is not None:
            return listed
        return (c for c in self.space(anchor, target) if self.canonical(anchor, c, target) == c)

    def values(self, anchor: Anchor, target: Target) -> Mapping[str, tuple[Choice, ...]]:
        """The values worth trying of knobs that have more of them: those of listed candidates."""
        return values_of(self.listed(anchor, target) or ())

    def space(self, anchor: Anchor, target: Target) -> Space:
        """Every choice for an anchor on a target that is worth trying, and within the limits."""
        whole, tried = self.legal(anchor, target), self.values(anchor, target)
        knobs = tuple(replace(knob, values=tried.get(knob.name, knob.values)) for knob in whole.knobs)
        pinned = replace(whole, knobs=knobs).pinned(**self.decided(anchor, target))
        return pinned.following(self.dependent(anchor, target))

    def legal(self, anchor: Anchor, target: Target) -> Space:
        """Every combination of values that the limits allow, worth trying or not."""
        return Space(self.name, self.knobs, lambda choices: self.limits(anchor, choices, target))

    def check(self, anchor: Anchor, choices: Choices, target: Target, where: str) -> None:
        """TreadleError unless the choices are in the space and within the target's limits."""
        if self.kind != target.kind:
            raise TreadleError(f"template {self.name!r} is for {self.kind} targets, not {target.name}", where)
        if not self.runs_on(target):
            message = f"template {self.name!r} needs instructions that {target.name} does not have"
            raise TreadleError(message, where, f"sm_{self.least_capability} and later architectures")
        if not has_elements(anchor):
            raise TreadleError(f"template {self.name!r} schedules no empty tensor", where, "extents from 1 upwards")
        if not self.fits(anchor):
            raise TreadleError(f"template {self.name!r} does not schedule {anchor.name}", where)
        error = self.legal(anchor, target).exclusion(choices)
        if error is not None:
            error.where = where
            raise error


def has_elements(anchor: Anchor) -> bool:
    """Whether neither the result, nor what is read, nor a folded range is empty: no template knows an extent of 0."""
    tensors = [value.type for op in anchor.walk() for value in (*op.operands, *op.results)]
    shapes = [type.get_shape() for type in tensors if isinstance(type, TensorType)]
    folded = [op.shape for op in anchor.walk() if isinstance(op, ReduceOp)]
    return not any(0 in shape for shape in (*shapes, *folded))


def shared_by_batch(anchor: MatmulOp, operand: SSAValue) -> Fraction:
    """How many products of a batch read the same operand, on average."""
    assert isinstance(operand.type, TensorType)
    return Fraction(prod(anchor.shape[:-2]), prod(operand.type.get_shape()[:-2]) or 1)


def number(choices: Choices, name: str) -> int:
    """The value of a numeric knob."""
    value = choices[name]
    assert isinstance(value, int)
    return value


def pair(choices: Choices, name: str) -> tuple[int, int]:
    """The value of a knob of two numbers."""
    value = choices[name]
    assert isinstance(value, tuple) and len(value) == 2
    return value[0], value[1]


def values_of(candidates: Iterable[Choices]) -> dict[str, tuple[Choice, ...]]:
    """The values that some candidates have of each knob: numbers in order, words as they come."""
    found: dict[str, dict[Choice, None]] = {}
    for choices in candidates:
        for name, value in choices.items():
            found.setdefault(name, {})[value] = None
    return {name: tuple(sorted(values, key=lambda v: v if isinstance(v, int) else 0)) for name, values in found.items()}


MOST_ESTIMATED = 200
"""Candidates of a template that estimates cycles: those of the fewest. Hidet (ASPLOS 2023), section 4.3, has fewer than
200 for an operator, and measures them all."""


def fewest_cycles(choices: Iterable[Choices], cycles: Callable[[Choices], float]) -> list[Choices]:
    """The combinations worth trying of a template that estimates their cycles, the fewest first."""
    return sorted(choices, key=cycles)[:MOST_ESTIMATED]


def least_power(value: int, extent: int) -> int:
    """`value`, or the smallest power of two that covers an extent, where it is larger than that."""
    return min(value, 1 << max(extent - 1, 0).bit_length())
