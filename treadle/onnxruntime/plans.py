"""Which shapes are compiled together: a session gets calls of any shape, and an artifact serves one, or a range."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import TypeVar

from treadle.errors import TreadleError
from treadle.frontends.onnx import ValueNeeded
from treadle.shapes.dim import LARGEST, Dim
from treadle.shapes.dynamic import ExtentExpression

Form = Mapping[str, tuple[int, ...]]
"""The shapes of a call, by input."""
Extent = int | Dim | str
Made = TypeVar("Made")

USUAL = 1024
"""The largest extent that a range is made for where no call needs more, as for PyTorch (docs/adr/0081)."""
_POINTS = 1 << 14
"""The product of the ranges' ends where no call needs more: memory is planned for all of them at once."""


@dataclass(frozen=True)
class Plan:
    """The calls that an artifact serves, as `treadle.compile` takes them: numbers, ranges, and expressions of these."""

    shapes: Mapping[str, tuple[Extent, ...]]

    @property
    def ranges(self) -> dict[str, Dim]:
        """The dimensions that change from call to call."""
        return {extent.name: extent for shape in self.shapes.values() for extent in shape if isinstance(extent, Dim)}

    def serves(self, form: Form) -> bool:
        """Whether a call is one of them."""
        values: dict[str, int] = {}
        computed: list[tuple[str, int]] = []
        for name, shape in self.shapes.items():
            given = form[name]
            if len(given) != len(shape):
                return False
            for wanted, extent in zip(shape, given, strict=True):
                if isinstance(wanted, str):
                    computed.append((wanted, extent))
                elif isinstance(wanted, int):
                    if wanted != extent:
                        return False
                elif extent not in wanted or values.setdefault(wanted.name, extent) != extent:
                    return False
        return all(ExtentExpression(text, list(values)).value(values) == extent for text, extent in computed)

    def __str__(self) -> str:
        return "; ".join(f"{name} {', '.join(map(str, shape))}" for name, shape in self.shapes.items())


def static_plan(form: Form) -> Plan:
    """A plan for one call's shapes."""
    return Plan({name: tuple(shape) for name, shape in form.items()})


def compile_widest(
    forms: Sequence[Form], names: Mapping[str, Sequence[str | int | None]], compile: Callable[[Plan], Made]
) -> tuple[Made, str | None]:
    """What the first plan for these calls gives that can be compiled, and, where that serves the last call alone while
    ranges were tried, why: no range need be tried again. Raises what `compile` raises for the last call alone, and
    ValueNeeded."""
    first: tuple[Plan, TreadleError] | None = None
    for plan in plans_for(forms, names):
        if not plan.ranges:
            break
        try:
            return compile(plan), None
        except ValueNeeded:
            raise
        except TreadleError as error:
            first = first or (plan, error)
    made = compile(static_plan(forms[-1]))  # if this fails, it is not for the range
    if first is None:
        return made, None
    return made, f"shapes are compiled one by one: no artifact for {first[0]}: {first[1]}"


