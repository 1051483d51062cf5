"""A product with tensor maps, barriers of bytes and products of warpgroups agrees with NumPy, without a finding."""

from collections.abc import Callable

import pytest

from tests.backends.cuda.emulator.hopper_product import CLUSTER, PING_PONG, TEXT, Size, agrees, launched
from treadle.backends.cuda.emulator import CHECKS, Emulator
from treadle.environment import Environment

SIZES = [Size(256, 256, 256, 2), Size(264, 200, 328, 3), Size(40, 72, 136, 1)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("checks", [(), tuple(CHECKS)], ids=["fast", "checked"])
def test_product(emulate: Callable[..., Emulator], checks: tuple[str, ...], size: Size) -> None:
    report, result, expected = launched(emulate(TEXT, checks), size)
    assert not report.findings, str(report)
    assert agrees(result, expected)


@pytest.mark.parametrize("size", [*SIZES, Size(264, 200, 136, 1)], ids=str)
@pytest.mark.parametrize("checks", [(), tuple(CHECKS)], ids=["fast", "checked"])
def test_consumers_that_take_turns(emulate: Callable[..., Emulator], checks: tuple[str, ...], size: Size) -> None:
    report, result, expected = launched(emulate(PING_PONG, checks), size)
    assert not report.findings, str(report)
    assert agrees(result, expected)


@pytest.mark.parametrize("size", [Size(264, 200, 328, 2), Size(512, 256, 456, 4), Size(40, 72, 136, 4)], ids=str)
@pytest.mark.parametrize("checks", [(), tuple(CHECKS)], ids=["fast", "checked"])
def test_clusters(emulate: Callable[..., Emulator], checks: tuple[str, ...], size: Size) -> None:
    report, result, expected = launched(emulate(CLUSTER, checks), size, rows_of_b=32)
    assert not report.findings, str(report)
    assert agrees(result, expected)


def test_a_wait_for_the_turn_is_missed(emulate: Callable[..., Emulator]) -> None:
    turn = "if (turn > 0) treadle_named_barrier(3 + consumer, 256);"
    assert turn in PING_PONG
    report, _, _ = launched(emulate(PING_PONG.replace(turn, "")), Size(264, 200, 328, 1))
    assert "touched while an asynchronous copy to it is under way" in str(report)


def test_counters(emulator_environment: Environment) -> None:
    m, n, k, steps = 256, 256, 256, 16
    emulator = Emulator(TEXT, (), counters=True, environment=emulator_environment)
    report, _, _ = launched(emulator, Size(m, n, k, 2))
    assert report.counters is not None
    total = report.counters.total
    assert total.operations == 2 * m * n * k
    # Each tile of 128 x 128 copies A and B once; each warp of a consumer waits for each stage, and for its products.
    assert total.global_read == 2 * 4 * 128 * k * 2
    assert total.global_written == m * n * 2
    waits = {report.counters.text(line.line).split("(")[0]: line.waits for line in report.counters.lines if line.waits}
    assert waits["treadle_mbarrier_wait"] == 8 * steps
    assert waits["treadle_wgmma_wait<1>"] == 8 * (steps - 4)
