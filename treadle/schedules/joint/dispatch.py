"""A decision tree over shapes that says which kernel computes one.

Source: DietCode (MLSys 2022), section 4.3. The tree is grown until what a leaf loses on the shapes that voted is small;
without a loss allowed it is exact on them. Every kernel computes every shape, so that elsewhere it can be slow but not
wrong.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from treadle.decision_tree import Leaf, Split, Tree, kernel_for, leaves
from treadle.errors import TreadleError

Kernel = TypeVar("Kernel", bound=Hashable)

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


__all__ = ["LEAST_LOSS", "Leaf", "Split", "Tree", "c_text", "grown_tree", "kernel_for", "leaves"]
