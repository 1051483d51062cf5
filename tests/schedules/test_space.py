"""Spaces as values, without any IR."""

from __future__ import annotations

import pytest

from treadle.errors import TreadleError
from treadle.schedules.space import Choices, Knob, Space


def _limits(choices: Choices) -> None:
    threads, repeats = choices["threads"], choices["repeats"]
    assert isinstance(threads, int) and isinstance(repeats, int)
    if threads * repeats > 128:
        raise TreadleError(f"{threads * repeats} elements, {threads * repeats - 128} too many", accepted="at most 128")


SPACE = Space(
    "demo",
    (Knob("threads", (32, 64), "threads of a block"), Knob("repeats", (1, 2, 4), "elements of a thread")),
    _limits,
)


def test_a_space_is_the_product_without_what_limits_reject() -> None:
    assert SPACE.combinations == 6
    assert [(c["threads"], c["repeats"]) for c in SPACE] == [(32, 1), (32, 2), (32, 4), (64, 1), (64, 2)]
    assert len(SPACE) == 5 and list(SPACE) == list(SPACE)


def test_what_is_left_out_comes_with_the_margin() -> None:
    ((choices, error),) = SPACE.excluded()
    assert choices == {"threads": 64, "repeats": 4}
    assert str(error) == "256 elements, 128 too many; accepted: at most 128"


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"threads": 32, "repeats": 4}, None),
        ({"threads": 48, "repeats": 1}, "knob 'threads' of template 'demo' is 48; accepted: 32, 64"),
        ({"threads": 32, "repeats": True}, "knob 'repeats' of template 'demo' is True; accepted: 1, 2, 4"),
        ({"threads": 32, "warps": 1}, "template 'demo' has no knob 'warps'; accepted: repeats, threads"),
        ({"threads": 32}, "template 'demo' needs a value for repeats"),
        ({"threads": 64, "repeats": 4}, "256 elements, 128 too many; accepted: at most 128"),
    ],
)
def test_membership_and_its_reason(choices: Choices, reason: str | None) -> None:
    error = SPACE.exclusion(choices)
    assert (None if error is None else str(error)) == reason
    assert (choices in SPACE) == (reason is None)


def _half(choices: Choices) -> int:
    threads = choices["threads"]
    assert isinstance(threads, int)
    return threads // 32


FOLLOWING = SPACE.following({"repeats": _half})


def test_a_knob_that_follows_from_the_others_has_one_value() -> None:
    assert FOLLOWING.combinations == 2
    assert list(FOLLOWING) == [{"threads": 32, "repeats": 1}, {"threads": 64, "repeats": 2}]
    assert {"threads": 64, "repeats": 1} in SPACE and {"threads": 64, "repeats": 1} not in FOLLOWING
    error = FOLLOWING.exclusion({"threads": 64, "repeats": 1})
    assert str(error) == "knob 'repeats' of template 'demo' is 1, which the others decide; accepted: 2"


def test_what_follows_may_exceed_a_limit() -> None:
    following = SPACE.following({"repeats": lambda choices: 4})
    assert [choices["threads"] for choices in following] == [32]
    ((_, error),) = following.excluded()
    assert str(error) == "256 elements, 128 too many; accepted: at most 128"


def test_what_is_no_choice_is_in_no_space() -> None:
    assert 3 not in SPACE


def test_pinned_knobs_have_one_value() -> None:
    assert [c["repeats"] for c in SPACE.pinned(threads=64)] == [1, 2]
    with pytest.raises(TreadleError, match="knob 'threads' of template 'demo' is 48; accepted: 32, 64"):
        SPACE.pinned(threads=48)
