"""The figures of DietCode's section 3 and 4 that are numbers: blocks, padding, occupancy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.schedules.joint import MicroKernel, busy, fitted_k, occupancy

DENSE = MicroKernel((128, 128), 1.0)
"""Of figures 4 and 5: Y = X W^T of BERT, whose result is 16 T x 2304."""
T4_CORES = 40


def test_figure_4_whole_tiles() -> None:
    shape = (16 * 64, 2304)
    assert DENSE.blocks(shape) == 8 * 18
    assert DENSE.padding(shape) == 1.0


def test_figure_5_the_last_column_is_padded() -> None:
    shape = (16 * 60, 2304)
    assert DENSE.blocks(shape) == 8 * 18
    assert DENSE.padding(shape) == pytest.approx(960 / 1024)


def test_the_same_tile_serves_every_length() -> None:
    assert [DENSE.blocks((16 * t, 2304)) for t in (1, 8, 9, 127, 128)] == [18, 18, 36, 288, 288]


def test_figure_7_the_factors_of_a_throughput() -> None:
    """144 blocks run in four rounds of 40, of which the last is short by 16."""
    assert busy(144, T4_CORES) == pytest.approx(144 / 160)
    assert occupancy(144, T4_CORES, k=0.0) == 1.0
    assert occupancy(144, T4_CORES, k=1.0) == pytest.approx(0.9)
    assert occupancy(144, T4_CORES, k=0.5) == pytest.approx(0.95)
    assert occupancy(160, T4_CORES, k=0.7) == 1.0, "b = 1 - k"
    kernel = MicroKernel((128, 128), 2e12)
    assert kernel.on((960, 2304), T4_CORES, k=0.5) == pytest.approx(2e12 * 0.95 * 960 / 1024)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 64), st.integers(1, 64), st.integers(1, 200))
def test_factors_are_parts(m: int, n: int, i: int, j: int, places: int) -> None:
    kernel = MicroKernel((i, j), 1.0)
    assert 0 < kernel.padding((m, n)) <= 1
    assert (kernel.padding((m, n)) == 1) == (m % i == n % j == 0)
    assert 0 < busy(kernel.blocks((m, n)), places) <= 1


@pytest.mark.parametrize("k", [0.0, 0.3, 0.85])
def test_k_is_found_in_measurements(k: float) -> None:
    generator = np.random.default_rng(0)
    busies = generator.uniform(0.1, 1.0, 40)
    exact = [k * each + 1 - k for each in busies]
    assert fitted_k(busies.tolist(), exact) == pytest.approx(k, abs=1e-6)
    noisy = [each * factor for each, factor in zip(exact, np.exp(generator.normal(0, 0.02, 40)), strict=True)]
    assert fitted_k(busies.tolist(), noisy) == pytest.approx(k, abs=0.04)


def test_k_stays_within_its_bounds() -> None:
    assert fitted_k([], []) == 0.5
    assert fitted_k([0.5, 0.5], [1.2, 1.3]) == 0.0
    assert fitted_k([0.5, 0.25], [0.1, 0.05]) == pytest.approx(1.0)
