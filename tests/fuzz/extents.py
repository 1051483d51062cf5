"""Models whose shapes and positions are computed from the extents of their inputs, from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from random import Random

import numpy as np

from tests.fuzz.case import Case
from tests.fuzz.draw import Draw, Undrawable
from tests.fuzz.ranges import NAMES, RangedCase
from tests.fuzz.recipes.extents import ALONG, EXTENTS
from tests.fuzz.recipes.numbers import NUMBERS, Numbers
from tests.fuzz.shrink import pruned
from tests.fuzz.values import draw_array

OPSETS = (11, 13, 13, 17, 18, 20, 21, 23)
GREATEST = (5, 8, 9, 12, 16, 20)
SHOWN = 0.3
"""How many of the numbers that nothing else reads are results by themselves."""
_MOST_POINTS = 7
"""Values of a symbol at which a model of two symbols is evaluated to find its ranges."""


def extents_case_of_seed(seed: int) -> RangedCase | None:
    """A model of one or two symbols, with numbers computed from them, and one to four operators that read such numbers
    or work along an axis that changes. Its ranges begin where ONNX's reference evaluator takes every call. None if
    there is no such range.
    """
    draw = Draw(seed)
    draw.opset = draw.choice(OPSETS)
    symbols = {name: draw.choice(GREATEST) for name in NAMES[: 1 if draw.chance(0.7) else 2]}
    places: dict[tuple[str, int], str] = {}
    inputs = [_input(draw, symbols, places) for _ in range(draw.choice((1, 1, 2)))]
    numbers = Numbers(draw, inputs)
    _times(draw.between(1, 5), NUMBERS, numbers)
    for _ in range(draw.between(1, 4)):
        _times(1, EXTENTS if numbers.scalars and draw.chance(0.65) else ALONG, numbers)
        if draw.chance(0.3):
            _times(1, NUMBERS, numbers)
    case = _case(draw, numbers)
    used = {place: symbol for place, symbol in places.items() if place[0] in case.inputs}
    return with_ranges(RangedCase(case, used, seed, frozenset(numbers.exact))) if used else None


def _input(draw: Draw, symbols: Mapping[str, int], places: dict[tuple[str, int], str]) -> str:
    """Floats of one to three dimensions, some of which are symbols."""
    extents: list[int | str] = [draw.choice([1, 2, 3, 4, *symbols, *symbols]) for _ in range(draw.between(1, 3))]
    if not any(isinstance(extent, str) for extent in extents):
        extents[draw.random.randrange(len(extents))] = draw.choice(list(symbols))
    shape = [symbols[e] if isinstance(e, str) else e for e in extents]
    name = draw.input(draw_array(draw.rng, np.dtype(np.float32), shape, draw.choice(("plain", "plain", "steps"))))
    places.update({(name, d): e for d, e in enumerate(extents) if isinstance(e, str)})
    return name


def _times(count: int, recipes: Sequence[Callable[[Numbers], None]], numbers: Numbers) -> None:
    """So many of the recipes, after at most ten times as many tries."""
    for _ in range(10 * count):
        if count == 0:
            return
        try:
            numbers.draw.choice(recipes)(numbers)
            count -= 1
        except Undrawable:
            continue


def _case(draw: Draw, numbers: Numbers) -> Case:
    """Returns what nothing reads; of the shape arithmetic only some of it."""
    read = {name for node in draw.nodes for name in node.input}
    made = [name for node in draw.nodes for name in node.output]
    returned = [name for name in made if name not in read and (name not in numbers.exact or draw.chance(SHOWN))]
    if not returned:
        returned = made[-1:]
    return pruned(draw.case(returned))


def with_ranges(ranged: RangedCase) -> RangedCase | None:
    """With the smallest extents from which on the model takes all that are tried; None if it takes one alone."""
    random, greatest = Random(ranged.seed), {name: dim.greatest for name, dim in ranged.dims.items()}
    most = max(greatest.values()) if len(greatest) == 1 else _MOST_POINTS
    tried = {
        name: sorted({bound, *random.sample(range(1, bound + 1), min(bound, most))}) for name, bound in greatest.items()
    }
    points = [dict(zip(tried, values, strict=True)) for values in product(*tried.values())]
    refused = [point for point in points if ranged.at(point) is None]
    least = dict.fromkeys(greatest, 1)
    for name, values in tried.items():
        while any(all(point[n] >= least[n] for n in point) for point in refused) and least[name] < greatest[name]:
            least[name] = min(value for value in values if value > least[name])
    if all(least[name] == greatest[name] for name in least):
        return None
    return replace(ranged, least=least)


__all__ = ["extents_case_of_seed", "with_ranges"]
