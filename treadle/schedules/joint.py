"""One set of kernels for several shapes of an operator: which kernels, and which of them for which shape."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, exp, inf, log, prod
from typing import Generic, TypeVar

from treadle.dialects.dispatch_tree import Prediction
from treadle.errors import TreadleError
from treadle.shapes.decision_tree import Leaf, Split, Tree, boxes, kernel_for, leaves
from treadle.shapes.dim import Dim
from treadle.shapes.dynamic import ExtentExpression

# Calls of a ranged model that stand for all of them: values of its symbols, spread over the range or as often as they
# occur.

POINTS = 16
"""Points of a range: kernels are chosen by those, and the tree's borders lie between them."""
Weights = Mapping[str, Mapping[int, float]]
"""By the name of a symbol, how often its values occur."""


@dataclass(frozen=True)
class Point:
    """values: of the symbols; extents: of @main's `extents`; weight: its part of all calls."""

    values: tuple[int, ...]
    extents: tuple[int, ...]
    weight: float


def points_of(
    symbols: Sequence[Dim], extents: Sequence[str], weights: Weights | None = None, most: int = POINTS
) -> list[Point]:
    """At most so many points of a range, its smallest and its largest among them, in ascending order of values. Those
    of a range from 0 begin with the next one: an empty tensor takes no work.

    weights: the values of these symbols are the most frequent ones, with the ends of the range; other symbols, and all
        of them without weights, are spread: half of the values by their logarithms, half evenly. TreadleError for
        weights of an unknown symbol, of values that are not in its range, and for ones that are negative or all 0.
    """
    given = checked(weights or {}, symbols)
    # Of one symbol, so that all combinations are at most so many; at least the two ends.
    values_each = max(2, int(most ** (1 / max(1, len(symbols))) + 1e-9))
    each = [
        _weighted(dim, given[dim.name], values_each) if dim.name in given else spread(dim, values_each)
        for dim in symbols
    ]
    names = [dim.name for dim in symbols]
    expressions = [ExtentExpression(text, names) for text in extents]
    found: dict[tuple[int, ...], Point] = {}
    for combined in product(*each):
        values = tuple(value for value, _ in combined)
        at = tuple(e.value(dict(zip(names, values, strict=True))) for e in expressions)
        weight = prod(part for _, part in combined) + (found[at].weight if at in found else 0.0)
        found[at] = Point(values, at, weight)
    return list(found.values())


def checked(weights: Weights, symbols: Sequence[Dim]) -> Weights:
    """The same weights; TreadleError that names the symbol whose weights cannot be used."""
    known = {dim.name: dim for dim in symbols}
    for name, histogram in weights.items():
        where = f"weights of '{name}'"
        if name not in known:
            raise TreadleError(f"the model has no symbol {name!r}", "weights", list(known) or "a model with a range")
        for value, weight in histogram.items():
            if value not in known[name]:
                raise TreadleError(f"the extent {value} is not in the range", where, str(known[name]))
            if not 0 <= weight < float("inf"):
                raise TreadleError(f"the weight of {value} is {weight:g}", where, "numbers from 0 upwards")
        if sum(histogram.values()) <= 0:
            raise TreadleError("no value has a weight above 0", where, "at least one")
    return weights


def spread(dim: Dim, most: int) -> list[tuple[int, float]]:
    """So many values of a range or fewer, half of them evenly on a logarithmic scale, with equal weights."""
    low, high, half = _first(dim), dim.greatest, most // 2
    wanted = [low * (high / max(low, 1)) ** (n / half) for n in range(half)]
    wanted += [low + (high - low) * n / (most - half) for n in range(1, most - half + 1)]
    values = sorted({low, high, *(_multiple(dim, value) for value in wanted)})
    return [(value, 1 / len(values)) for value in values]


def _weighted(dim: Dim, histogram: Mapping[int, float], most: int) -> list[tuple[int, float]]:
    """The heaviest values and the ends; the weight of others goes to the nearest larger one of these."""
    heaviest = sorted(histogram, key=lambda value: (-histogram[value], value))[: max(0, most - 2)]
    values = sorted({_first(dim), dim.greatest, *heaviest})
    total, parts = sum(histogram.values()), dict.fromkeys(values, 0.0)
    for value, weight in histogram.items():
        parts[next(each for each in values if each >= value)] += weight / total
    return list(parts.items())


def _first(dim: Dim) -> int:
    return min(max(dim.least, dim.multiple), dim.greatest)


