"""`#schedule.use`: its text reads back, knobs as Python values, what is rejected."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from treadle.dialects.schedule import SCHEDULE, Choice, UseAttr

CONTEXT = Context()
for dialect in (Builtin, SCHEDULE):
    CONTEXT.load_dialect(dialect)


def parse(text: str) -> UseAttr:
    attribute = Parser(CONTEXT, text).parse_attribute()
    assert isinstance(attribute, UseAttr)
    return attribute


KNOBS: list[tuple[dict[str, Choice], str]] = [
    ({}, '#schedule.use<"t">'),
    ({"rows": 8}, '#schedule.use<"t", {rows = 8}>'),
    ({"rows": -1, "pack": True}, '#schedule.use<"t", {rows = -1, pack = true}>'),
    ({"pack": False}, '#schedule.use<"t", {pack = false}>'),
    ({"order": "n"}, '#schedule.use<"t", {order = "n"}>'),
    ({"order": 'a "quoted" \\ word'}, r'#schedule.use<"t", {order = "a \"quoted\" \\ word"}>'),
    ({"tile": (8, 32), "empty": ()}, '#schedule.use<"t", {tile = [8, 32], empty = []}>'),
]


@pytest.mark.parametrize(("knobs", "text"), KNOBS, ids=[text for _, text in KNOBS])
def test_round_trip(knobs: dict[str, Choice], text: str):
    attribute = UseAttr.get("t", knobs)
    assert str(attribute) == text
    assert parse(text) == attribute
    assert parse(text).knobs() == knobs
    assert [type(v) for v in parse(text).knobs().values()] == [type(v) for v in knobs.values()]


REJECTED = [
    ('#schedule.use<"t", {rows = 1.0}>', "knob 'rows' of template 't'"),
    ('#schedule.use<"t", {rows = 1.0}>', "is no integer, switch, word or list of integers"),
    ('#schedule.use<"t", {rows = [1, "a"]}>', "is no integer, switch, word or list of integers"),
    ('#schedule.use<"t", {rows = [true]}>', "is no integer, switch, word or list of integers"),
    ('#schedule.use<"t", {rows = f32}>', "is no integer, switch, word or list of integers"),
    ('#schedule.use<"t", {rows = 1, rows = 2}>', "knob 'rows' is given twice"),
    ('#schedule.use<"t", {8 = 1}>', "the name of a knob"),
    ("#schedule.use<t>", "string literal expected"),
]


@pytest.mark.parametrize(("text", "message"), REJECTED, ids=[text + message[:9] for text, message in REJECTED])
def test_rejected(text: str, message: str):
    with pytest.raises((ParseError, VerifyException)) as caught:
        parse(text)
    assert message in str(caught.value)


def test_a_name_that_is_no_word_is_rejected():
    with pytest.raises(VerifyException, match="'a b' is no name of a knob"):
        UseAttr.get("t", {"a b": 1})
