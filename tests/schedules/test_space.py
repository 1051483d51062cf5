"""Spaces as values, without any IR."""

from __future__ import annotations

import pytest

from treadle.dialects.schedule import Choice
from treadle.errors import TreadleError
from treadle.schedules.template import Choices, Knob, Space, values_text


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
        ({"threads": 32, "repeats": True}, "knob 'repeats' of template 'demo' is true; accepted: 1, 2, 4"),
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


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((True, False), "true, false"),
        (((4, 8), (8, 4)), "[4, 8], [8, 4]"),
        (("n", "k"), '"n", "k"'),
        ((1, 2, 3, 4), "1, 2, 3, 4"),
        (tuple(range(1, 1025)), "1 to 1024"),
        (tuple(2**n for n in range(17)), "powers of 2 from 1 to 65536"),
        (tuple(6 * 2**n for n in range(9)), "6, 12, 24, 48, 96, 192, 384, 768, 1536"),
        (tuple(n**2 for n in range(9)), "0, 1, 4, 9, 16, 25, 36, 49, 64"),
    ],
)
def test_values_are_said_as_ir_spells_them(values: tuple[Choice, ...], text: str) -> None:
    assert values_text(values) == text


def test_errors_about_decisions_speak_as_ir_does() -> None:
    space = Space(
        "demo", (Knob("pack", (True, False), "a switch"), Knob("tile", ((4, 8), (8, 4)), "a list")), lambda _: None
    )
    wrong = {"pack": 1, "tile": (4, 8)}, {"pack": True, "tile": (8, 8)}
    assert [str(space.exclusion(choices)) for choices in wrong] == [
        "knob 'pack' of template 'demo' is 1; accepted: true, false",
        "knob 'tile' of template 'demo' is [8, 8]; accepted: [4, 8], [8, 4]",
    ]
    following = space.following({"pack": lambda choices: choices["tile"] == (4, 8)})
    error = following.exclusion({"pack": True, "tile": (8, 4)})
    assert str(error) == "knob 'pack' of template 'demo' is true, which the others decide; accepted: false"
