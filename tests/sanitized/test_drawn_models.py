"""Two hundred drawn models as compiled C: `make test-sanitized` runs them under the sanitizers."""

from __future__ import annotations

import pytest

from tests.fuzz.check import Checker
from tests.fuzz.generate import case_of_seed

SEEDS = range(200)
TOGETHER = 40
"""Models of a call of the compiler; every fifth such batch is quantised."""

pytestmark = pytest.mark.slow


def _is_quantized(seed: int) -> bool:
    return seed // TOGETHER % 5 == 4


@pytest.fixture(scope="module")
def drawn() -> Checker:
    return Checker({str(seed): case_of_seed(seed, _is_quantized(seed)) for seed in SEEDS})


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_model(seed: int, drawn: Checker) -> None:
    report = drawn.check(str(seed))
    assert not report.findings, "\n".join(map(str, report.findings)) + "\n" + drawn.cases[str(seed)].text()
