"""Decision trees: their text, their leaves, and the launches that a call takes."""

from __future__ import annotations

from itertools import product

import pytest

from treadle.shapes.decision_tree import (
    Dispatch,
    Leaf,
    Split,
    boxes,
    chosen_launches,
    kernel_for,
    leaves,
    parse_tree,
    symbols_of,
    tree_text,
)

TEXT = "e0 <= 16 ? (e1 <= 4 ? 0 : 1) : (e0 <= 64 ? 1 : 2)"


def test_text():
    tree = parse_tree(TEXT)
    assert tree == Split(0, 16, Split(1, 4, Leaf(0), Leaf(1)), Split(0, 64, Leaf(1), Leaf(2)))
    assert tree_text(tree) == TEXT
    assert (leaves(tree), symbols_of(tree)) == (4, {0, 1})


@pytest.mark.parametrize(
    "text", ["", "e0", "e0 <= 1", "e0 <= 1 ? 0", "e0 <= 1 ? 0 : 1 2", "(0", "n <= 1 ? 0 : 1", "-1"]
)
def test_what_is_no_tree_is_refused(text: str):
    with pytest.raises(ValueError):
        parse_tree(text)


def test_each_point_is_in_one_box():
    tree = parse_tree(TEXT)
    for point in product((1, 15, 16, 17, 63, 64, 65), (1, 4, 5)):
        inside = [
            kernel
            for kernel, box in boxes(tree, {0: (1, 100), 1: (1, 8)})
            if all((low or 0) <= point[n] <= (high or 0) for n, (low, high) in box.items())
        ]
        assert inside == [kernel_for(tree, point)]


def test_a_call_runs_one_launch_of_each_dispatch():
    dispatches = [Dispatch(1, 2, (5,), parse_tree("e0 <= 3 ? 0 : 1")), Dispatch(4, 3, (6, 5), parse_tree(TEXT))]
    assert chosen_launches(8, dispatches, {5: 3, 6: 16}.__getitem__) == [0, 1, 3, 4, 7]
    assert chosen_launches(8, dispatches, {5: 5, 6: 65}.__getitem__) == [0, 2, 3, 6, 7]
