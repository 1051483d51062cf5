"""The mappings of Hidet's figures (ASPLOS 2023) as values: who does which tasks, in which order."""

from __future__ import annotations

import pytest

from treadle.dialects.task import parse_mapping, prove_cover

TABLE: dict[str, tuple[tuple[int, ...], int, dict[int, list[tuple[int, ...]]]]] = {
    # Figure 8: a cooperative load of 64 x 8 elements by 128 threads, and the two parts of its mapping.
    "repeat(4, 1)": ((4, 1), 1, {0: [(0, 0), (1, 0), (2, 0), (3, 0)]}),
    "spatial(16, 8)": ((16, 8), 128, {w: [(w // 8, w % 8)] for w in range(128)}),
    "repeat(4, 1) * spatial(16, 8)": (
        (64, 8),
        128,
        {w: [(w // 8, w % 8), (w // 8 + 16, w % 8), (w // 8 + 32, w % 8), (w // 8 + 48, w % 8)] for w in range(128)},
    ),
    # Figure 11: the basic mappings.
    "repeat(2, 2)": ((2, 2), 1, {0: [(0, 0), (0, 1), (1, 0), (1, 1)]}),
    "spatial(2, 2)": ((2, 2), 4, {w: [(w // 2, w % 2)] for w in range(4)}),
    # Figure 12, (a) to (d): compositions.
    "repeat(1, 3) * spatial(2, 2)": ((2, 6), 4, {w: [(w // 2, 2 * s + w % 2) for s in range(3)] for w in range(4)}),
    "spatial(2, 2) * repeat(1, 3)": ((2, 6), 4, {w: [(w // 2, 3 * (w % 2) + s) for s in range(3)] for w in range(4)}),
    "spatial(2) * repeat(2) * spatial(2)": (
        (8,),
        4,
        {0: [(0,), (2,)], 1: [(1,), (3,)], 2: [(4,), (6,)], 3: [(5,), (7,)]},
    ),
    "repeat(1, 2) * repeat(2, 1)": ((2, 2), 1, {0: [(0, 0), (1, 0), (0, 1), (1, 1)]}),
    # Figure 13: fragments of a block for its four warps.
    "spatial(2, 2) * repeat(2, 2)": (
        (4, 4),
        4,
        {w: [(w // 2 * 2 + i, w % 2 * 2 + j) for i in range(2) for j in range(2)] for w in range(4)},
    ),
}
"""Mapping -> shape, number of workers, each worker's tasks in order."""


@pytest.mark.parametrize("text", TABLE)
def test_table(text: str) -> None:
    mapping = parse_mapping(text)
    shape, workers, tasks = TABLE[text]
    assert (mapping.shape, mapping.workers) == (shape, workers)
    assert {w: mapping(w) for w in range(workers)} == tasks
    assert prove_cover(mapping) is None


def test_figure_12_composition_is_associative_and_does_not_commute() -> None:
    f, g, h = (parse_mapping(text) for text in ("spatial(2)", "repeat(2)", "spatial(2)"))
    assert [((f * g) * h)(w) for w in range(4)] == [(f * (g * h))(w) for w in range(4)]
    a, b = parse_mapping("repeat(1, 3) * spatial(2, 2)"), parse_mapping("spatial(2, 2) * repeat(1, 3)")
    assert (a.shape, a.workers) == (b.shape, b.workers)
    assert all(a(w) != b(w) for w in range(4))


def test_figure_13_a_warp_keeps_each_fragment_in_a_register_of_its_own() -> None:
    mapping = parse_mapping("spatial(2, 2) * repeat(2, 2)")
    for warp in range(mapping.workers):
        assert [(i % 2, j % 2) for i, j in mapping(warp)] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_section_5_1_2_the_mapping_of_the_cuda_core_matmul() -> None:
    mapping = parse_mapping("spatial(4, 2) * repeat(2, 2) * spatial(4, 8) * repeat(4, 4)")
    assert (mapping.shape, mapping.workers, mapping.loops) == ((128, 128), 256, (2, 2, 4, 4))
    assert prove_cover(mapping) is None
