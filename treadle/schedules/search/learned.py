"""A cost model that learns from measurements: the analytic one times a factor that the kernel's features decide.

    seconds = analytic(work) * exp(g(features(work)))

g is a sum of regression trees (gradient boosting on histograms), fitted anew whenever there are new records: thousands
take about a second. Nothing of it is stored but the records, which are text.
Source: MetaSchedule (NeurIPS 2022), section 4, whose model is XGBoost's. A factor instead of a time means that the
model begins as the analytic one, and that kernels of all sizes share what is learned.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from math import log
from typing import Any

import numpy as np

from treadle.schedules.search.analytic import cpu_seconds
from treadle.schedules.search.features import features
from treadle.schedules.search.work import Work
from treadle.target import Target

LEAST_RECORDS = 32
"""Below that the model is the analytic one; assumed, not measured."""
_TREES = {"max_iter": 120, "learning_rate": 0.08, "max_leaf_nodes": 15, "min_samples_leaf": 5, "l2_regularization": 1.0}
"""Assumed, not measured: small trees for some hundred to some thousand records."""
MISSING = (
    "scikit-learn is not installed: candidates are ranked by the analytic cost model, which learns nothing; accepted: "
    "pip install 'treadle[tune]'"
)
"""What a user is told once."""


def can_learn() -> bool:
    """Whether scikit-learn is installed."""
    return find_spec("sklearn") is not None


class Learned:
    """Predicts with the analytic model, and corrects it as soon as there are `LEAST_RECORDS` records.

    The same records give the same predictions, in whatever order they came.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[tuple[float, ...], float]] = []
        self._trees: Any = None

    @property
    def is_fitted(self) -> bool:
        """Whether it predicts something else than the analytic model."""
        return self._trees is not None

    def seconds(self, works: Sequence[Work], target: Target) -> Sequence[float]:
        """The predicted seconds of each kernel."""
        analytic = [cpu_seconds(work, target) for work in works]
        if self._trees is None or not works:
            return analytic
        rows = np.array([features(work, target) for work in works])
        with _one_thread():
            factors = np.exp(self._trees.predict(rows))
        return [time * float(factor) for time, factor in zip(analytic, factors, strict=True)]

    def learn(self, results: Sequence[tuple[Work, float]], target: Target) -> None:
        """Adds kernels with their measured seconds, and fits all anew."""
        for work, seconds in results:
            error = log(seconds / cpu_seconds(work, target))
            self._rows.append((tuple(features(work, target)), error))
        if results and len(self._rows) >= LEAST_RECORDS and can_learn():
            self._fit()

    def _fit(self) -> None:
        rows = sorted(self._rows)
        ensemble: Any = importlib.import_module("sklearn.ensemble")
        trees = ensemble.HistGradientBoostingRegressor(**_TREES, early_stopping=False, random_state=0)
        with _one_thread():
            self._trees = trees.fit(np.array([row for row, _ in rows]), np.array([error for _, error in rows]))


def _one_thread() -> AbstractContextManager[Any]:
    """More threads have little to do in so small trees, and wait for each other, busily where others work."""
    threads: Any = importlib.import_module("threadpoolctl")  # which scikit-learn requires
    return threads.threadpool_limits(1)


__all__ = ["LEAST_RECORDS", "MISSING", "Learned", "can_learn"]
