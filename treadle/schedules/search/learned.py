"""A cost model that learns from measurements: the analytic one times a factor that the kernel's features decide.

    seconds = analytic(work) * exp(g(features(work)))

g is a sum of regression trees (gradient boosting on histograms), fitted anew whenever there are new records: thousands
take about a second. Nothing of it is stored but the records, which are text.
Source: MetaSchedule (NeurIPS 2022), section 4, whose model is XGBoost's. A factor instead of a time means that the
model begins as the analytic one, and that kernels of all sizes share what is learned.

A search compares kernels of one group only. What a group's kernels have in common - an operator that the analytic model
finds too fast as a whole, a machine that was slow on that day - is therefore not learned, as Ansor (OSDI 2020, section
5.2) and MetaSchedule divide each throughput by the best one of its task: here each error is learned relative to the
median error of its group, which one lucky record does not move.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from math import ceil, log, log2
from statistics import median
from typing import Any

import numpy as np

from treadle.schedules.gpu_time import GpuWork, block_cycles, gpu_seconds, resident_blocks
from treadle.schedules.search.predict import cpu_seconds, predicted_seconds
from treadle.schedules.work.cpu_work import MASK_OPERATIONS, Body, Work
from treadle.schedules.work.gpu_work import AnyWork
from treadle.target import KIB, Target

# A CPU kernel's work as numbers that a learned cost model reads: logarithms, and parts of what a processor can do.

_L1_BYTES = 32 * KIB
_LARGEST_BODIES = 2
"""Bodies that are described one by one: nearly all time is spent in the fold, and in the store of its results."""
_LATENCY = 4.0


def features(work: AnyWork, target: Target) -> list[float]:
    """As many numbers for every kernel of one kind of target.

    They do not depend on the unit of time: the model learns by what factor the analytic one errs, from kernels of all
    groups together.
    """
    return _of_gpu(work, target) if isinstance(work, GpuWork) else _of_cpu(work, target)


def _of_gpu(work: GpuWork, target: Target) -> list[float]:
    """How often a multiprocessor is filled, the parts of its time in which each resource is busy, and counts."""
    resident = max(resident_blocks(work, target), 1)
    rounds = work.blocks / (target.multiprocessors * resident)
    busy = list(block_cycles(work, target).values())
    whole = max(*busy, 1.0)
    steps, count = max(work.steps, 1.0), [work.barriers, work.round_trips, float(work.ahead)]
    return [
        _log(gpu_seconds(work, target) * 1e9), _log(work.blocks), float(work.threads), float(work.registers),
        float(resident), _log(rounds), ceil(rounds) / max(rounds, 2**-10), *(each / whole for each in busy),
        _log(whole), *count, _log(work.steps), whole / steps, work.barriers / steps, _log(work.operations),
        _log(work.tensor_flops), _log(work.sectors), _log(work.accesses), _log(work.bytes), float(work.shared_bytes),
        float(work.min_blocks),
    ]  # fmt: skip


def _of_cpu(work: Work, target: Target) -> list[float]:
    workers = min(target.cores, work.blocks)
    rounds = ceil(work.blocks / workers)
    bodies = sorted(work.bodies, key=_cycles, reverse=True)
    cycles = max(sum(map(_cycles, bodies)), 1.0)
    return [
        _log(cpu_seconds(work, target) * 1e9), _log(work.blocks), _log(work.share), rounds * workers / work.blocks,
        _log(cycles), float(len(bodies)), *_limits(bodies, cycles), *_largest(bodies, cycles),
        *_traffic(work, target, rounds * cycles),
    ]  # fmt: skip


def _limits(bodies: Sequence[Body], cycles: float) -> list[float]:
    """How long each resource is busy, as parts of the time: arithmetic, loads and stores, latency, masks."""
    return [
        sum(b.executions * b.arithmetic for b in bodies) / 2 / cycles,
        sum(b.executions * (b.loads + b.stores) for b in bodies) / 2 / cycles,
        sum(b.executions * b.stores for b in bodies) / cycles,
        sum(b.executions * b.chain for b in bodies) * _LATENCY / cycles,
        sum(b.executions * b.masked for b in bodies) * MASK_OPERATIONS / 2 / cycles,
    ]


def _largest(bodies: Sequence[Body], cycles: float) -> list[float]:
    """The bodies that take longest; without one, numbers that no body has."""
    found: list[float] = []
    for n in range(_LARGEST_BODIES):
        if n >= len(bodies):
            found += [0.0] + [-1.0] * 6
            continue
        b = bodies[n]
        found += [
            _cycles(b) / cycles, _log(b.executions), _log(b.arithmetic), _log(b.loads), _log(b.stores), b.chain,
            b.arithmetic / max(b.loads + b.stores, 1.0),
        ]  # fmt: skip
    return found


def _traffic(work: Work, target: Target, cycles: float) -> list[float]:
    """Bytes into caches of several sizes, also per cycle, and the sizes from which on there is little traffic."""
    sizes = [0.0, _L1_BYTES / 2, _L1_BYTES, target.l2_bytes / 2, target.l2_bytes, 4.0 * target.l2_bytes]
    moved = [work.traffic(size) for size in sizes]
    least = work.reuse[-1].traffic
    enough = next(step.capacity for step in work.reuse if step.traffic <= 1.25 * least)
    return [
        *map(_log, moved), *(each / cycles for each in moved), _log(least), _log(work.reuse[-1].capacity / _L1_BYTES),
        _log(enough / _L1_BYTES), _log(enough / target.l2_bytes),
    ]  # fmt: skip


def _cycles(b: Body) -> float:
    """As the analytic model counts them."""
    return b.executions * max(b.operations / 2, (b.loads + b.stores) / 2, b.stores, b.chain * _LATENCY, 1.0)


def _log(value: float) -> float:
    """Base 2, of what may be 0."""
    return log2(value + 2**-10)


LEAST_RECORDS = 32
"""Below that, of groups that have several, the model is the analytic one; assumed, not measured."""
_TREES = {
    "max_iter": 100, "learning_rate": 0.15, "max_leaf_nodes": 10, "min_samples_leaf": 10, "l2_regularization": 1.0
}  # fmt: skip
"""Of 2,816 random records of four models on Zen 4 (`benchmarks/records/random`), these rank the groups that were left
out with 0.86 in the median of 94 groups, and so do three times as many; with 6 leaves and a rate of 0.08 it is 0.85."""
MISSING = (
    "scikit-learn is not installed: candidates are ranked by the analytic cost model, which learns nothing; accepted: "
    "pip install 'treadle[tune]'"
)
"""What a user is told once."""


def can_learn() -> bool:
    """Whether scikit-learn is installed."""
    return find_spec("sklearn") is not None


class Analytic:
    """Predicts with the analytic model, whatever was measured."""

    def seconds(self, works: Sequence[AnyWork], target: Target) -> Sequence[float]:
        """The predicted seconds of each kernel."""
        return [predicted_seconds(work, target) for work in works]

    def learn(self, results: Mapping[str, Sequence[tuple[AnyWork, float]]], target: Target) -> None:
        """Nothing is learned."""


class Learned:
    """Predicts with the analytic model, and corrects it as soon as there are `LEAST_RECORDS` records.

    The same records give the same predictions, in whatever order they came.
    """

    def __init__(self) -> None:
        self._rows: dict[str, list[tuple[tuple[float, ...], float]]] = {}
        """By group: the features of each record, and the logarithm of the factor by which the analytic model errs."""
        self._trees: Any = None
        self._common = 0.0

    @property
    def is_fitted(self) -> bool:
        """Whether it predicts something else than the analytic model."""
        return self._trees is not None

    def seconds(self, works: Sequence[AnyWork], target: Target) -> Sequence[float]:
        """The predicted seconds of each kernel. What all kernels of its group have in common is that of most groups."""
        analytic = Analytic().seconds(works, target)
        if self._trees is None or not works:
            return analytic
        rows = np.array([features(work, target) for work in works])
        with _one_thread():
            factors = np.exp(self._trees.predict(rows) + self._common)
        return [time * float(factor) for time, factor in zip(analytic, factors, strict=True)]

    def learn(self, results: Mapping[str, Iterable[tuple[AnyWork, float]]], target: Target) -> None:
        """Adds kernels with their measured seconds, by the names of their groups, and fits all anew."""
        for group, records in results.items():
            rows = self._rows.setdefault(group, [])
            for work, seconds in records:
                rows.append((tuple(features(work, target)), log(seconds / predicted_seconds(work, target))))
        groups = [rows for rows in self._rows.values() if len(rows) > 1]
        if results and sum(map(len, groups)) >= LEAST_RECORDS and can_learn():
            self._fit(groups)

    def _fit(self, groups: Sequence[Sequence[tuple[tuple[float, ...], float]]]) -> None:
        """Fits the trees to what tells the kernels of a group apart; a group of one record says nothing of that."""
        middles = [median(error for _, error in rows) for rows in groups]
        rows = sorted(
            (row, error - middle) for each, middle in zip(groups, middles, strict=True) for row, error in each
        )
        ensemble: Any = importlib.import_module("sklearn.ensemble")
        trees = ensemble.HistGradientBoostingRegressor(**_TREES, early_stopping=False, random_state=0)
        with _one_thread():
            self._trees = trees.fit(np.array([row for row, _ in rows]), np.array([error for _, error in rows]))
        self._common = median(middles)


def _one_thread() -> AbstractContextManager[Any]:
    """More threads have little to do in so small trees, and wait for each other, busily where others work."""
    threads: Any = importlib.import_module("threadpoolctl")  # which scikit-learn requires
    return threads.threadpool_limits(1)
