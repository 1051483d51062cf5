"""task.for in the IR: its syntax round-trips, its verifier proves the mapping."""

from __future__ import annotations

import io

import pytest
from xdsl.context import Context
from xdsl.dialects import test
from xdsl.dialects.arith import Arith
from xdsl.dialects.builtin import Builtin, IndexType, ModuleOp
from xdsl.dialects.func import Func
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError, VerifyException

from treadle.dialects.location import LocatedParser
from treadle.dialects.task import ForOp, Mapping, Task, YieldOp, custom, repeat, spatial


def context() -> Context:
    ctx = Context()
    for dialect in (Builtin, Arith, Func, test.Test, Task):
        ctx.load_dialect(dialect)
    return ctx


def parse(text: str) -> ModuleOp:
    return Parser(context(), text, "input.mlir").parse_module()


ROUND_TRIPS = [
    """task.for (%i, %k) in #task.map<repeat(4, 1) * spatial(16, 8)>(%t) {
  "test.op"(%i, %k) : (index, index) -> ()
}""",
    """task.for (%i) in #task.map<repeat(4)> unroll {
  "test.op"(%i) : (index) -> ()
}""",
    """task.for (%i) in #task.map<spatial(4) * replicate(2)>(%t) {
} {note = "kept"}""",
    """task.for (%i, %j) in #task.map<spatial(2, 4, order = (1, 0))>(%t) {
  task.for (%a) in #task.map<repeat(2)> {
    "test.op"(%a, %j) : (index, index) -> ()
  }
}""",
    """task.for (%i, %j) in #task.map<custom(4, 4, workers = 4, steps = 4, map = (s, (w + s) mod 4))>(%t) {
}""",
]


@pytest.mark.parametrize("body", ROUND_TRIPS)
def test_round_trip(body: str) -> None:
    indented = "\n".join("  " + line for line in body.splitlines())
    text = f'builtin.module {{\n  %t = "test.op"() : () -> index\n{indented}\n}}'
    module = parse(text)
    module.verify()
    assert str(module) == text
    generic = io.StringIO()
    Printer(stream=generic, print_generic_format=True).print_op(module)
    assert str(parse(generic.getvalue())) == text


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        ("(%i) in #task.map<repeat(4, 1)>(%t)", "1 coordinates for repeat(4, 1), whose tasks have 2"),
        (
            "(%i) in #task.map<spatial(8)>",
            "no worker for spatial(8); accepted: an index in [0, 8) as operand",
        ),
        (
            "(%i) in #task.map<custom(4, workers = 2, map = (w))>(%t)",
            "is no exact cover: task (2,) is missed",
        ),
        (
            "(%i) in #task.map<custom(2, workers = 4, map = (w mod 2))>(%t)",
            "is no exact cover: task (0,) is done twice, by workers 0 and 2",
        ),
        ("(%i) in #task.map<repeat(4) * rotate(2)>(%t)", "has 'rotate'; accepted: repeat, spatial"),
        ("(%i) in #task.map<repeat(0)>(%t)", "repeat(0); accepted: one or more positive sizes"),
        ("(%i) in #task.map<replicate(2)>(%t)", "replicate(2) has no tasks"),
        ("(%i) in 4(%t)", "expected #task.map<...>, got 4 : i64"),
    ],
)
def test_errors_are_located(loop: str, message: str) -> None:
    text = f'%t = "test.op"() : () -> index\ntask.for {loop} {{\n}}'
    with pytest.raises((ParseError, VerifyException)) as caught:
        LocatedParser(context(), text, "input.mlir").parse_module().verify()
    assert message in str(caught.value)
    assert "input.mlir:2:" in str(caught.value).replace('"', "")


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (custom((4,), 2, lambda w, s: (w,)), "task (2,) is missed"),
        (custom((4,), 8, lambda w, s: (w // 2,)), "task (0,) is done twice, by workers 0 and 1"),
    ],
)
def test_verifier_names_the_task(mapping: Mapping, message: str) -> None:
    worker = test.TestOp(result_types=[IndexType()])
    loop = ForOp(mapping, worker)
    loop.body.block.add_op(YieldOp())
    with pytest.raises(VerifyException) as caught:
        loop.verify()
    assert message in str(caught.value)


def test_verifier_counts_coordinates() -> None:
    worker = test.TestOp(result_types=[IndexType()])
    loop = ForOp(spatial(2, 2), worker, ForOp(repeat(2)).detach_region(0))
    loop.body.block.add_op(YieldOp())
    with pytest.raises(VerifyException, match="accepted: 2 coordinates"):
        loop.verify()
