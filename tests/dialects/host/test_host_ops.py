"""Every operation of the host dialect: its text reads back, and each diagnostic of its verifier."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from treadle.dialects.effects import buffers_read, buffers_written
from treadle.dialects.host import HOST
from treadle.dialects.registry import treadle_context

ZEROS = "sha256:" + "0" * 64
VALUES = '%A, %B = "test.op"() : () -> (memref<64x8xf32>, memref<64xf32>)\n'


def parse(text: str) -> ModuleOp:
    context = treadle_context()
    context.allow_unregistered = True
    module = Parser(context, text).parse_module()
    module.verify()
    return module


DISPATCH = """
%n, %A = "test.op"() : () -> (memref<i64>, memref<4xf32>)
host.dispatch #schedule.tree<e0 <= 8 ? 0 : 1> (%n : memref<i64>) {
  host.launch @a(%A) : memref<4xf32>
  host.launch @b(%A) : memref<4xf32>
}"""

LOOP = """
%m, %c, %x, %y, %s, %n, %d, %a = "test.op"() : () -> (memref<i64>, memref<i1>, memref<4xf32>, memref<4xf32>,
    memref<4xf32>, memref<i64>, memref<i1>, memref<64xi8>)
host.loop @f while(%m, %c) from(%x) to(%y) spare(%s) reads(%x) rows() counter(%n) again(%d) arena(%a)
    : (memref<i64>, memref<i1>) (memref<4xf32>) (memref<4xf32>) (memref<4xf32>) (memref<4xf32>) () memref<i64>
      (memref<i1>) memref<64xi8>"""
TIMES = """
%x, %n, %r, %a = "test.op"() : () -> (memref<4xf32>, memref<i64>, memref<9x2xf32>, memref<64xi8>)
host.loop @f times 9 : i64 while() from() to() spare() reads(%x) rows(%r) counter(%n) again() arena(%a)
    : () () () () (memref<4xf32>) (memref<9x2xf32>) memref<i64> () memref<64xi8>"""
BRANCH = """
%c, %x, %y, %a = "test.op"() : () -> (memref<i1>, memref<4xf32>, memref<4xf32>, memref<64xi8>)
host.if %c @f @g reads(%x) to(%y) arena(%a) : memref<i1> (memref<4xf32>) (memref<4xf32>) memref<64xi8>"""

GOOD = [
    LOOP,
    TIMES,
    BRANCH,
    DISPATCH,
    DISPATCH.replace("memref<i64>", "memref<1xi64>"),
    "%r = host.buffer input 0 : memref<1x3xf32>",
    "%r = host.buffer output 2 : memref<1x3xf32>",
    "%r = host.buffer arena 4096 : memref<1x3xf32>",
    "%r = host.buffer zeroed 0 : memref<16xi32>",
    f'%r = host.buffer constant #graph.blob<"{ZEROS}", 12> : memref<3xf32>',
    '%r = host.buffer constant #graph.inline<"1.0, nan"> : memref<2xf32>',
    VALUES + "host.launch @k(%A, %B) : memref<64x8xf32>, memref<64xf32>",
    "func.func @main() {\nhost.return\n}",
]


@pytest.mark.parametrize("text", GOOD, ids=lambda text: text.rsplit("host.", 1)[1][:40])
def test_round_trip(text: str) -> None:
    printed = str(parse(text))
    assert str(parse(printed)) == printed
    assert parse(printed).is_structurally_equivalent(parse(text))


def test_every_operation_is_tested() -> None:
    tested = {op.name for text in GOOD for op in parse(text).walk()}
    assert {op.name for op in HOST.operations} <= tested


REJECTED = [
    (LOOP.replace("again(%d)", "again()").replace("(memref<i1>) memref<64xi8>", "() memref<64xi8>"), "expected either"),
    (
        LOOP.replace("@f while", "@f times 3 : i64 while"),
        "expected either a number of times with at most a limit, or two tests",
    ),
    (
        LOOP.replace("spare(%s)", "spare(%x, %s)")
        .replace("(memref<4xf32>) () memref", "(memref<4xf32>) () memref", 1)
        .replace(
            "(memref<4xf32>) (memref<4xf32>) (memref<4xf32>) (memref<4xf32>)",
            "(memref<4xf32>) (memref<4xf32>) (memref<4xf32>, memref<4xf32>) (memref<4xf32>)",
        ),
        "the state's buffers differ",
    ),
    (LOOP.replace("counter(%n)", "counter(%d)").replace("() memref<i64>", "() memref<i1>"), "expected one i64"),
    (BRANCH.replace("memref<i1>", "memref<i64>"), "a condition of type memref<i64>: expected one i1"),
    (DISPATCH.replace("? 0 :", "? 1 :"), "alternative 0 has no leaf: expected leaves 0 to 1"),
    (DISPATCH.replace("memref<i64>", "memref<2xi64>"), "expected one i64 each"),
    (DISPATCH.replace("host.launch @b(%A) : memref<4xf32>", '"test.op"() : () -> ()'), "expected host.launch"),
    (
        "%r = host.buffer heap 0 : memref<3xf32>",
        "unknown kind 'heap': expected input, output, arena, constant or zeroed",
    ),
    ("%r = host.buffer constant 3 : memref<3xf32>", "constant buffer: a constant has a value, the others a number"),
    ('%r = host.buffer input "x" : memref<3xf32>', '"x" should be of base attribute integer'),
    ("%r = host.buffer input 0 : tensor<3xf32>", "expected a memref, got tensor<3xf32>"),
    (
        '%r = "host.buffer"() <{kind = "input"}> : () -> memref<3xf32>',
        "input buffer: a constant has a value, the others a number",
    ),
    (
        '%r = "host.buffer"() <{kind = "constant", position = 1 : i64}> : () -> memref<3xf32>',
        "constant buffer: a constant has a value, the others a number",
    ),
]


@pytest.mark.parametrize(("text", "expected"), REJECTED, ids=[message[:40] for _, message in REJECTED])
def test_rejected(text: str, expected: str) -> None:
    with pytest.raises((ParseError, VerifyException)) as caught:
        parse(text)
    assert expected in str(caught.value)


def test_a_launch_reads_and_writes_its_buffers() -> None:
    launch = next(op for op in parse(VALUES + GOOD[-2].removeprefix(VALUES)).walk() if op.name == "host.launch")
    assert buffers_read(launch) == buffers_written(launch) == set(launch.operands)
