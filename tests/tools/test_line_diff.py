"""Blocks of two texts: they cover both, equal ones are equal, and numbers of values alone make no difference."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from treadle import ir
from treadle.tools.explore_record import indexed
from treadle.tools.line_diff import Block, Lines, difference


def of_ir(text: str) -> Lines:
    found = indexed(ir.parse(text))
    return Lines(found.text.splitlines(), found.lines)


def changed(before: Lines, after: Lines) -> tuple[list[str], list[str]]:
    """The lines that were removed, and those that were added."""
    blocks = [each for each in difference(before, after) if not each.equal]
    removed = [line.strip() for each in blocks for line in before.lines[each.before : each.before_end]]
    return removed, [line.strip() for each in blocks for line in after.lines[each.after : each.after_end]]


def function(*lines: str) -> str:
    body = "\n".join(lines)
    return f"func.func @f(%a: f32, %b: f32) -> f32 {{\n{body}\n}}"


def test_renumbered_values_are_equal() -> None:
    before = of_ir(function("%0 = arith.addf %a, %b : f32", "%1 = arith.mulf %0, %a : f32", "func.return %1 : f32"))
    after = of_ir(
        function(
            "%0 = arith.subf %a, %b : f32", "%1 = arith.addf %a, %b : f32", "%2 = arith.mulf %1, %a : f32",
            "func.return %2 : f32",
        )
    )  # fmt: skip
    assert changed(before, after) == ([], ["%0 = arith.subf %a, %b : f32"])
    assert changed(after, before) == (["%0 = arith.subf %a, %b : f32"], [])


def test_another_operand_is_a_change() -> None:
    """Without numbers the lines are the same ones."""
    lines = ["%0 = arith.addf %a, %b : f32", "%1 = arith.mulf %a, %b : f32", "%2 = arith.subf %0, %1 : f32"]
    before = of_ir(function(*lines, "func.return %2 : f32"))
    after = of_ir(function(*lines[:2], "%2 = arith.subf %1, %0 : f32", "func.return %2 : f32"))
    assert changed(before, after) == (["%2 = arith.subf %0, %1 : f32"], ["%2 = arith.subf %1, %0 : f32"])


def test_users_of_a_changed_definition_are_equal() -> None:
    rest = ["%1 = arith.mulf %0, %b : f32", "func.return %1 : f32"]
    before, after = (of_ir(function(f"%0 = arith.{kind} %a, %b : f32", *rest)) for kind in ("addf", "subf"))
    assert changed(before, after) == (["%0 = arith.addf %a, %b : f32"], ["%0 = arith.subf %a, %b : f32"])


def test_indentation_is_no_change() -> None:
    assert changed(Lines(["a", "b"]), Lines(["{", "  a", "  b", "}"])) == ([], ["{", "}"])


def test_numbers_in_quotes_are_no_values() -> None:
    names = [f'func.func @f() attributes {{name = "%{n}"}} {{\nfunc.return\n}}' for n in (1, 2)]
    removed, added = changed(*map(of_ir, names))
    assert len(removed) == len(added) == 1


def check(before: Sequence[str], after: Sequence[str], blocks: Sequence[Block]) -> None:
    a = b = 0
    for each in blocks:
        assert (each.before, each.after) == (a, b)
        a, b = each.before_end, each.after_end
        if each.equal:
            assert before[each.before : a] == after[each.after : b]
    assert (a, b) == (len(before), len(after))
    assert all(one.equal != other.equal for one, other in pairwise(blocks))


@pytest.mark.parametrize("seed", range(30))
def test_blocks_cover_both_texts(seed: int) -> None:
    """Few different lines give many that occur often, which have no anchors."""
    draw = random.Random(seed)
    before = [draw.choice("abcdefgh"[: 2 + seed % 7]) for _ in range(draw.randrange(60))]
    after = [line for line in before if draw.random() < 0.8]
    for _ in range(draw.randrange(6)):
        after.insert(draw.randint(0, len(after)), draw.choice("abxyz"))
    blocks = difference(Lines(before), Lines(after))
    check(before, after, blocks)
    check(after, before, difference(Lines(after), Lines(before)))
    assert all(each.equal for each in difference(Lines(before), Lines(before)))


def test_a_moved_part_keeps_the_longer_side() -> None:
    part, rest = [f"p{n}" for n in range(5)], [f"r{n}" for n in range(20)]
    blocks = difference(Lines(part + rest), Lines(rest + part))
    assert sum(each.removed for each in blocks) == sum(each.added for each in blocks) == len(part)
