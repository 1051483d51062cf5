"""Of the faulty variants of a product for compute capability 9.0 none passes the checks with the right result."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.backends.cuda.emulator.hopper_mutants import CLUSTER_MUTANTS, MUTANTS
from tests.backends.cuda.emulator.hopper_product import Size, agrees, launched
from tests.schedules.test_matmul_cluster import FAULTS
from treadle.backends.cuda.emulator import Emulator
from treadle.environment import Environment, available_cores

# More steps than stages, more tiles than blocks, and an overhang on each side.
SIZE = Size(264, 200, 328, 1)

ONLY_WRONG = {"B advances by 1024 bytes", "results lie in no swizzle"}
"""What all threads agree on, of bytes that are there: another product. See docs/emulator.md."""

ACCEPTED = 0.98
"""The part of the mutants, with those of kernels by clusters, that must be findings."""

_DOCUMENT = Path(__file__).parents[4] / "docs" / "emulator.md"

SOME = [name for name in MUTANTS if name not in ONLY_WRONG][::12]


def result_of(text: str, environment: Environment, size: Size = SIZE, rows_of_b: int = 64) -> str:
    """Whether a variant is found by the checks, by its result, or not at all."""
    emulator = Emulator(text, limit=60, workers=1, environment=environment)
    report, result, expected = launched(emulator, size, rows_of_b)
    return "finding" if report.findings else "right" if agrees(result, expected) else "wrong"


@pytest.mark.parametrize("name", SOME)
def test_faults_are_found(name: str, emulator_environment: Environment) -> None:
    assert result_of(MUTANTS[name], emulator_environment) == "finding"


@pytest.mark.parametrize("name", CLUSTER_MUTANTS)
def test_faults_of_clusters_are_found(name: str, emulator_environment: Environment) -> None:
    assert result_of(CLUSTER_MUTANTS[name], emulator_environment, Size(264, 200, 328, 2), 32) == "finding"


def test_the_document_says_how_many_are_found() -> None:
    numbers = [len(MUTANTS), len(CLUSTER_MUTANTS), len(FAULTS)]
    found = sum(numbers) - len(ONLY_WRONG)
    text = " ".join(_DOCUMENT.read_text().split())
    counts = re.search(r": (\d+) of a persistent product .*?, (\d+) of the same .*?, and (\d+) of the kernel", text)
    assert counts is not None and [int(number) for number in counts.groups()] == numbers
    said = f"Of these {sum(numbers)} mutants, {found} are findings ({found / sum(numbers):.1%})"
    assert said in text and found >= ACCEPTED * sum(numbers), said


@pytest.mark.slow
def test_no_fault_remains(emulator_environment: Environment) -> None:
    with ThreadPoolExecutor(available_cores()) as pool:
        results = pool.map(lambda text: result_of(text, emulator_environment), MUTANTS.values())
        found = dict(zip(MUTANTS, results, strict=True))
    assert {name for name, result in found.items() if result == "right"} == set()
    assert {name for name, result in found.items() if result == "wrong"} == ONLY_WRONG