def _multiple(dim: Dim, value: float) -> int:
    return min(max(round(value / dim.multiple) * dim.multiple, _first(dim)), dim.greatest)


# The choice of a few kernels that serve many shapes.
#
# Source: DietCode (MLSys 2022), section 4.3, where every shape votes for its favourite kernel. A kernel for each vote
# may be as many as shapes; here a kernel is added only while it gains something for all shapes together. The total is
# submodular, so that n kernels of votes have at most 1 + n * least_gain times the throughput of those chosen.

Kernel = TypeVar("Kernel", bound=Hashable)

LEAST_GAIN = 0.01
"""The part of the total by which another kernel has to raise it; assumed, of the order of two timings' difference."""


def chosen_kernels(
    seconds: Mapping[Kernel, Sequence[float]],
    weights: Sequence[float],
    least_gain: float = LEAST_GAIN,
    most: int | None = None,
    first: Kernel | None = None,
) -> list[Kernel]:
    """Kernels in the order of their gains: each next one raises the total throughput most, the first of equal ones.

    seconds: of every kernel on every shape; infinite where it cannot be used
    weights: how often each shape occurs. A shape's throughput counts relative to its best kernel's, so that long
        shapes do not outvote short ones. TreadleError if there is a shape that no kernel can be used for.
    most: how many are chosen at most, if one of them serves all shapes; first: is among them, whatever others gain
    """
    best = [min((times[n] for times in seconds.values()), default=inf) for n in range(len(weights))]
    if inf in best:
        raise TreadleError(f"no kernel computes shape number {best.index(inf)}", "joint search", "one for each shape")
    chosen: list[Kernel] = [] if first is None else [first]
    served = [inf] * len(best) if first is None else list(seconds[first])
    while len(chosen) < len(seconds):
        before = _total(served, best, weights)
        left = [kernel for kernel in seconds if kernel not in chosen]
        after = {kernel: _total(list(map(min, served, seconds[kernel])), best, weights) for kernel in left}
        kernel = max(left, key=lambda each: after[each])
        if inf not in served and (after[kernel] <= before * (1 + least_gain) or len(chosen) == most):
            break
        if after[kernel] <= before:
            kernel = _for_unserved(seconds, left, served)
        chosen.append(kernel)
        served = list(map(min, served, seconds[kernel]))
    return chosen


def throughput(seconds: Mapping[Kernel, Sequence[float]], weights: Sequence[float], chosen: Sequence[Kernel]) -> float:
    """The throughput of some kernels, each shape's relative to that of the fastest of all and times its weight."""
    points = range(len(weights))
    best, served = ([min(seconds[kernel][n] for kernel in of) for n in points] for of in (seconds, chosen))
    return _total(served, best, weights)


def _total(served: Sequence[float], best: Sequence[float], weights: Sequence[float]) -> float:
    return sum(weight * fastest / time for time, fastest, weight in zip(served, best, weights, strict=True))


def _for_unserved(seconds: Mapping[Kernel, Sequence[float]], left: Sequence[Kernel], served: Sequence[float]) -> Kernel:
    """The fastest kernel of the first shape without one, whose weight is 0."""
    number = served.index(inf)
    return min(left, key=lambda kernel: seconds[kernel][number])


# DietCode's cost model: what a micro-kernel takes on a shape, from what its blocks take.
#
# Source: DietCode (MLSys 2022), section 4.2, equation (3): cost = f_MK(M) * f_OCC(P / M) * f_pad(P, M), throughput of
# a program P of blocks M. f_MK is learned from features of the micro-kernel, and the coefficient k of f_OCC from
# measurements. As printed, f_pad = pad_by(P, M) / P is at least 1, and prefers kernels that pad more; here blocks of a
# shape are counted whole, so that padding costs what it takes.

_ROUNDS = 1.0
"""The coefficient k before there are measurements: a short last round takes as long as a whole one, as the analytic
model has it."""
_HALVINGS, _ALTERNATIONS = 60, 50
_LEAST_STEP = 1e-6


def busy(blocks: int, places: int) -> float:
    """The part of all places that is busy on average: blocks run in rounds, of which the last may be short."""
    return blocks / (ceil(blocks / places) * places)


def occupancy(part: float, k: float) -> float:
    """f_OCC: k * part + 1 - k, for the part of places that is busy; 1 while all are."""
    return k * part + 1 - k


