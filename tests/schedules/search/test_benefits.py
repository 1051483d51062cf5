"""Gensor's formulas, by numbers worked out by hand."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from treadle.schedules.search.walk import (
    Memory,
    cache_weight,
    caching_benefit,
    keep_probability,
    memories_of,
    probabilities,
    roulette,
    tiling_balance,
    tiling_benefit,
    virtual_thread_benefit,
)
from treadle.target import TARGETS


def reads(i: int, j: int, k: int) -> tuple[float, float]:
    """Traffic and footprint of the reads of a product with tiles of i x j x k, in units of its extents."""
    return 1 / i + 1 / j, float(i * k + k * j)


@pytest.mark.parametrize(
    ("tile", "printed", "described"),
    [
        ((128, 64, 8), 2.0, 8 / 9),
        ((32, 64, 8), 0.5, 8 / 9),
        ((64, 64, 16), 2.0, 0.5),
        ((64, 64, 4), 0.5, 2.0),
    ],
)
def test_tiling_as_printed_and_as_described(tile: tuple[int, int, int], printed: float, described: float) -> None:
    """From 64 x 64 x 8: as printed all growth is a gain, as described no side has a drift."""
    (q, f), (next_q, next_f) = reads(64, 64, 8), reads(*tile)
    assert tiling_benefit(q, next_q, f, next_f) == pytest.approx(printed)
    assert tiling_balance(q, next_q, f, next_f) == pytest.approx(described)


def test_caching_is_a_ratio_of_times() -> None:
    assert caching_benefit(Memory(500, 10), Memory(30, 128), 1280) == (500 + 128) / (30 + 10)


@pytest.mark.parametrize(("width", "virtual", "benefit"), [(64, 2, 2.0), (96, 2, 1.5), (32, 4, 1.0), (128, 1, 1.0)])
def test_virtual_threads_divide_conflicts(width: int, virtual: int, benefit: float) -> None:
    assert virtual_thread_benefit(width, virtual, banks=32) == benefit


def test_the_weight_of_caching_grows_from_a_half_to_three() -> None:
    assert [cache_weight(step) for step in (0, 10, 20)] == pytest.approx([3 / 6, 3 / 2, 3 / 1.2])
    assert cache_weight(100) == pytest.approx(3, abs=1e-5)


def test_early_states_are_kept() -> None:
    assert [keep_probability(2.0**-n) for n in (0, 15, 30)] == pytest.approx([0.9933, 0.4505, 0.0045], abs=1e-4)


def test_a_roulette_gives_each_its_share() -> None:
    random, weights = Random(0), [1.0, 2.0, 1.0]
    drawn = Counter(roulette(weights, random.random()) for _ in range(4000))
    assert [drawn[n] / 1000 for n in range(3)] == pytest.approx(weights, rel=0.1)
    assert [roulette(weights, at) for at in (0.0, 0.249, 0.25, 0.749, 0.75, 1.0)] == [0, 0, 1, 1, 2, 2]


def test_probabilities_of_several_states_sharpen_with_the_steps() -> None:
    """Two states of two actions, the second one's last going on: of benefits 1 and 2, and 1 and 1."""
    benefits, caches, firsts = np.array([1.0, 2.0, 1.0, 1.0]), np.array([False, False, False, True]), np.array([0, 2])
    first = probabilities(benefits, caches, firsts, 0, sharpness=1.0)
    assert first == pytest.approx([1 / 3, 2 / 3, 2 / 3, 1 / 3])  # the weight of caching is 1/2
    third = probabilities(benefits, caches, firsts, 2, sharpness=1.0)
    weight = cache_weight(2)
    assert third == pytest.approx([1 / 9, 8 / 9, 1 / (1 + weight), weight / (1 + weight)])
    assert probabilities(benefits, caches, firsts, 2, sharpness=0.0)[:2] == pytest.approx(first[:2])


@pytest.mark.parametrize("name", TARGETS)
def test_nearer_memories_are_faster(name: str) -> None:
    far, *nearer = memories_of(TARGETS[name])
    for near in nearer:
        assert near.latency < far.latency
        assert caching_benefit(far, near, 4096) > 1
        far = near
