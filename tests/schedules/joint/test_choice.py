"""Kernels and a tree for weighted points: the default alone unless others are worth it."""

from __future__ import annotations

from treadle.schedules.joint import Chosen, Point, chosen_dispatch
from treadle.shapes.decision_tree import Leaf, kernel_for, parse_tree

POINTS = [Point((n,), (n,), 0.25) for n in (1, 8, 64, 512)]
SECONDS = {"large": [4.0, 4.0, 5.0, 40.0], "small": [1.0, 2.0, 20.0, 400.0]}


def chosen(least_gain: float = 0.1, most: int = 8, default: str = "large") -> Chosen[str]:
    return chosen_dispatch(SECONDS, POINTS, least_gain, 0.05, most, default)


def test_two_kernels_and_the_border_between_them() -> None:
    found = chosen()
    assert found == Chosen(("small", "large"), parse_tree("e0 <= 8 ? 0 : 1"))
    assert [found.kernels[kernel_for(found.tree, p.extents)] for p in POINTS] == ["small", "small", "large", "large"]


def test_the_default_stays_where_others_gain_too_little() -> None:
    assert chosen(least_gain=0.8) == Chosen(("large",), Leaf(0))
    assert chosen(most=1) == Chosen(("large",), Leaf(0))


def test_a_better_kernel_takes_the_place_of_the_default() -> None:
    found = chosen_dispatch({"a": [2.0] * 4, "b": [1.0] * 4}, POINTS, 0.1, 0.05, 8, "a")
    assert found == Chosen(("b",), Leaf(0))


def test_weights_decide() -> None:
    long = [Point(p.values, p.extents, w) for p, w in zip(POINTS, (0.0, 0.0, 0.5, 0.5), strict=True)]
    assert chosen_dispatch(SECONDS, long, 0.1, 0.05, 8, "large") == Chosen(("large",), Leaf(0))
