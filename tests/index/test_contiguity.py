"""Runs and agreement, against every value of small loops."""

from __future__ import annotations

import operator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdsl.dialects import scf, test
from xdsl.ir import Operation
from xdsl.parser import Parser

from treadle.dialects.registry import treadle_context
from treadle.index.algebra import Comparison, stride_along
from treadle.index.contiguity import (
    LANE,
    Lanes,
    agree,
    in_lanes,
    is_run,
    merged_dimensions,
    moves_as_vectors,
    varies,
    widest,
)
from treadle.index.expr import Expr, const, var
from treadle.index.reader import IndexReader

BASE = var("base", 0, 5)
COMPARE = {
    "slt": operator.lt, "sle": operator.le, "sgt": operator.gt,
    "sge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip


def test_dimensions_that_one_variable_moves_along_are_one() -> None:
    i, j = var("i", 0, 99), var("j", 0, 3)
    digits = [i // 12 % 4, i // 4 % 3, i % 4]
    assert merged_dimensions([4, 3, 4], digits, ["i"]) == ([48], [i % 48])
    assert merged_dimensions([9, 12, 4], [i // 12, i % 12, j], ["i", "j"]) == ([108, 4], [i, j])
    # Beyond the end of the second dimension the next row would begin.
    for places in ([i // 12, i % 16], [i, i], [i, j]):
        assert merged_dimensions([9, 12], places, ["i"]) == ([9, 12], places)


def addresses(extent: int) -> list[Expr]:
    i = var("i", 0, extent - 1)
    return [
        i,
        i + 4,
        i + 3,
        2 * i,
        i * 0 + 5,
        BASE * 8 + i,
        BASE * 6 + i,
        i // 4,
        i % 4,
        i % 3,
        (i + BASE * 4) % 8,
        11 - i,
    ]


def vectors(e: Expr, extent: int, lanes: int) -> list[list[int]]:
    """The values that each vector takes, for each value of the base."""
    return [
        [e.evaluate({"base": base, "i": start + lane}) for lane in range(lanes)]
        for base in range(6)
        for start in range(0, extent, lanes)
    ]


CASES = [
    (e, extent, lanes) for extent in (4, 8, 24) for e in addresses(extent) for lanes in (2, 4) if extent % lanes == 0
]


@pytest.mark.parametrize(("e", "extent", "lanes"), CASES, ids=str)
def test_what_counts_as_a_run_is_one(e: Expr, extent: int, lanes: int) -> None:
    taken = vectors(e, extent, lanes)
    in_vectors = e.substitute({"i": in_lanes(extent, lanes)})
    truly = all(v == list(range(v[0], v[0] + lanes)) and v[0] % lanes == 0 for v in taken)
    assert is_run(in_vectors, lanes) <= truly
    if not varies(in_vectors):
        assert all(len(set(v)) == 1 for v in taken)
    stride = stride_along(in_vectors, LANE)
    if stride is not None:
        assert all(b - a == stride for v in taken for a, b in pairwise(v))


BODY = """loop.func @k(%A : memref<4xf32>) grid(%b in 8) threads(%t in 32) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c8 = arith.constant 8 : index
  %outside = arith.minsi %t, %c3 : index
  scf.for %i = %c0 to %c8 step %c1 {{
    {body}
  }}
}}"""


def lanes_of(body: str) -> tuple[Lanes, Operation]:
    """Four lanes of a loop, and the last operation of its body but the end."""
    context = treadle_context()
    context.load_dialect(test.Test)
    module = Parser(context, BODY.format(body=body)).parse_module()
    loop = next(op for op in module.walk() if isinstance(op, scf.ForOp))
    return Lanes(IndexReader(), loop.body.block.args[0], 8, 4), list(loop.body.block.ops)[-2]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param('"test.op"(%outside, %i) : (index, index) -> ()', True, id="a row from outside"),
        pytest.param('"test.op"(%b, %i) : (index, index) -> ()', True, id="a row of the block"),
        pytest.param(
            '%m = arith.minsi %b, %c3 : index "test.op"(%m, %i) : (index, index) -> ()', True,
            id="a row that the loop computes and does not change",
        ),
        pytest.param(
            '%m = arith.minsi %i, %c3 : index "test.op"(%m, %i) : (index, index) -> ()', False, id="a clamped row",
        ),
        pytest.param(
            '%d = arith.muli %i, %c3 : index %m = arith.minsi %d, %c3 : index %n = arith.addi %m, %b : index '
            '"test.op"(%n, %i) : (index, index) -> ()', False, id="a row that is computed from a clamped one",
        ),
        pytest.param(
            '%m = arith.minsi %i, %c3 : index %n = arith.muli %m, %c8 : index %k = arith.addi %n, %i : index '
            '"test.op"(%b, %k) : (index, index) -> ()', False, id="a column beside a clamped one",
        ),
        pytest.param(
            '%m = scf.for %j = %c0 to %i step %c1 iter_args(%a = %c0) -> (index) { scf.yield %j : index } '
            '"test.op"(%m, %i) : (index, index) -> ()', False, id="what a loop inside gives",
        ),
    ],
)  # fmt: skip
def test_lanes_of_a_row(body: str, expected: bool) -> None:
    lanes, access = lanes_of(body)
    assert lanes.is_run(access.operands) is expected


@pytest.mark.parametrize(("side", "expected"), [("%outside", True), ("%m", False), ("%i", False), ("%b", True)])
def test_lanes_agree_on_a_predicate_unless_it_differs(side: str, expected: bool) -> None:
    lanes, compare = lanes_of(f"%m = arith.minsi %i, %c3 : index %p = arith.cmpi slt, {side}, %c3 : index")
    assert lanes.agree(compare.results[0], lambda _: True) is expected


@pytest.mark.parametrize(("e", "expected"), [(BASE * 8 + var("i", 0, 7), True), (BASE * 6 + var("i", 0, 7), False)])
def test_a_run_begins_at_a_multiple_of_the_lanes(e: Expr, expected: bool) -> None:
    assert is_run(e.substitute({"i": in_lanes(8, 4)}), 4) is expected


@given(
    st.sampled_from(list(COMPARE)),
    st.sampled_from(range(len(addresses(24)))),
    st.integers(-3, 30),
    st.sampled_from((2, 4)),
)
def test_lanes_agree_only_where_they_do(kind: str, which: int, limit: int, lanes: int) -> None:
    e = addresses(24)[which] - limit
    if agree(Comparison(kind, e.substitute({"i": in_lanes(24, lanes)})), lanes):
        assert all(len({COMPARE[kind](value, 0) for value in v}) == 1 for v in vectors(e, 24, lanes))


@pytest.mark.parametrize("kind", ["slt", "sge"])
@pytest.mark.parametrize(("limit", "expected"), [(8, True), (7, False)])
def test_lanes_agree_on_a_limit_between_vectors(kind: str, limit: int, expected: bool) -> None:
    i = in_lanes(24, 4)
    assert agree(Comparison(kind, i - limit), 4) is expected
    inclusive = {"slt": "sle", "sge": "sgt"}[kind]
    assert agree(Comparison(inclusive, i - (limit - 1)), 4) is expected


def test_vectors_may_share_an_element_but_not_scatter() -> None:
    i = in_lanes(24, 4)
    assert moves_as_vectors([i, i // 4, const(3)], [Comparison("slt", i - 8)], 4)
    assert not moves_as_vectors([i * 2], [], 4)
    assert not moves_as_vectors([i], [Comparison("slt", i - 7)], 4)


def test_widest_is_a_power_of_two_up_to_the_most() -> None:
    assert widest(16, lambda n: n <= 4) == 4
    assert widest(3, lambda n: True) == 2
    assert widest(8, lambda n: False) == 1