@dataclass(frozen=True)
class AtPoint:
    """A micro-kernel on the shape of a point.

    seconds: predicted, where rounds of blocks count whole; infinite for one that is not legal there
    busy: the part of places that is busy on average
    """

    seconds: float
    busy: float

    @property
    def ideal(self) -> float:
        """Seconds if all places were busy: the time of f_MK and f_pad."""
        return self.seconds * self.busy


class Adaption:
    """f_OCC of a target, whose k is learned from what micro-kernels took at points."""

    def __init__(self) -> None:
        self.k = _ROUNDS

    def seconds(self, at: AtPoint) -> float:
        """The predicted seconds at a point; before anything is learned those of the analytic model."""
        return at.ideal / occupancy(at.busy, self.k)

    def learn(self, records: Sequence[tuple[Sequence[AtPoint], Sequence[float]]]) -> None:
        """Fits k to what some micro-kernels took at points.

        What a kernel's f_MK is wrong by is one factor at all of its points: by turns, the factors are the means of
        what k leaves, and k is the nearest to what the factors leave, both by least squares of logarithms.
        """
        known = [(places, times) for places, times in records if len(places) > 1]
        if not known:
            return
        for _ in range(_ALTERNATIONS):
            busies: list[float] = []
            ratios: list[float] = []
            for places, times in known:
                errors = [log(time / self.seconds(at)) for at, time in zip(places, times, strict=True)]
                factor = exp(sum(errors) / len(errors))
                busies += [at.busy for at in places]
                ratios += [factor * at.ideal / time for at, time in zip(places, times, strict=True)]
            before, self.k = self.k, fitted_k(busies, ratios)
            if abs(self.k - before) < _LEAST_STEP:
                break


def fitted_k(busies: Sequence[float], ratios: Sequence[float]) -> float:
    """The coefficient k, from 0 to 1, with which f_OCC is nearest to measured ratios: least squares of logarithms.

    busies, ratios: of some programs, `busy` and the measured throughput divided by f_MK * f_pad
    """
    if not busies:
        return _ROUNDS

    def slope(k: float) -> float:
        """Half the derivative of the sum of squares."""
        values = [(k * each + 1 - k, each - 1, ratio) for each, ratio in zip(busies, ratios, strict=True)]
        return sum((log(value) - log(ratio)) * step / value for value, step, ratio in values)

    low, high = 0.0, 1 - 1e-9
    if slope(low) >= 0 or slope(high) <= 0:
        return low if slope(low) >= 0 else high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return (low + high) / 2


# A decision tree over shapes that says which kernel computes one.
#
# Source: DietCode (MLSys 2022), section 4.3. The tree is grown until what a leaf loses on the shapes that voted is
# small; without a loss allowed it is exact on them. Every kernel computes every shape, so that elsewhere it can be slow
# but not wrong.

LEAST_LOSS = 0.01
"""The part of its shapes' time that a leaf may lose without being divided; assumed, as for the choice of kernels."""


def grown_tree(
    shapes: Sequence[tuple[int, ...]], seconds: Mapping[Kernel, Sequence[float]], least_loss: float = LEAST_LOSS
) -> Tree[Kernel]:
    """The tree for shapes, which are values of symbols, and the seconds that each kernel takes for each of them.

    A node is divided at the value of a symbol where the sum of both sides' times, each with one kernel, is least.
    TreadleError without shapes or kernels, or for a shape given twice.
    """
    if not shapes or not seconds:
        raise TreadleError("there is nothing to choose from", "dispatcher", "at least one shape and one kernel")
    if len(set(shapes)) != len(shapes):
        raise TreadleError("a shape is given twice", "dispatcher", "each shape once")
    return _grown(shapes, seconds, list(range(len(shapes))), least_loss)


def c_text(tree: Tree[Kernel], symbols: Sequence[str], names: Mapping[Kernel, str], indent: str = "  ") -> str:
    """The tree as C statements that return what a kernel is called."""
    if isinstance(tree, Leaf):
        return f"{indent}return {names[tree.kernel]};\n"
    left, right = (c_text(each, symbols, names, indent + "  ") for each in (tree.left, tree.right))
    return f"{indent}if ({symbols[tree.symbol]} <= {tree.at_most}) {{\n{left}{indent}}} else {{\n{right}{indent}}}\n"


