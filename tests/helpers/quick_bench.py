"""Benchmarks that cost a test little: their numbers say nothing of speed, everything around them is as ever."""

from __future__ import annotations

import pytest

from treadle.bench import model, peaks


def measure_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short batches, and peaks of one try with a megabyte, which may differ by anything: a benchmark takes the seconds
    that it is given."""
    for name in ("_BATCH_SECONDS", "_RANGE_BATCH_SECONDS"):
        monkeypatch.setattr(model, name, 1e-3)
    for name, value in (("_TRIES", 1), ("_STEPS", 20_000), ("_READ_BYTES", 1 << 20), ("_MOST_BYTES", 1 << 20)):
        monkeypatch.setattr(peaks, name, value)
    monkeypatch.setattr(model, "DRIFT", 1.0)


__all__ = ["measure_briefly"]
