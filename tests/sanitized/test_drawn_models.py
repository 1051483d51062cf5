"""Two hundred drawn models as compiled C: `make test-sanitized` runs them under the sanitizers."""

from __future__ import annotations

from functools import cache

import pytest

from tests.fuzz.check import Checker
from tests.fuzz.generate import case_of_seed

SEEDS = range(200)
TOGETHER = 20
"""Models of a call of the compiler, so that tests pass and fail while others are compiled; of ten such batches two are
quantised."""

pytestmark = pytest.mark.slow


def _is_quantized(batch: int) -> bool:
    return batch % 5 == 4


@cache
def _checker(batch: int) -> Checker:
    seeds = SEEDS[batch * TOGETHER : (batch + 1) * TOGETHER]
    return Checker({str(seed): case_of_seed(seed, _is_quantized(batch)) for seed in seeds})


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_model(seed: int) -> None:
    checker = _checker(seed // TOGETHER)
    report = checker.check(str(seed))
    assert not report.findings, "\n".join(map(str, report.findings)) + "\n" + checker.cases[str(seed)].text()
