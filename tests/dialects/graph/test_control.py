"""Loops and branches of functions: their text reads back, each diagnostic, and what they give."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.utils.exceptions import ParseError, VerifyException

from tests.dialects.graph.operator_texts import CONTROL, parse
from treadle import ir
from treadle.errors import TreadleError


def test_round_trip() -> None:
    printed = str(parse(CONTROL))
    assert str(parse(printed)) == printed
    assert parse(printed).is_structurally_equivalent(parse(CONTROL))


@pytest.mark.parametrize(("m", "c"), [(2, True), (0, True), (2, False)])
def test_values(m: int, c: bool) -> None:
    x = np.arange(4, dtype=np.float32)
    y, rows = ir.evaluate(parse(CONTROL), [x, np.array(m), np.array(c)])
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(rows, [0, 1, 2])


REJECTED = [
    ("@row times 3", "@row times 4", "rows of type tensor<3xi64>: expected 4 of them"),
    ("@row times 3", "@row times 0", "`times 0`: expected 1 or more"),
    ("@step while", "@nothing while", "there is no function @nothing"),
    ("@step while", "@then while", "@then has the type (tensor<4xf32>) -> tensor<4xf32>: expected (tensor<i64>,"),
    ("%c @then @then", "%c @then @row", "@row has the type"),
    (
        "-> (tensor<4xf32>, tensor<3xi64>)\n  %v", "-> (tensor<4xf32>, tensor<2xi64>)\n  %v",
        "operand is used with type tensor<3xi64>",
    ),
    ("(%x) reads (%x)\n", "(%m) reads (%x)\n", "operand is used with type tensor<4xf32>"),
    ("(%m, %c) carries", "(%m) carries", "expected"),
    ("(%z) : (tensor<i1>, tensor<4xf32>) -> tensor<4xf32>", "(%z) : tensor<4xf32>", "Expected '('"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), REJECTED, ids=[new[:30] for _, new, _ in REJECTED])
def test_rejected(old: str, new: str, expected: str) -> None:
    assert old in CONTROL
    with pytest.raises((ParseError, VerifyException)) as caught:
        parse(CONTROL.replace(old, new))
    assert expected in str(caught.value) or "operands" in str(caught.value)


def test_tests_and_conditions_of_other_types_are_rejected() -> None:
    text = CONTROL.replace("%m: tensor<i64>", "%m: tensor<1xi64>").replace(
        ": (tensor<i64>, tens", ": (tensor<1xi64>, tens"
    )
    with pytest.raises(VerifyException, match="tests of types tensor<1xi64>, tensor<i1>: expected tensor<i64>"):
        parse(text)
    text = CONTROL.replace("%c @then @then (%z) : (tensor<i1>", "%m @then @then (%z) : (tensor<i64>")
    with pytest.raises(VerifyException, match="a condition of type tensor<i64>: expected tensor<i1>"):
        parse(text)
    text = """
    func.func @main(%x: tensor<i64>, %c: tensor<i1>) -> tensor<i64> {
      %y, %r = graph.loop @f while (%x, %c) carries (%x) reads () : (tensor<i64>, tensor<i1>, tensor<i64>)
          -> (tensor<i64>, tensor<3xi64>)
      func.return %y : tensor<i64>
    }"""
    with pytest.raises(VerifyException, match="a result tensor<3xi64> beside what is carried: expected `times`"):
        parse(text)


def test_functions_that_call_themselves_are_refused() -> None:
    text = """
    func.func private @f(%c: tensor<i1>) -> tensor<i1> {
      %y = graph.if %c @f @f (%c) : (tensor<i1>, tensor<i1>) -> tensor<i1>
      func.return %y : tensor<i1>
    }
    func.func @main(%c: tensor<i1>) -> tensor<i1> {
      %y = graph.if %c @f @f (%c) : (tensor<i1>, tensor<i1>) -> tensor<i1>
      func.return %y : tensor<i1>
    }"""
    with pytest.raises(TreadleError, match="@f calls itself; accepted: functions that call others only"):
        ir.check(parse(text))
