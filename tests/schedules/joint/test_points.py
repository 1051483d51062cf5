"""Points of a range: ends, spread values, histograms, and what is wrong with a histogram."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from treadle.errors import TreadleError
from treadle.schedules.joint import POINTS, points_of
from treadle.shapes.dim import Dim

SEQ, BATCH, WIDTH = Dim("seq", 1, 512), Dim("batch", 1, 8), Dim("w", 32, 2048, multiple=32)


@pytest.mark.parametrize("symbols", [[SEQ], [BATCH, SEQ], [BATCH, SEQ, WIDTH], [WIDTH], [Dim("one", 7, 7)]])
def test_values_are_of_the_range_with_its_ends(symbols: list[Dim]):
    found = points_of(symbols, [f"{dim.name} + 1" for dim in symbols])
    assert 1 <= len(found) <= POINTS
    assert found[0].values == tuple(dim.least for dim in symbols)
    assert found[-1].values == tuple(dim.greatest for dim in symbols)
    assert all(value in dim for point in found for value, dim in zip(point.values, symbols, strict=True))
    assert all(point.extents == tuple(value + 1 for value in point.values) for point in found)
    assert sum(point.weight for point in found) == pytest.approx(1)


def test_short_and_long_calls_are_both_among_them():
    values = [point.values[0] for point in points_of([SEQ], ["seq"])]
    assert sum(value <= 32 for value in values) >= 4
    assert sum(value >= 256 for value in values) >= 4


def test_points_of_equal_extents_are_one():
    found = points_of([SEQ], ["seq // 512"])
    assert [(point.extents, round(point.weight, 6)) for point in found] == [((0,), 0.9375), ((1,), 0.0625)]


def test_a_histogram_gives_the_values():
    found = points_of([SEQ], ["seq"], {"seq": {7: 3.0, 40: 1.0}})
    assert [(point.values[0], point.weight) for point in found] == [(1, 0.0), (7, 0.75), (40, 0.25), (512, 0.0)]
    every = points_of([SEQ], ["seq"], {"seq": {n: 1.0 for n in range(1, 513)}})
    assert len(every) <= POINTS
    assert sum(point.weight for point in every) == pytest.approx(1)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"length": {1: 1.0}}, "the model has no symbol 'length' (accepted: seq)"),
        ({"seq": {513: 1.0}}, "weights of 'seq': the extent 513 is not in the range (accepted: seq:1..512)"),
        ({"seq": {5: -1.0}}, "weights of 'seq': the weight of 5 is -1 (accepted: numbers from 0 upwards)"),
        ({"seq": {5: float("nan")}}, "weights of 'seq': the weight of 5 is nan"),
        ({"seq": {5: 0.0}}, "weights of 'seq': no value has a weight above 0"),
        ({"seq": {}}, "weights of 'seq': no value has a weight above 0"),
    ],
)
def test_bad_weights(weights: Mapping[str, Mapping[int, float]], message: str):
    with pytest.raises(TreadleError) as error:
        points_of([SEQ], ["seq"], weights)
    assert message.split(" (accepted")[0] in str(error.value)
    assert re.search(r"[Aa]ccepted|one of|expected", str(error.value))
