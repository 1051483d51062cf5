"""Kernels for weighted points, and the tree that dispatches among them, with numbers as its leaves."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from treadle.decision_tree import Leaf, Split, Tree, boxes
from treadle.schedules.joint.dispatch import grown_tree
from treadle.schedules.joint.micro_kernels import chosen_kernels
from treadle.schedules.joint.points import Point

Kernel = TypeVar("Kernel", bound=Hashable)


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


__all__ = ["Chosen", "chosen_dispatch"]
