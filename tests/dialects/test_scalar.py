"""The scalar dialect: its text, and what it rejects."""

import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import ParseError, VerifyException

from treadle.dialects.location import LocatedParser
from treadle.dialects.registry import treadle_context
from treadle.dialects.scalar import FmodOp, UnsignedConstantOp, is_arithmetic


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


def parse_constant(value: str) -> ModuleOp:
    module = LocatedParser(treadle_context(), f"%c = scalar.constant {value}", "in.mlir").parse_module()
    module.verify()
    return module


@pytest.mark.parametrize("value", ["200 : ui8", "65535 : ui16", "18446744073709551615 : ui64"])
def test_an_unsigned_number_prints_as_it_parses(value: str) -> None:
    (op,) = parse_constant(value).ops
    assert isinstance(op, UnsignedConstantOp) and isinstance(op, arith.ConstantOp) and is_arithmetic(op)
    assert str(op) == f"%c = scalar.constant {value}"


@pytest.mark.parametrize("value", ["3 : i8", "3 : index", "3 : si8", "3.0 : f32", "256 : ui8", "-1 : ui8"])
def test_unsigned_numbers_only(value: str) -> None:
    with pytest.raises((ParseError, VerifyException)):
        parse_constant(value)
