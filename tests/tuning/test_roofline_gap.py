"""What a group can gain, by the roofline of its model's groups, and that a search begins where it is much."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.helpers.small_searches import search_little
from tests.tuning.small_model import write_model
from treadle.schedules.rules.templates import templates
from treadle.target.host import host_target
from treadle.target.options import CompileOptions
from treadle.tuning import tuner
from treadle.tuning.group_search import RooflineGap
from treadle.tuning.measure import Comparison, Timing
from treadle.tuning.model import tasks_of_model, tune

PRODUCT_BYTES, SOFTMAX_BYTES = 4 * (2 * 20 * 48 + 48 * 48), 4 * 2 * 20 * 48


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.onnx")


def test_the_highest_rates_are_the_roofline(model: Path) -> None:
    product, softmax = tasks_of_model(model, host_target(), {}, CompileOptions())
    roofline_gap = RooflineGap.of([(product, 1e-6), (softmax, 1e-6)])
    assert roofline_gap == RooflineGap(operations=(2 * 20 * 48 * 48 + 20 * 48) / 1e-6, nbytes=PRODUCT_BYTES / 1e-6)
    assert roofline_gap(product, 1e-6) == 0
    assert roofline_gap(product, 4e-6) == pytest.approx(0.75)
    assert roofline_gap(product, 0.5e-6) == 0
    assert roofline_gap(softmax, 1e-6) == pytest.approx(1 - SOFTMAX_BYTES / PRODUCT_BYTES)


def test_without_rates_all_time_may_be_gained(model: Path) -> None:
    product, _ = tasks_of_model(model, host_target(), {}, CompileOptions())
    assert RooflineGap.of([])(product, 1e-6) == 1


def test_a_search_begins_where_most_can_be_gained(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The products take more than three times the softmax's time, at the highest rates of both."""
    search_little(monkeypatch)
    monkeypatch.setattr(tuner, "MEASURED", 2)
    order: list[str] = []

    class Same:
        def measure(self, comparison: Comparison) -> list[Timing]:
            order.append("softmax" if "exp" in comparison.text else "product")
            seconds = 60e-6 if order[-1] == "softmax" else 100e-6
            return [Timing(seconds) for _ in comparison.libraries]

        def close(self) -> None: ...

    with ThreadPoolExecutor(2) as executor:
        tune(
            model, tmp_path / "db", seconds=600, trials=4, executor=executor, measurer=Same(), rules=(templates,)
        )  # fmt: skip
    assert order[:3] == ["product", "softmax", "softmax"]
