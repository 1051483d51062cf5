"""Drafts: instructions are appended to a value, samples take legal values, and what is wrong is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.schedules.rules.scheduled import CPU, anchor
from treadle.errors import TreadleError
from treadle.schedules.nest.workload import workload_of
from treadle.schedules.rules import Draft


def dense(seed: str = "0") -> Draft:
    """19 x 37, 23 terms."""
    of = anchor("GMM")
    return Draft(of, CPU, workload_of(of), seed)


def test_a_draft_stays_what_it_was() -> None:
    empty = dense()
    draft, (spatial, reduction) = empty.axes()
    one, levels = draft.split(spatial[0], [4])
    other, fused = draft.fuse(*spatial)
    assert empty.instructions == () and len(draft.instructions) == 1
    assert (one.instructions[:1], other.instructions[:1]) == (draft.instructions, draft.instructions)
    assert draft.axes() == (draft, (spatial, reduction))
    assert other.axes() == (other, ((fused,), reduction))
    assert one.axes()[1] == ((spatial[1],), reduction)
    assert (draft.extent(spatial[1]), other.extent(fused), list(other.dimensions(fused))) == (37, 19 * 37, [0, 1])
    assert len(levels) == 2


def test_the_nest_is_known_as_soon_as_the_levels_are_arranged() -> None:
    draft, (spatial, reduction) = dense().axes()
    draft, levels = draft.split(spatial[1], [16])
    assert draft.nest is None and not draft.is_complete
    draft = draft.arrange([("block", [spatial[0], levels[0]]), ("loop", reduction), ("repeat", levels[1:])])
    assert draft.nest is not None and draft.is_complete
    assert [level.trips for level in draft.nest.levels] == [19, 3, 23, 16]
    marked = draft.mark("vector", levels[1])
    assert marked.nest is not None and marked.nest.levels[-1].vector and not draft.nest.levels[-1].vector


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_samples_take_values_of_their_supports(seed: str) -> None:
    draft, pair = dense(seed).sample_tile("pair", 2, ([1, 3, 5], [2, 4]), (4, 12))
    draft, last = draft.sample_tile("last", 1, [1, 2, 3, 4], (8, 16), step=4, beside=pair)
    draft, word = draft.sample("word", ["a", "b"], [0.0, 1.0])
    a, b, c = (draft.value(param) for param in (*pair, *last))
    assert isinstance(a, int) and isinstance(b, int) and isinstance(c, int)
    assert a in (1, 3, 5) and b in (2, 4) and 4 <= a * b <= 12 and 8 <= a * b * c <= 16 and a * b * c % 4 == 0
    assert draft.value(word) == "b"
    assert draft.decisions == {"pair": (a, b), "last": (c,), "word": "b"}


def test_the_seed_decides() -> None:
    def drawn(seed: str) -> str:
        return str([dense(seed).sample(f"s{n}", list(range(100)))[0].decisions for n in range(4)])

    assert drawn("a") == drawn("a") != drawn("b")


def test_a_program_is_open_unless_the_values_are_kept() -> None:
    draft, (spatial, reduction) = dense().axes()
    draft, rows = draft.sample("rows", [2, 4])
    draft, levels = draft.split(spatial[0], [rows])
    draft = draft.arrange([("block", [levels[0], spatial[1]]), ("loop", reduction), ("repeat", levels[1:])])
    assert [sample.decision for sample in draft.program("p").samples] == [None]
    assert [sample.decision for sample in draft.program("p", with_decisions=True).samples] == [draft.value(rows)]
    assert f"taken {draft.value(rows)}" in str(draft)


def twice(draft: Draft) -> None:
    draft.sample("a", [1])[0].sample("a", [2])


def split_twice(draft: Draft) -> None:
    after, (spatial, _) = draft.axes()
    after.split(spatial[0], [2])[0].split(spatial[0], [2])


def split_late(draft: Draft) -> None:
    after, (spatial, reduction) = draft.axes()
    after = after.arrange([("block", spatial), ("loop", reduction)])
    after.split(spatial[0], [2])


def unarranged(draft: Draft) -> None:
    after, (spatial, reduction) = draft.axes()
    after.arrange([("block", spatial[:1]), ("loop", reduction)])


def large(draft: Draft) -> None:
    after, (spatial, reduction) = draft.axes()
    after, inner = after.split(spatial[0], [64])
    after.arrange([("block", inner[:1]), ("loop", reduction), ("repeat", [inner[1], spatial[1]])])


def foreign(draft: Draft) -> None:
    draft.value(draft.axes()[1].spatial[0])


@pytest.mark.parametrize(
    ("misuse", "says"),
    [
        (twice, "two samples are called 'a'; accepted: a name for each sample"),
        (split_twice, "axis %i is used up twice"),
        (split_late, "schedule.split after the levels are arranged; accepted: schedule.stage, schedule.mark"),
        (unarranged, "level %j has no role in schedule.arrange"),
        (large, "it takes 2368 accumulators, 1344 too many; accepted: at most 1024"),
        (foreign, "a value was asked for that no sample took"),
        (lambda draft: draft.sample("a", []), "sample 'a' has values of 0 kinds"),
        (lambda draft: draft.sample_tile("a", 1, [3], (4, 5)), "sample 'a' has no factors whose product is"),
        (
            lambda draft: (lambda d, p: d.sample_tile("b", 1, [3], (1, 5), beside=p))(
                *draft.sample_tile("a", 1, [3], (1, 5))
            ),
            "sample 'b': no product lies from 1 to 5; accepted: a support that is not empty",
        ),
        (
            lambda draft: (lambda d, p: d.sample_tile("b", 1, [3], (1, 5), beside=[p]))(*draft.sample("a", ["x"])),
            "'x' is no number; accepted: a sample of numbers",
        ),
    ],
)
def test_what_is_wrong_is_named(misuse: Callable[[Draft], object], says: str) -> None:
    with pytest.raises(TreadleError) as caught:
        misuse(dense())
    assert says in str(caught.value)


def test_several_reductions_have_no_axes() -> None:
    with pytest.raises(TreadleError, match=r"has several reductions, and so no axes; accepted: schedule\.template"):
        Draft(anchor("SFM"), CPU, None).axes()