def _grown(
    shapes: Sequence[tuple[int, ...]], seconds: Mapping[Kernel, Sequence[float]], here: list[int], least_loss: float
) -> Tree[Kernel]:
    kernel, time = _fastest(seconds, here)
    fastest = sum(min(times[n] for times in seconds.values()) for n in here)
    found = _best_split(shapes, seconds, here) if time > fastest * (1 + least_loss) else None
    if found is None:
        return Leaf(kernel)
    symbol, at_most = found
    left = [n for n in here if shapes[n][symbol] <= at_most]
    right = [n for n in here if shapes[n][symbol] > at_most]
    sides = (_grown(shapes, seconds, side, least_loss) for side in (left, right))
    return _merged(Split(symbol, at_most, *sides))


def _best_split(
    shapes: Sequence[tuple[int, ...]], seconds: Mapping[Kernel, Sequence[float]], here: Sequence[int]
) -> tuple[int, int] | None:
    """The symbol and the value that divide best, the first of equal ones; None for a single shape."""
    best: tuple[float, int, int] | None = None
    for symbol in range(len(shapes[0])):
        for at_most in sorted({shapes[n][symbol] for n in here})[:-1]:
            sides = [[n for n in here if (shapes[n][symbol] <= at_most) == left] for left in (True, False)]
            time = sum(_fastest(seconds, side)[1] for side in sides)
            if best is None or time < best[0]:
                best = time, symbol, at_most
    return None if best is None else best[1:]


def _fastest(seconds: Mapping[Kernel, Sequence[float]], here: Sequence[int]) -> tuple[Kernel, float]:
    """The kernel with the least time for some shapes together, and that time."""
    times = {kernel: sum(each[n] for n in here) for kernel, each in seconds.items()}
    kernel = min(times, key=lambda one: times[one])
    return kernel, times[kernel]


def _merged(split: Split[Kernel]) -> Tree[Kernel]:
    """One leaf instead of two that take the same kernel."""
    if isinstance(split.left, Leaf) and split.left == split.right:
        return split.left
    return split


# Kernels for weighted points, and the tree that dispatches among them, with numbers as its leaves.


@dataclass(frozen=True)
class Chosen(Generic[Kernel]):
    """kernels: in the order of the leaves; tree: over extents, gives the number of a kernel."""

    kernels: tuple[Kernel, ...]
    tree: Tree[int]


def chosen_dispatch(
    seconds: Mapping[Kernel, Sequence[float]],
    points: Sequence[Point],
    least_gain: float,
    least_loss: float,
    most: int,
    default: Kernel,
) -> Chosen[Kernel]:
    """The kernels for some points: the default one, and others while each raises the throughput by more than
    `least_gain`; those that no leaf of the tree takes are left out.

    seconds: of every kernel at every point, infinite where it cannot be used; the default can be at all of them
    A point's seconds count relative to its best kernel's and by its weight, so that long calls do not outvote short
    ones.
    """
    weights = [point.weight for point in points]
    best = [min(times[n] for times in seconds.values()) for n in range(len(points))]
    kernels = chosen_kernels(seconds, weights, least_gain, most, default)
    if kernels == [default]:
        return Chosen((default,), Leaf(0))
    lost = {k: [w * seconds[k][n] / best[n] for n, w in enumerate(weights)] for k in kernels}
    tree = grown_tree([point.extents for point in points], lost, least_loss)
    used = tuple(dict.fromkeys(kernel for kernel, _ in boxes(tree)))
    return Chosen(used, _numbered(tree, used))


def _numbered(tree: Tree[Kernel], kernels: Sequence[Kernel]) -> Tree[int]:
    if isinstance(tree, Leaf):
        return Leaf(kernels.index(tree.kernel))
    return Split(tree.symbol, tree.at_most, _numbered(tree.left, kernels), _numbered(tree.right, kernels))


def predicted(
    seconds: Mapping[Kernel, Sequence[float]], kernels: Sequence[Kernel], points: Sequence[Point]
) -> tuple[Prediction, ...]:
    """What some kernels take at each point, and the fastest one of the table there."""
    return tuple(
        Prediction(
            point.extents,
            point.weight,
            (*(seconds[kernel][n] for kernel in kernels), min(times[n] for times in seconds.values())),
        )
        for n, point in enumerate(points)
    )


__all__ = [
    "LEAST_GAIN",
    "LEAST_LOSS",
    "POINTS",
    "Adaption",
    "AtPoint",
    "Chosen",
    "Leaf",
    "Point",
    "Split",
    "Tree",
    "Weights",
    "busy",
    "c_text",
    "checked",
    "chosen_dispatch",
    "chosen_kernels",
    "fitted_k",
    "grown_tree",
    "kernel_for",
    "leaves",
    "occupancy",
    "points_of",
    "predicted",
    "throughput",
]
