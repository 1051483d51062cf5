"""Gensor's table IV: a walk is no worse than as many random draws, by predicted times (`benchmarks/walks.py`)."""

from __future__ import annotations

import pytest

from benchmarks.walks import OPERATORS, compared
from treadle.target import Target


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("target", ["sm_89", "avx2"])
def test_a_walk_is_no_worse_than_random_draws(target: str, operator: str) -> None:
    _, walk, draws = compared(OPERATORS[operator](), Target.parse(target), seeds=3)
    assert walk <= draws
