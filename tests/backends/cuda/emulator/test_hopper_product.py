"""A product with tensor maps, barriers of bytes and products of warpgroups agrees with NumPy, without a finding."""

from collections.abc import Callable

import pytest

from tests.backends.cuda.emulator.hopper_product import TEXT, Size, agrees, launched
from treadle.backends.cuda.emulator import CHECKS, Emulator

SIZES = [Size(256, 256, 256, 2), Size(264, 200, 328, 3), Size(40, 72, 136, 1)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("checks", [(), tuple(CHECKS)], ids=["fast", "checked"])
def test_product(emulate: Callable[..., Emulator], checks: tuple[str, ...], size: Size) -> None:
    report, result, expected = launched(emulate(TEXT, checks), size)
    assert not report.findings, str(report)
    assert agrees(result, expected)
