"""What indices reach, and whether 32 bits hold it."""

from __future__ import annotations

import pytest
from xdsl.dialects import test
from xdsl.parser import Parser
from xdsl.rewriter import InsertPoint

from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Range, var
from treadle.index.reader import index_bits, index_reach

KERNEL = """loop.func @k(%A : memref<4xf32>) grid(%b in {grid}) threads(%t in 1024) {{
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %many = arith.constant {many} : index
  {body}
}}"""
M = 1 << 20
CARRIED = """%n = scf.for %i = %zero to %many step %one iter_args(%c = %zero) -> (index) {
  %m = scf.for %j = %zero to %many step %one iter_args(%d = %c) -> (index) {
    %sum = arith.addi %d, %t : index
    %rest = arith.remui %sum, %many : index
    scf.yield %rest : index
  }
  scf.yield %m : index
}
%last = arith.addi %n, %one : index"""


def kernel(body: str, grid: int = 1, many: int = 7) -> FuncOp:
    context = treadle_context()
    context.load_dialect(test.Test)
    module = Parser(context, KERNEL.format(body=body, grid=grid, many=many)).parse_module()
    return next(op for op in module.walk() if isinstance(op, FuncOp))


@pytest.mark.parametrize(
    ("body", "grid", "many", "expected"),
    [
        pytest.param("", 5, 7, (0, 1023), id="ids and constants"),
        pytest.param("%p = arith.muli %b, %many : index", 4 * M, M, (0, (4 * M - 1) * M), id="a product"),
        pytest.param(
            "%p = arith.muli %b, %many : index\n%q = arith.divui %p, %many : index",
            4 * M, M, (0, (4 * M - 1) * M), id="a product that is divided again",
        ),
        pytest.param("%p = arith.subi %t, %many : index", 1, 3 * M, (-3 * M, 3 * M), id="a difference"),
        pytest.param(
            "scf.for %i = %zero to %many step %b {}", 5 * M, 4 * M, (0, 9 * M - 2), id="a variable after its loop"
        ),
        pytest.param("%B = loop.alloc : memref<30x200xf32, #loop.space<shared>>", 1, 7, (0, 6000), id="a local buffer"),
        pytest.param('%n = "test.op"() : () -> index', 1, 7, (None, None), id="a value that nobody knows"),
        pytest.param("%n = arith.index_cast %one : index to i64\n%m = arith.index_cast %n : i64 to index", 1, 7,
                     (-(1 << 63), (1 << 63) - 1), id="a cast of 64 bits"),
        pytest.param(CARRIED, 1, 7, (0, 1029), id="a remainder that loops carry"),
        pytest.param(
            "%n = scf.for %i = %zero to %many step %one iter_args(%c = %zero) -> (index) {\n"
            "%m = arith.addi %c, %one : index\nscf.yield %m : index\n}",
            1, 7, (None, None), id="a sum that a loop carries",
        ),
        pytest.param("%n = arith.xori %t, %many : index", 1, 2000, (0, 2047), id="an exclusive or"),
    ],
)  # fmt: skip
def test_reach(body: str, grid: int, many: int, expected: Range) -> None:
    assert index_reach(kernel(body, grid, many)) == expected


@pytest.mark.parametrize(("blocks", "expected"), [(2048 * M // 1024, 32), (2048 * M // 1024 + 1, 64)])
def test_the_last_index_that_is_narrow(blocks: int, expected: int) -> None:
    """2**31 - 1 is the last thread of the last block."""
    body = "%first = arith.muli %b, %many : index\n%i = arith.addi %first, %t : index"
    assert index_bits(kernel(body, blocks, 1024), "@k") == expected


def test_what_nobody_knows_is_wide() -> None:
    assert index_bits(kernel('%n = "test.op"() : () -> index'), "@k") == 64


def test_an_index_beyond_64_bits_is_rejected() -> None:
    body = "%p = arith.muli %b, %many : index\n%s = arith.muli %p, %many : index"
    with pytest.raises(TreadleError, match=r"@k: an index reaches 0 to \d+; accepted: tensors whose"):
        index_bits(kernel(body, 1 << 30, 1 << 30), "@k")


def test_what_the_emitter_shifts_a_dividend_by_counts() -> None:
    """A dividend that may be negative is written with a multiple of its divisor added."""
    func, step, divisor = kernel(""), 2 * M - 1, 3 * M + 1
    dividend = var(func.thread_id, 0, 1023) * step - 5
    assert dividend.range() == (-5, 1023 * step - 5) and 1023 * step < 1 << 31
    IndexEmitter(InsertPoint.at_end(func.body.block)).emit(dividend // divisor)
    assert index_reach(func) == (-1, 1023 * step - 5 + divisor)
    assert index_bits(func, "@k") == 64
