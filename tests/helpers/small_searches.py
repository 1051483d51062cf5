"""Searches that cost a test little: an evolution of a few candidates."""

from __future__ import annotations

from functools import partial

import pytest

from treadle.schedules.search.evolution import Evolution, Settings
from treadle.schedules.search.strategies import STRATEGIES

SMALL = partial(Evolution, settings=Settings(population=8, generations=1))


def search_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the default strategy's population small."""
    monkeypatch.setitem(STRATEGIES, "evolution", SMALL)
