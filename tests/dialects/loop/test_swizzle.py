"""Swizzles: permutations of a row's chunks under which no two lanes of a phase meet in a bank."""

from __future__ import annotations

from itertools import product

import pytest

from treadle.dialects.loop import Swizzle, swizzle_of_rows
from treadle.errors import TreadleError

LINE = 128
"""Bytes of all banks."""
ROWS = (16, 32, 48, 64, 80, 96, 128, 144, 160, 192, 256, 400, 512)


@pytest.mark.parametrize("row", ROWS)
def test_every_chunk_has_a_place_of_its_own(row: int):
    swizzle = swizzle_of_rows(row, 2)
    for line in range(16):
        assert sorted(swizzle.column(line, c) for c in range(row // 2)) == list(range(row // 2))


@pytest.mark.parametrize("row", ROWS)
def test_eight_rows_of_a_matrix_meet_in_no_bank(row: int):
    swizzle = swizzle_of_rows(row, 2)
    for first, chunk in product(range(0, 64, 8), range(row // 16)):
        positions = [(line * row + swizzle.stored_chunk(line, chunk) * 16) % LINE for line in range(first, first + 8)]
        assert len(set(positions)) == 8


@pytest.mark.parametrize("row", ROWS)
def test_eight_lanes_that_copy_neighbouring_chunks_meet_in_no_bank(row: int):
    swizzle, chunks = swizzle_of_rows(row, 2), row // 16
    for first in range(0, 64 * chunks, 8):
        tasks = [divmod(task, chunks) for task in range(first, first + 8)]
        positions = [(line * row + swizzle.stored_chunk(line, chunk) * 16) % LINE for line, chunk in tasks]
        assert len(set(positions)) == 8


@pytest.mark.parametrize("row", (64, 128, 256, 512))
def test_lanes_that_read_four_rows_of_eight_words_meet_in_no_bank(row: int):
    swizzle = swizzle_of_rows(row, 4, chunk_bytes=32)
    for first, column in product(range(0, 32, 4), range(0, row // 4, 8)):
        words = [
            line * row // 4 + swizzle.column(line, column + lane)
            for line in range(first, first + 4)
            for lane in range(8)
        ]
        assert len({word % 32 for word in words}) == 32


def test_rows_as_wide_as_the_banks_have_eight_phases():
    assert swizzle_of_rows(128, 2) == Swizzle(8, 1, 8)
    assert swizzle_of_rows(64, 2) == Swizzle(8, 2, 4)
    assert str(swizzle_of_rows(1024, 4)) == "swizzle<4, 1, 8>"


def test_rows_of_an_odd_number_of_chunks_stay_as_they_are():
    assert swizzle_of_rows(48, 2).phases == swizzle_of_rows(400, 2).phases == swizzle_of_rows(96, 4, 32).phases == 1


@pytest.mark.parametrize(("row", "chunk"), [(40, 16), (8, 16), (48, 32)])
def test_other_rows_have_none(row: int, chunk: int):
    with pytest.raises(
        TreadleError, match=rf"rows of {row} bytes in chunks of {chunk} have no swizzle; accepted: a multiple"
    ):
        swizzle_of_rows(row, 2, chunk)
