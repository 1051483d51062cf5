"""Offsets from live ranges: nothing overlaps, nothing is wasted beyond the sum."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.passes.lower.launch_memory import LiveRange, plan_arena


def live_ranges() -> st.SearchStrategy[list[LiveRange]]:
    one = st.builds(
        lambda size, first, steps: LiveRange(size, first, first + steps),
        st.integers(0, 1000),
        st.integers(0, 20),
        st.integers(0, 6),
    )
    return st.lists(one, max_size=30)


@settings(max_examples=200)
@given(live_ranges(), st.sampled_from([1, 16, 64, 48]))
def test_no_two_live_ranges_share_a_byte(ranges: list[LiveRange], alignment: int) -> None:
    arena = plan_arena(ranges, alignment)
    assert plan_arena(ranges, alignment) == arena
    rounded = [max(1, -(-r.size // alignment)) * alignment for r in ranges]
    assert arena.nbytes <= sum(rounded)
    assert all(offset % alignment == 0 for offset in arena.offsets)
    assert all(o + r.size <= arena.nbytes for o, r in zip(arena.offsets, ranges, strict=True))
    for (a, start_a), (b, start_b) in combinations(zip(ranges, arena.offsets, strict=True), 2):
        if a.meets(b):
            assert start_a + a.size <= start_b or start_b + b.size <= start_a


def test_a_chain_needs_two_buffers() -> None:
    chain = [LiveRange(256, n, n + 1) for n in range(10)]
    assert plan_arena(chain).nbytes == 512


def test_the_smallest_gap_that_fits_is_taken() -> None:
    """Around two buffers that stay, a gap of 192 and one of 128 bytes: 128 go into the second."""
    stay = [LiveRange(256, 0, 9), LiveRange(256, 0, 9)]
    early = [LiveRange(1024, 0, 0), LiveRange(192, 0, 0)]
    late = [LiveRange(128, 5, 5), LiveRange(1024, 5, 5)]
    arena = plan_arena([*stay, *early, *late])
    assert arena.offsets == (1024, 1280, 0, 1536, 1536, 0)
    assert arena.nbytes == 1728


def test_an_empty_buffer_has_an_address_of_its_own() -> None:
    arena = plan_arena([LiveRange(0, 0, 1), LiveRange(64, 0, 1)])
    assert sorted(arena.offsets) == [0, 64]
    assert arena.nbytes == 128
    assert plan_arena([]).nbytes == 0
