"""The scalar dialect: its text, and what it rejects."""

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import ParseError, VerifyException

from treadle.dialects.located_parser import LocatedParser
from treadle.dialects.registry import treadle_context
from treadle.dialects.scalar import FmodOp, is_arithmetic


def parse(types: str) -> ModuleOp:
    text = f'%x, %y = "test.op"() : () -> ({types}, {types})\n%r = scalar.fmod %x, %y : {types}'
    context = treadle_context()
    context.allow_unregistered = True
    module = LocatedParser(context, text, "in.mlir").parse_module()
    module.verify()
    return module


@pytest.mark.parametrize("type", ["f16", "bf16", "f32", "f64", "vector<8xf32>"])
def test_a_remainder_prints_as_it_parses(type: str) -> None:
    (_, op) = parse(type).ops
    assert isinstance(op, FmodOp) and is_arithmetic(op)
    assert str(op) == f"%r = scalar.fmod %x, %y : {type}"


@pytest.mark.parametrize("type", ["i32", "index", "vector<8xi32>"])
def test_floats_only(type: str) -> None:
    with pytest.raises((ParseError, VerifyException)):
        parse(type)
