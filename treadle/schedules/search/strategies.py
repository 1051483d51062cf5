"""The strategies by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from treadle.schedules.search.candidate import Strategy
from treadle.schedules.search.evolution import Evolution
from treadle.schedules.search.exhaustive import Exhaustive
from treadle.schedules.search.random_search import RandomSearch
from treadle.schedules.search.strategy import Explored, Predictor
from treadle.schedules.search.walk import Walk

MakeStrategy: TypeAlias = Callable[[Explored, Predictor, str], Strategy]
"""Makes the strategy of one task from what is known of it, a predictor, and a seed."""

STRATEGIES: dict[str, MakeStrategy] = {
    "evolution": Evolution,
    "exhaustive": Exhaustive,
    "random": RandomSearch,
    "walk": Walk,
}
"""The first one is the default."""

__all__ = ["STRATEGIES", "MakeStrategy"]
