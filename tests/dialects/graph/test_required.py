"""`#graph.required`: its text reads back in one order, and each diagnostic."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from treadle.dialects.graph import GRAPH, RequiredAttr
from treadle.dialects.graph.fused import Constraint, check_required, dimension
from treadle.errors import TreadleError
from treadle.index.expr import Expr, const, floordiv, mod, var
from treadle.ir import parse as parse_module
from treadle.ir import print_text

CONTEXT = Context()
CONTEXT.load_dialect(Builtin)
CONTEXT.load_dialect(GRAPH)
D0, D1 = dimension(0), dimension(1)


def parse(text: str) -> RequiredAttr:
    attribute = Parser(CONTEXT, f"#graph.required<{text}>").parse_attribute()
    assert isinstance(attribute, RequiredAttr)
    return attribute


@pytest.mark.parametrize(
    ("text", "constraints"),
    [
        ("", []),
        ("d0 < 0", [(D0, 0)]),
        ("d0 floordiv 512 < 0, d0 mod 512 < 1", [(D0 // 512, 0), (D0 % 512, 1)]),
        ("d0 * 40 + d1 - 3 < 2", [(D0 * 40 + D1 - 3, 2)]),
        ("0 - d1 - 3 < 0", [(-D1 - 3, 0)]),
        ("(d0 * 40 + d1) floordiv 12 mod 7 * 5 < 0", [((D0 * 40 + D1) // 12 % 7 * 5, 0)]),
        ("d0 * (d1 mod 3) < 0", [(D0 * (D1 % 3), 0)]),
        ("-4 < 0", [(D0 * 0 - 4, 0)]),
    ],
)
def test_text_reads_back(text: str, constraints: list[tuple[Expr, int]]):
    expected = RequiredAttr.of(Constraint(*each) for each in constraints)
    assert parse(text) == expected
    assert parse(str(expected)[len("#graph.required<") : -1]) == expected


def combined(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    """Sums, products, quotients and remainders."""
    divisors = st.integers(1, 12)
    return st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a - b, inner, inner),
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(floordiv, inner, divisors),
        st.builds(mod, inner, divisors),
    )


EXPRESSIONS = st.recursive(st.one_of(st.sampled_from([D0, D1, dimension(2)]), st.integers(-9, 9).map(const)), combined)


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS)
def test_text_of_any_expression_reads_back(e: Expr):
    assert parse(str(Constraint(e, 0))).data == (Constraint(e, 0),)


def test_one_meaning_has_one_text():
    other = parse("d1 < 1, (d0 floordiv 4) floordiv 128 < 0, d0 + d1 - d0 < 1, d1 < 1")
    assert str(other) == "#graph.required<d0 floordiv 512 < 0, d1 < 1>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x < 0", "'x' is no dimension: expected d0, d1, and so on"),
        ("d0 floordiv 0 < 0", "divided by 0"),
        ("d0 mod d1 < 0", "integer"),
        ("d0 < d1", "integer"),
        ("d0 < -1", "Expected integer literal"),
        ("(d0 < 0", r"Expected '\)'"),
        ("d0", "Expected '<'"),
    ],
)
def test_rejected_text(text: str, message: str):
    with pytest.raises(ParseError, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ((Constraint(D0, -1),), "d0 < -1: extents are numbered from 0"),
        ((Constraint(var("x", 0, 3), 0),), "x is no dimension"),
        ((Constraint(D1, 0), Constraint(D0, 0)), "are not sorted"),
        ((Constraint(D0, 0), Constraint(D0, 0)), "are not sorted"),
    ],
)
def test_rejected_constraints(constraints: tuple[Constraint, ...], message: str):
    with pytest.raises(VerifyException, match=message):
        RequiredAttr(constraints)


def test_required_regions_fit_tensors():
    required = parse("d0 < 0, d1 mod 4 < 0")
    check_required([required, parse("")], [2, 0])
    with pytest.raises(VerifyException, match="1 required regions for 2 tensors"):
        check_required([required], [2, 2])
    with pytest.raises(VerifyException, match="constrains d1 of a tensor of rank 1"):
        check_required([required], [1])


GROUP = """
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {{
  %y = graph.fused "copy" {{
    %0 = graph.compute (%i) {{
      %a = graph.at %x[%i] : tensor<8xf32>
      graph.yield %a : f32
    }} : tensor<8xf32>
    graph.yield %0 : tensor<8xf32>
  }} requires {required_regions} : tensor<8xf32>
  func.return %y : tensor<8xf32>
}}
"""
KERNEL = """
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {{
  %y = loop.kernel @k ins(%A = %x : tensor<8xf32>) outs(%C : tensor<8xf32>) requires {required_regions}
      grid(%b in 1) threads(%t in 1) {{
  }}
  func.return %y : tensor<8xf32>
}}
"""


@pytest.mark.parametrize("text", [GROUP, KERNEL])
def test_groups_and_kernels_carry_required_regions(text: str):
    module = parse_module(text.format(required_regions="[#graph.required<d0 < 0>]"))
    again = print_text(module)
    assert "requires [#graph.required<d0 < 0>]" in again
    assert print_text(parse_module(again)) == again


@pytest.mark.parametrize("text", [GROUP, KERNEL])
@pytest.mark.parametrize(
    ("required_regions", "message"),
    [
        ("[]", "0 required regions for 1 tensors"),
        ("[#graph.required<d1 < 0>]", "constrains d1 of a tensor of rank 1"),
        ("[1 : i64]", "expected #graph.required<...>"),
        ("1 : i64", "expected .#graph.required<...>., got 1 : i64"),
    ],
)
def test_required_regions_that_do_not_fit(text: str, required_regions: str, message: str):
    with pytest.raises(TreadleError, match=message):
        parse_module(text.format(required_regions=required_regions))
