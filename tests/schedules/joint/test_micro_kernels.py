"""The choice of kernels for many shapes, and the tree that dispatches them."""

from __future__ import annotations

import ctypes
from itertools import combinations
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.backends.c.compiler import Unit, build_library
from treadle.errors import TreadleError
from treadle.schedules.joint import (
    Leaf,
    Split,
    c_text,
    chosen_kernels,
    grown_tree,
    kernel_for,
    leaves,
    throughput,
)

SHAPES = [(t,) for t in range(1, 129)]


def padded(tile: int, rate: float) -> list[float]:
    """Seconds of a kernel whose blocks compute `tile` rows at some rate, for 1 to 128 rows."""
    return [-(-t // tile) * tile / rate for (t,) in SHAPES]


SECONDS = {"small": padded(8, 1.0), "middle": padded(32, 1.6), "large": padded(64, 2.0), "bad": padded(128, 0.1)}


def test_kernels_are_added_while_they_gain() -> None:
    chosen = chosen_kernels(SECONDS, [1.0] * 128)
    assert set(chosen) == {"small", "middle", "large"}
    assert chosen_kernels(SECONDS, [1.0] * 128, least_gain=0.5) == chosen[:1]
    assert chosen_kernels(SECONDS, [1.0 if t == 128 else 0.0 for (t,) in SHAPES])[0] == "large"


@given(st.lists(st.lists(st.floats(0.1, 10), min_size=4, max_size=4), min_size=1, max_size=5))
def test_the_first_is_the_best_single_one_and_no_set_is_much_better(table: list[list[float]]) -> None:
    seconds = dict(enumerate(table))
    best = [min(times[n] for times in table) for n in range(4)]

    def total(kernels: tuple[int, ...]) -> float:
        return sum(best[n] / min(seconds[k][n] for k in kernels) for n in range(4))

    chosen = chosen_kernels(seconds, [1.0] * 4, least_gain=0.0)
    assert total(tuple(chosen[:1])) == pytest.approx(max(total((k,)) for k in seconds))
    for size in range(1, len(chosen) + 1):
        most = max(total(kernels) for kernels in combinations(seconds, size))
        assert total(tuple(chosen[:size])) >= (1 - 1 / 2.718281828) * most, "greedy, of a submodular total"
    assert total(tuple(chosen)) == pytest.approx(4.0)


@given(
    st.lists(st.lists(st.floats(0.1, 10), min_size=6, max_size=6), min_size=1, max_size=7),
    st.sampled_from([0.0, 0.01, 0.1]),
)
def test_the_set_is_hardly_worse_than_a_kernel_for_each_vote(table: list[list[float]], least_gain: float) -> None:
    """DietCode's set: the favourites of all shapes. It may be smaller for the same throughput, not much better."""
    seconds, weights = dict(enumerate(table)), [1.0] * 6
    voted = {min(seconds, key=lambda kernel: seconds[kernel][n]) for n in range(6)}
    chosen = chosen_kernels(seconds, weights, least_gain)
    bound = 1 + len(voted) * least_gain
    assert throughput(seconds, weights, list(voted)) <= bound * throughput(seconds, weights, chosen) * (1 + 1e-12)


def test_votes_may_need_one_kernel_less() -> None:
    """A kernel that is fair everywhere is taken first."""
    seconds = {"fair": [1.1, 1.1], "short": [1.0, 9.0], "long": [9.0, 1.0]}
    assert set(chosen_kernels(seconds, [1.0, 1.0], least_gain=0.0)) == {"fair", "short", "long"}


def test_throughput_is_relative_to_the_fastest_and_by_weight() -> None:
    seconds = {"a": [1.0, 8.0], "b": [2.0, 2.0]}
    assert throughput(seconds, [0.5, 0.5], ["a"]) == 0.5 * 1 + 0.5 * 1 / 4
    assert throughput(seconds, [0.25, 0.75], ["b"]) == 0.25 * 1 / 2 + 0.75 * 1
    assert throughput(seconds, [0.5, 0.5], ["b", "a"]) == 1.0


def test_every_shape_is_served_even_one_of_no_weight() -> None:
    seconds = {"a": [1.0, inf], "b": [inf, 2.0], "c": [inf, 1.0]}
    assert chosen_kernels(seconds, [1.0, 0.0]) == ["a", "c"]
    with pytest.raises(TreadleError, match="no kernel computes shape number 1; accepted: one for each shape"):
        chosen_kernels({"a": [1.0, inf]}, [1.0, 1.0])
    with pytest.raises(TreadleError, match="no kernel computes shape number 0"):
        chosen_kernels({}, [1.0])


def test_the_tree_is_exact_on_the_votes() -> None:
    chosen = chosen_kernels(SECONDS, [1.0] * 128)
    usable = {kernel: SECONDS[kernel] for kernel in chosen}
    tree = grown_tree(SHAPES, usable, least_loss=0.0)
    for n, shape in enumerate(SHAPES):
        assert SECONDS[kernel_for(tree, shape)][n] == min(times[n] for times in usable.values())


def test_a_small_loss_gives_a_small_tree_that_is_total() -> None:
    exact, small = (grown_tree(SHAPES, SECONDS, loss) for loss in (0.0, 0.05))
    assert 2 <= leaves(small) < leaves(exact)
    best = sum(min(times[n] for times in SECONDS.values()) for n in range(128))
    dispatched = sum(SECONDS[kernel_for(small, shape)][n] for n, shape in enumerate(SHAPES))
    assert dispatched <= best * 1.05
    for outside in (-5, 0, 129, 1 << 40):
        assert kernel_for(small, (outside,)) in SECONDS


def test_the_symbol_that_matters_divides() -> None:
    shapes = [(batch, rows) for batch in (1, 2, 3) for rows in (1, 64)]
    seconds = {"short": [1.0, 9.0] * 3, "long": [4.0, 2.0] * 3}
    assert grown_tree(shapes, seconds) == Split(1, 1, Leaf("short"), Leaf("long"))
    assert grown_tree(shapes, {"long": [1.0] * 6}) == Leaf("long")


def test_what_cannot_be_divided_is_an_error() -> None:
    with pytest.raises(TreadleError, match="there is nothing to choose from"):
        grown_tree([], {})
    with pytest.raises(TreadleError, match="a shape is given twice; accepted: each shape once"):
        grown_tree([(1,), (1,)], {"a": [1.0, 1.0]})


def test_its_c_says_the_same() -> None:
    """Compiled, for every length up to 200."""
    tree = grown_tree(SHAPES, SECONDS, 0.02)
    names = {kernel: str(n) for n, kernel in enumerate(SECONDS)}
    text = f"long dispatch(long T) {{\n{c_text(tree, ['T'], names)}}}\n"
    library = ctypes.CDLL(str(build_library([Unit("dispatch", text)])))
    library.dispatch.argtypes, library.dispatch.restype = [ctypes.c_long], ctypes.c_long
    for length in range(200):
        assert str(library.dispatch(length)) == names[kernel_for(tree, (length,))]