def plans_for(forms: Sequence[Form], names: Mapping[str, Sequence[str | int | None]]) -> list[Plan]:
    """Plans that serve all of these calls, of which the last one is new, the one for most calls first: dimensions that
    were always the same are numbers, others ranges from 1 on, or from about half of the least extent, up to `USUAL`,
    or to about twice the largest extent, or just as far as the calls.

    A model may have no kernels for small extents, fewer than its windows have elements, and none beyond a limit of its
    own, such as the positions that it knows.

    names: of each input, what the model calls its dimensions. Dimensions of one name, and those without a name that
        were always equal, are one range; a name such as `past + new` is computed of others where that is right.
    """
    form = forms[-1]
    alike = [each for each in forms if all(len(each[name]) == len(shape) for name, shape in form.items())]
    histories = {
        (name, n): tuple(each[name][n] for each in alike) for name, shape in form.items() for n in range(len(shape))
    }
    labels = {key: _label(names[key[0]], key[1]) for key in histories}
    changing = {key: history for key, history in histories.items() if len(set(history)) > 1}
    known = {labels[key]: histories[key] for key in histories if labels[key].isidentifier()}
    computed = {key: text for key in changing if (text := _computed(labels[key], changing[key], known))}
    groups = {key: _group(labels[key], history) for key, history in changing.items() if key not in computed}
    called = _names(dict.fromkeys(groups.values()), set(labels.values()))

    def plan(ranges: Mapping[_Group, tuple[int, int]]) -> Plan:
        dims = {group: Dim(called[group], *ends) for group, ends in ranges.items()}
        extents: dict[tuple[str, int], Extent] = {key: dims[group] for key, group in groups.items()}
        return Plan(
            {
                name: tuple(computed.get((name, n)) or extents.get((name, n), extent) for n, extent in enumerate(shape))
                for name, shape in form.items()
            }
        )

    return list({str(each): each for each in map(plan, _ranges(list(called)))}.values())


def _label(names: Sequence[str | int | None], position: int) -> str:
    label = names[position] if position < len(names) else None
    return label if isinstance(label, str) else ""


_Group = tuple[str, tuple[int, ...]]


def _group(label: str, history: tuple[int, ...]) -> _Group:
    """What dimensions of one range have in common."""
    return (label if label.isidentifier() and label.isascii() else "", history)


def _names(groups: Iterable[_Group], labels: set[str]) -> dict[_Group, str]:
    """A name for each range: the model's where it is one, and another one where two ranges have it."""
    found: dict[_Group, str] = {}
    for group in groups:
        fresh = (f"{group[0] or 'd'}{n}" for n in count())
        free = (name for name in fresh if name not in labels and name not in found.values())
        found[group] = group[0] if group[0] and group[0] not in found.values() else next(free)
    return found


_NAME = re.compile(r"[A-Za-z_]\w*")


def _computed(label: str, history: tuple[int, ...], known: Mapping[str, tuple[int, ...]]) -> str | None:
    """A label as an expression of ranges, if it has been that in all calls."""
    if not label or label.isidentifier():
        return None
    text = _NAME.sub(lambda found: _constant(found[0], known), label)
    try:
        expression = ExtentExpression(text, list(known))
        values = [expression.value({name: each[n] for name, each in known.items()}) for n in range(len(history))]
    except ValueError:
        return None
    return text if tuple(values) == history and _NAME.search(text) else None


def _constant(name: str, known: Mapping[str, tuple[int, ...]]) -> str:
    """A name whose extent is always the same as that number."""
    values = set(known.get(name, ()))
    return str(values.pop()) if len(values) == 1 else name


def _ranges(groups: Sequence[_Group]) -> list[dict[_Group, tuple[int, int]]]:
    """Ends of the ranges to try, the longest ranges first."""
    ones = {group: min(1, *group[1]) for group in groups}
    halves = {group: min(group[1]) and 1 << max(min(group[1]) // 2, 1).bit_length() - 1 for group in groups}
    doubled = {group: min(LARGEST, 1 << (2 * max(*group[1], 1) - 1).bit_length()) for group in groups}
    usual = _usual(doubled)
    starts_and_ends = [(ones, usual), (halves, usual), (ones, doubled), (halves, doubled)]
    found = [{group: (starts[group], ends[group]) for group in groups} for starts, ends in starts_and_ends]
    return [*found, {group: (min(group[1]), max(group[1])) for group in groups}]


def _usual(least: Mapping[_Group, int]) -> dict[_Group, int]:
    """Ends of ranges beyond the least ones, up to `USUAL`, where that costs little memory."""
    ends = {group: max(USUAL, each) for group, each in least.items()}
    while prod(ends.values()) > _POINTS:
        spare = {group: end // least[group] for group, end in ends.items()}
        widest = max(spare, key=lambda group: spare[group], default=None)
        if widest is None or spare[widest] < 2:
            break
        ends[widest] //= 2
    return ends
