"""Loops of kernels that the interpreter writes round by round: they compute and refuse what loops do."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from treadle.backends.reference.kernels import Kernel
from treadle.dialects.loop import KernelOp, Space, SpaceAttr
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError

X = np.arange(1, 65, dtype=np.float32)


def kernel(body: str, threads: int = 1) -> Kernel:
    """A kernel from %x to %y, 64 float32 each; its loops run over %r of registers and %s of shared memory."""
    text = f"""
func.func @main(%a : tensor<64xf32>) -> tensor<64xf32> {{
  %out = loop.kernel @k ins(%x = %a : tensor<64xf32>) outs(%y : tensor<64xf32>)
      grid(%b in 1) threads(%t in {threads}) {{
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c2 = arith.constant 2 : index
    %c4 = arith.constant 4 : index
    %c16 = arith.constant 16 : index
    %c64 = arith.constant 64 : index
    %zero = arith.constant 0.0 : f32
    {body}
  }}
  func.return %out : tensor<64xf32>
}}"""
    for space in Space:
        text = text.replace(f"#{space}", str(SpaceAttr(space)))
    module = Parser(treadle_context(), text).parse_module()
    assert isinstance(module, ModuleOp)
    module.verify()
    return Kernel(next(op for op in module.walk() if isinstance(op, KernelOp)))


NESTED = """
    scf.for %i = %c0 to %c4 step %c1 {
      %first = arith.muli %i, %c16 : index
      %sum = scf.for %j = %c0 to %c16 step %c2 iter_args(%total = %zero) -> (f32) {
        %at = arith.addi %first, %j : index
        %pair = arith.divui %j, %c2 : index
        %odd = arith.remui %pair, %c2 : index
        %even = arith.cmpi eq, %odd, %c0 : index
        %v = loop.load %x[%at] : memref<64xf32>
        %taken = arith.select %even, %v, %zero : f32
        %next = arith.addf %total, %taken : f32
        scf.yield %next : f32
      }
      scf.for %j = %c0 to %c16 step %c1 {
        %at = arith.addi %first, %j : index
        loop.store %sum, %y[%at] : memref<64xf32>
      }
    }"""


@pytest.mark.parametrize(("rounds", "loops"), [("%c4", 2), ("%c0", 1)])
def test_short_loops_have_no_counter_and_long_ones_keep_it(rounds: str, loops: int) -> None:
    """The outer loop's rounds are too long together; without any, it is none."""
    made = kernel(NESTED.replace("%i = %c0 to %c4", f"%i = %c0 to {rounds}", 1))
    assert made.source.text.count("for ") == loops - 1
    if rounds == "%c4":
        expected = X.reshape(4, 4, 2, 2)[:, :, 0, 0].sum(axis=1, dtype=np.float32)
        np.testing.assert_array_equal(made.run([X]), np.repeat(expected, 16))


def test_a_task_of_one_worker_is_written_task_by_task() -> None:
    made = kernel(
        """
    task.for (%i, %j) in #task.map<repeat(2, 2) * repeat(1, 1)> {
      %two = arith.muli %i, %c2 : index
      %row = arith.addi %two, %j : index
      %first = arith.muli %row, %c16 : index
      %at = arith.addi %first, %t : index
      %v = loop.load %x[%at] : memref<64xf32>
      loop.store %v, %y[%at] : memref<64xf32>
    }""",
        threads=16,
    )
    assert "for " not in made.source.text
    np.testing.assert_array_equal(made.run([X]), X)


COPY = "%v = loop.load %x[%at] : memref<64xf32>\n loop.store %v, %y[%at] : memref<64xf32>"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (f"%n = arith.muli %i, %c16 : index\n %at = arith.addi %n, %c16 : index\n {COPY}", r"loop.load .* at \[64\]"),
        (f"%at = arith.subi %i, %c1 : index\n {COPY}", r"loop.load of %x: memref<64xf32> at \[-1\]; accepted: indices"),
        (f"%at = arith.divui %c4, %i : index\n {COPY}", "a division of indices by zero"),
        (
            "%r = loop.alloc : memref<4xf32, #register>\n %v = loop.load %r[%i] : memref<4xf32, #register>",
            r"loop.load of %r: .* at \[0\] reads what nobody has stored",
        ),
        ("loop.store %zero, %y[%i] : memref<64xf32>", r"element \[4\] of the result is never stored"),
    ],
)
def test_what_is_undefined_in_a_round_is_refused(body: str, reason: str) -> None:
    made = kernel(f"scf.for %i = %c0 to %c4 step %c1 {{\n {body}\n }}")
    assert "for " not in made.source.text
    with pytest.raises(TreadleError, match=reason):
        made.run([X])


def test_a_branch_that_is_not_taken_is_not_run() -> None:
    """Its access lies outside of the buffer."""
    made = kernel("""
    scf.for %i = %c0 to %c64 step %c1 {
      %inside = arith.cmpi ult, %i, %c64 : index
      %first = arith.cmpi slt, %i, %c0 : index
      scf.if %first {
        %n = arith.addi %i, %c64 : index
        loop.store %zero, %y[%n] : memref<64xf32>
      }
      %v = loop.load %x[%i] where %inside else %zero : memref<64xf32>
      loop.store %v, %y[%i] : memref<64xf32>
    }""")
    np.testing.assert_array_equal(made.run([X]), X)


def test_rounds_of_a_loop_meet_at_one_barrier_and_share_one_buffer() -> None:
    made = kernel(
        """
    scf.for %i = %c0 to %c4 step %c1 {
      %s = loop.alloc : memref<16xf32, #shared>
      %first = arith.muli %i, %c16 : index
      %at = arith.addi %first, %t : index
      %v = loop.load %x[%at] : memref<64xf32>
      loop.store %v, %s[%t] : memref<16xf32, #shared>
      loop.barrier
      %n = arith.addi %t, %c1 : index
      %next = arith.remui %n, %c16 : index
      %w = loop.load %s[%next] : memref<16xf32, #shared>
      loop.store %w, %y[%at] : memref<64xf32>
      loop.barrier
    }""",
        threads=16,
    )
    assert made.source.text.count("for ") == 1
    np.testing.assert_array_equal(made.run([X]), np.roll(X.reshape(4, 16), -1, axis=1).reshape(64))
