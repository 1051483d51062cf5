"""Unknown functions of indices: they depend on all of them, and are affine in none."""

from __future__ import annotations

import pytest

from treadle.index.algebra import depends_on, function_of, stride_along
from treadle.index.expr import Expr, const, var

ROW, COLUMN = var("i", 0, 31), var("j", 0, 7)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param([ROW], id="one"),
        pytest.param([ROW, -ROW], id="a sum of 0: the absolute value"),
        pytest.param([ROW - 3, 3 - ROW], id="about a centre"),
        pytest.param([ROW * 2, const(63)], id="an even stride"),
        pytest.param([ROW * 2 + COLUMN * 4, COLUMN], id="two variables"),
        pytest.param([ROW // 4 - ROW // 4 * 2, ROW % 4], id="digits"),
    ],
)
def test_a_function_is_affine_in_nothing_that_it_is_of(arguments: list[Expr]) -> None:
    result = function_of("f", arguments)
    assert depends_on(result, "i") and stride_along(result, "i") is None
    assert depends_on(result, "j") == any(depends_on(a, "j") for a in arguments)


def test_a_function_of_constants_is_a_variable() -> None:
    assert function_of("f", [const(3)]) == var("f", None, None)
