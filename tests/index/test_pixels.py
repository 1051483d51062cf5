"""Rows that walk over pixels of images: what is recognised, against the places of every row."""

from __future__ import annotations

from math import prod

import pytest

from treadle.index.expr import Expr, const, var
from treadle.index.pixels import pixel_walk
from treadle.target.tensor_map import PixelBox

IMAGES: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = {
    "images": (3, (5, 4), (1, 2)),
    "one image": (1, (5, 4), (2, 3)),
    "one row of pixels": (2, (1, 7), (1, 2)),
    "one column of pixels": (2, (7, 1), (3, 1)),
    "single pixels": (4, (1, 1), (1, 1)),
    "one pixel": (1, (1, 1), (1, 1)),
    "one dimension": (2, (9,), (2,)),
    "three dimensions": (2, (3, 4, 5), (1, 2, 1)),
}
"""How many, pixels along each dimension, steps."""


@pytest.mark.parametrize("name", IMAGES)
def test_walks(name: str) -> None:
    images, counts, steps = IMAGES[name]
    row, tap = var("row", 0, images * prod(counts) - 1), var("tap", 0, 8)
    starts = [tap // 3 * 2 - 1, tap % 3 - 2, const(5)][: len(counts)]
    places: list[Expr] = [row // prod(counts)]
    for n, (step, start) in enumerate(zip(steps, starts, strict=True)):
        inside = row // prod(counts[n + 1 :])
        places.append((inside % counts[n] if images > 1 or n else inside) * step + start)
    walk = pixel_walk(places, row)
    assert walk is not None and walk.counts == counts and walk.starts == (0, *starts)
    for number in range(images * prod(counts)):
        values = {"row": number, "tap": 7}
        image, *digits = (digit.evaluate(values) for digit in walk.digits)
        assert image == places[0].evaluate(values)
        moved = [d * s + start.evaluate(values) for d, s, start in zip(digits, walk.steps, starts, strict=True)]
        assert moved == [place.evaluate(values) for place in places[1:]]
    extents = tuple(count * step + 1 for count, step in zip(counts, steps, strict=True))
    box = walk.box((images, *extents, 64), images * prod(counts))
    assert box is not None and box.counts(extents) == counts
    assert walk.box((images + 1, *extents, 64), images * prod(counts)) is None


ROW = var("row", 0, 59)
OTHERS: dict[str, tuple[Expr, ...]] = {
    "columns before rows": (ROW // 20, ROW % 5, ROW // 5 % 4),
    "backwards": (ROW // 20, ROW // 5 % 4, ROW % 5 * -1 + 4),
    "other images": (ROW // 10, ROW // 5 % 4, ROW % 5),
    "two quotients": (ROW // 20, ROW // 5 % 4 + ROW // 20, ROW % 5),
    "a product": (ROW // 20, ROW // 5 % 4 * var("n", 1, 2), ROW % 5),
    "a row that begins elsewhere": (ROW // 20, ROW // 5 % 4, (ROW + 2) % 5),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_walk(name: str) -> None:
    assert pixel_walk(OTHERS[name], ROW) is None


def test_offsets_that_no_copy_takes() -> None:
    far = pixel_walk((ROW // 20, ROW // 5 % 4 + var("tap", 0, 256), ROW % 5), ROW)
    assert far is not None and far.box((3, 300, 5, 64), 60) is None
    near = pixel_walk((ROW // 20, ROW // 5 % 4 + var("tap", -3, 252), ROW % 5), ROW)
    assert near is not None and near.box((3, 300, 5, 64), 60) == PixelBox((-3, 0), (-299, 0), (1, 1))
