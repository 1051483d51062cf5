"""The benchmark of convolutions in tiles: its reference, its numbers, and what it compiles."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.winograd import WAYS, Geometry, Layer, convolved, estimates, largest_errors, row, table
from tests.helpers import winograd

SMALL = Geometry((1, 32, 6, 7), 32, (1, 1, 1, 1))


def test_reference_is_the_convolution() -> None:
    random = np.random.default_rng(0)
    x, weights = random.standard_normal((2, 3, 5, 6)), random.standard_normal((4, 3, 3, 3))
    pads = (0, 1, 2, 0)
    np.testing.assert_allclose(convolved(x, weights, pads), winograd.convolved(x, weights, pads), atol=1e-12)


def test_ratios_are_of_rounds() -> None:
    """The machine is half as fast in the second round; each way is compared within its round."""
    seconds = {"direct": [2.0, 4.0], "F(2x2)": [1.0, 2.0], "F(4x4)": [4.0, 8.0]}
    layer = Layer("m", SMALL, 2, seconds, {"direct": 3.0, "F(2x2)": 2.0, "F(4x4)": 1.0}, dict.fromkeys(WAYS, 1e-6))
    assert (layer.ratio("F(2x2)"), layer.ratio("F(4x4)"), layer.expected("F(2x2)")) == (2.0, 0.5, 1.5)
    assert row(layer)["F(2x2) ratio"] == 2.0
    assert table([layer]).row_count == 1


def test_estimates_are_of_every_way() -> None:
    assert list(estimates(SMALL)) == list(WAYS)


def test_errors_are_small(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path))
    (errors,) = largest_errors([SMALL]).values()
    assert all(0 < error < 4 * 2.0**-23 * (9 * 32) ** 0.5 for error in errors.values())
