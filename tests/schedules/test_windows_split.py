"""In which order blocks go through the windows of an image, and how many rows each has."""

from __future__ import annotations

from math import ceil

import pytest

from tests.schedules.test_templates import tensor
from tests.schedules.test_windows import conv, in_blocks, last
from treadle.dialects.graph import ComputeOp, PoolOp
from treadle.dialects.graph.compute import only_reduce
from treadle.schedules.access_analysis import WindowsSplit, windows_of, windows_split

IMAGE = conv((2, 32, 28, 14), (32, 1, 3, 3), 1, 32)
LINE = PoolOp("max", tensor(1, 32, 33), [3], [2], [1, 1], [1])
VOLUME = PoolOp("max", tensor(1, 16, 9, 10, 11), [3, 3, 3], [1, 1, 1], [1] * 6, [1, 1, 1])


def split_of(compute: ComputeOp) -> WindowsSplit:
    reduce = only_reduce(compute)
    windows = windows_of(compute, reduce) if reduce is not None else None
    assert windows is not None
    return windows_split(windows, 16)


@pytest.mark.parametrize(
    ("compute", "rows", "order"),
    [
        (in_blocks(IMAGE), 2, (0, 2, 1, 4)),
        (last(IMAGE), 1, (0, 1, 3)),
        (in_blocks(LINE), 1, (0, 1, 3)),
        (in_blocks(VOLUME), 3, (0, 2, 3, 1, 5)),
    ],
    ids=["blocks of channels", "channels last", "one dimension", "three dimensions"],
)
def test_blocks_go_through_rows_before_channels(compute: ComputeOp, rows: int, order: tuple[int, ...]) -> None:
    split = split_of(compute)
    assert (split.rows, split.order) == (rows, order)


@pytest.mark.parametrize(
    ("extent", "cores", "rows"),
    [
        (112, 2, 14), (56, 2, 14), (28, 2, 14), (14, 2, 7), (7, 2, 7), (73, 2, 19), (35, 2, 9), (17, 2, 9), (1, 2, 1),
        (56, 1, 14), (56, 4, 14), (56, 8, 7), (28, 8, 28),
    ],
)  # fmt: skip
def test_default_rows(extent: int, cores: int, rows: int) -> None:
    """Each core has as many parts; where these were too short, blocks have whole images."""
    assert WindowsSplit(1, (0, 1), (3, extent)).default_rows(cores) == rows


def test_every_core_has_as_many_rows() -> None:
    """Or one, if blocks have whole images: no core then has more than a sixteenth above its part."""
    for extent in range(1, 200):
        for cores in (1, 2, 3, 4, 8, 16):
            rows = WindowsSplit(1, (0, 1), (3, extent)).default_rows(cores)
            parts = ceil(extent / rows)
            assert parts == 1 or (parts % cores == 0 and 16 * (rows * parts - extent) <= extent and rows >= 4)
