"""What a search looks at: everything once, in an order that the seed decides, near the best first."""

from __future__ import annotations

from hypothesis import given, strategies

from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.proposals import Proposals, ranked

COMBINATIONS: list[Candidate] = [
    Candidate("t", {"rows": rows, "chunk": chunk, "pack": pack})
    for rows in (1, 2, 4)
    for chunk in (8, 16)
    for pack in (True, False)
]


def texts(candidates: list[Candidate]) -> list[str]:
    return [str(each) for each in candidates]


@given(strategies.integers(0, 5), strategies.lists(strategies.integers(1, 7), min_size=1, max_size=8))
def test_everything_is_drawn_once(seed: int, counts: list[int]) -> None:
    proposals, drawn = Proposals(COMBINATIONS, str(seed)), list[Candidate]()
    for count in [*counts, len(COMBINATIONS)]:
        found = proposals.draw(count, drawn[:1])
        assert len(found) <= count
        drawn += found
    assert sorted(texts(drawn)) == sorted(texts(COMBINATIONS))
    assert not len(proposals)


def test_the_seed_decides() -> None:
    draws = [texts(Proposals(COMBINATIONS, seed).draw(12, [])) for seed in ("a", "a", "b")]
    assert draws[0] == draws[1] != draws[2]


def test_half_of_a_draw_is_near_the_best() -> None:
    best = Candidate("t", {"rows": 2, "chunk": 8, "pack": True})
    proposals = Proposals(COMBINATIONS, "0")
    proposals.drop(best)
    near = proposals.draw(4, [best])[:2]
    changed = [sum(best.decisions[name] != value for name, value in each.decisions.items()) for each in near]
    assert changed == [1, 1]
    assert best not in proposals.draw(20, [])


def test_what_has_no_prediction_is_left_out() -> None:
    times = {"a": 2.0, "b": None, "c": 1.0}
    found = ranked([Candidate(name, {}) for name in times], lambda each: times[each.program])
    assert [(each.program, seconds) for each, seconds in found] == [("c", 1.0), ("a", 2.0)]
