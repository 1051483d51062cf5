"""What branches, predicates, loops and selects in the IR say of an index."""

from __future__ import annotations

import re

import pytest
from xdsl.dialects import test
from xdsl.parser import Parser

from treadle.dialects.registry import treadle_context
from treadle.index.expr import Range
from treadle.index.reader import Bounds, IndexReader, comparisons_around

KERNEL = """loop.func @k(%A : memref<4xf32>) grid(%b in 8) threads(%t in 32) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c5 = arith.constant 5 : index
  %c20 = arith.constant 20 : index
  %c32 = arith.constant 32 : index
  %c100 = arith.constant 100 : index
  %n = "test.op"() : () -> index
  %q = "test.op"() : () -> i1
  %first = arith.muli %b, %c32 : index
  %i = arith.addi %first, %t : index
  %low = arith.cmpi slt, %t, %c5 : index
  %high = arith.cmpi sge, %t, %c20 : index
  {body}
}}"""


def bounds(body: str, enough: Range) -> Range:
    """The range of the index that the last operation of a kernel uses."""
    context = treadle_context()
    context.load_dialect(test.Test)
    text = re.sub(r"USE\((%\w+)\)", r'"test.op"(\1) : (index) -> ()', body)
    module = Parser(context, KERNEL.format(body=text)).parse_module()
    use = [op for op in module.walk() if isinstance(op, test.TestOp) and op.operands][-1]
    reader = IndexReader()
    return Bounds(reader).range(reader.read(use.operands[0]), comparisons_around(reader, use), enough)


CASES: dict[str, tuple[str, Range]] = {
    "no condition": ("USE(%t)", (0, 31)),
    "a branch that is taken": ("scf.if %low { USE(%t) }", (0, 4)),
    "a branch that is not": ("scf.if %low { } else { USE(%t) }", (5, 31)),
    "a conjunction": (
        "%m = arith.cmpi sgt, %t, %c1 : index %both = arith.andi %low, %m : i1 scf.if %both { USE(%t) }", (2, 4),
    ),
    "a conjunction that does not hold": ("%both = arith.andi %low, %q : i1 scf.if %both { } else { USE(%t) }", (0, 31)),
    "a disjunction": ("%one = arith.ori %low, %high : i1 scf.if %one { USE(%t) }", (0, 31)),
    "a disjunction that does not hold": ("%one = arith.ori %low, %high : i1 scf.if %one { } else { USE(%t) }", (5, 19)),
    "branches in branches": ("scf.if %high { scf.if %low { } else { USE(%t) } }", (20, 31)),
    "a condition that is no comparison": ("scf.if %q { USE(%t) }", (0, 31)),
    "a loop up to a minimum": (
        """%rest = arith.subi %c100, %first : index %end = arith.minsi %rest, %c32 : index
        scf.for %k = %c0 to %end step %c1 { %at = arith.addi %first, %k : index USE(%at) }""", (0, 99),
    ),
    "a loop from a maximum": (
        """%from = arith.maxsi %t, %c5 : index
        scf.for %k = %from to %c32 step %c1 { %at = arith.subi %k, %t : index USE(%at) }""", (0, 31),
    ),
    "a loop in steps": (
        """scf.for %k = %c0 to %c100 step %c5 { %more = arith.cmpi slt, %k, %c32 : index scf.if %more { USE(%k) } }""",
        (0, 30),
    ),
    "a distance": (
        """%left = arith.subi %c5, %t : index %right = arith.subi %t, %c5 : index
        %d = arith.maxsi %left, %right : index USE(%d)""", (0, 26),
    ),
    "the nearer of two ends": (
        """%last = arith.constant 31 : index %right = arith.subi %last, %t : index
        %d = arith.minsi %t, %right : index USE(%d)""", (0, 15),
    ),
    "an index that is led back": (
        """%x = arith.subi %t, %c5 : index %neg = arith.cmpi slt, %x, %c0 : index %y = arith.subi %c5, %t : index
        %s = arith.select %neg, %y, %x : index %far = arith.cmpi sge, %s, %c20 : index
        %z = arith.constant 43 : index %back = arith.subi %z, %t : index
        %r = arith.select %far, %back, %s : index USE(%r)""", (0, 19),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bounds(case: str) -> None:
    body, expected = CASES[case]
    lo, hi = expected
    assert lo is not None and hi is not None
    assert bounds(body, expected) == expected
    assert bounds(body, (lo, hi - 1)) == expected, "what is asked for is not what is found"


def test_where_conditions_contradict_each_other_nothing_runs() -> None:
    assert bounds("scf.if %low { scf.if %high { USE(%n) } }", (3, 4)) == (3, 4)
    assert bounds("scf.for %k = %c5 to %c5 step %c1 { USE(%n) }", (3, 4)) == (3, 4)
