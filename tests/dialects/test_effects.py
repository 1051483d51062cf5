"""What operations do to memory: every operation says so, and every question about it is answered from that."""

from __future__ import annotations

import pytest
from xdsl.dialects import arith, math, memref
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Dialect, Operation
from xdsl.parser import Parser
from xdsl.traits import IsTerminator, MemoryEffect

from treadle.dialects import cuda, loop, task
from treadle.dialects.effects import (
    UNDECLARED,
    Convergent,
    OrdersMemory,
    accesses,
    accesses_are_known,
    buffers_read,
    buffers_written,
    is_allocation,
    is_load,
    is_pure,
    may_write,
    only_computes,
)
from treadle.dialects.registry import treadle_context

KERNEL = """
loop.func @k(%A: memref<64xf32>, %C: memref<64xf32>, %D: memref<64xi32>) grid(%b in 2) threads(%t in 32) {
  %zero = arith.constant 0 : index
  %seven = arith.constant 7 : index
  %n = arith.constant 7 : i32
  BODY
}
"""


def op(body: str) -> Operation:
    """The first operation of a kernel's body that is not one of its constants."""
    module = Parser(treadle_context(), KERNEL.replace("BODY", body)).parse_module()
    assert isinstance(module, ModuleOp)
    kernel = next(inner for inner in module.walk() if isinstance(inner, loop.FuncOp))
    return list(kernel.body.block.ops)[3]


def test_every_operation_of_a_kernel_says_what_it_does() -> None:
    """One that says nothing could never be moved or dropped, and nothing could move across it."""
    scopes = {"loop.kernel", "loop.func", "cuda.kernel"}
    own = [o for d in (loop.LOOP, cuda.CUDA, task.Task) for o in d.operations if o.name not in scopes]
    silent = [o.name for o in own if not any(isinstance(t, MemoryEffect | IsTerminator) for t in o.traits.traits)]
    assert not silent


@pytest.mark.parametrize(
    ("body", "answers"),
    [
        ("%x = arith.extsi %n : i32 to i64", {is_pure, only_computes}),
        ("%x = arith.divsi %n, %n : i32", {is_pure, only_computes}),
        ("%x = arith.divui %t, %seven : index", {is_pure, only_computes}),
        ("%x = arith.remui %t, %zero : index", {only_computes}),
        ("%x = arith.floordivsi %t, %b : index", {only_computes}),
        ("%x = loop.load %A[%t] : memref<64xf32>", {is_load}),
        ("%x = vector.load %A[%t] : memref<64xf32>, vector<4xf32>", {is_load}),
        ("%x = loop.alloc : memref<4xf32, #loop.space<register>>", {is_allocation}),
        ("%x = loop.warp_reduce add %n over 32 : i32", set()),
        ("%x = loop.shuffle %n from %seven : i32", set()),
        ("loop.barrier", set()),
        ("scf.for %i = %zero to %seven step %seven {\n}", set()),
    ],
)
def test_what_may_be_done_with_an_operation(body: str, answers: set[object]) -> None:
    asked = (is_pure, only_computes, is_load, is_allocation)
    assert {question for question in asked if question(op(body))} == answers


def test_a_division_of_elements_may_be_computed_early_but_one_of_indices_by_a_variable_may_not() -> None:
    assert is_pure(op("%x = arith.remsi %n, %n : i32"))
    assert not is_pure(op("%x = arith.remsi %t, %b : index"))


def test_effects_of_a_loop_are_those_of_its_body() -> None:
    loops = op(
        """scf.for %i = %zero to %seven step %seven {
          %x = loop.load %A[%i] : memref<64xf32>
          loop.store %x, %C[%i] : memref<64xf32>
        }"""
    )
    a, c, d = loops.parent_op().body.block.args[:3]  # pyright: ignore
    assert (buffers_read(loops), buffers_written(loops)) == ({a}, {c})
    assert may_write(loops, {c, d}) and not may_write(loops, {a, d})
    assert accesses_are_known(loops)


def test_nothing_moves_across_what_orders_memory() -> None:
    ordered = op("scf.for %i = %zero to %seven step %seven {\nloop.barrier\n}")
    a = ordered.parent_op().body.block.args[0]  # pyright: ignore
    assert may_write(ordered, {a}) and not accesses_are_known(ordered) and not buffers_written(ordered)
    for kind in (loop.BarrierOp, loop.CommitOp, loop.WaitOp, loop.ArriveOp, cuda.BarrierOp, cuda.ArriveOp):
        assert kind.has_trait(OrdersMemory)


def test_a_copy_reads_one_buffer_and_writes_the_other() -> None:
    copy = cuda.CpAsyncOp
    module = Parser(
        treadle_context(),
        """
        cuda.kernel @k(%A: memref<64xf32>) grid = [1, 1, 1] block = [32, 1, 1] {
          %c = arith.constant 0 : index
          %tile = cuda.alloc : memref<64xf32, #cuda.space<shared>>
          cuda.cp_async %A[%c], %tile[%c] bytes 16 : memref<64xf32>, memref<64xf32, #cuda.space<shared>>
          cuda.return
        }""",
    ).parse_module()
    (found,) = (inner for inner in module.walk() if isinstance(inner, copy))
    assert (buffers_read(found), buffers_written(found)) == ({found.source}, {found.destination})


def test_accesses_to_another_name_of_a_buffer_are_accesses_to_the_buffer() -> None:
    again = op("%E = loop.opaque_buffer %A : memref<64xf32> -> memref<64xf32>\n%x = loop.load %E[%t] : memref<64xf32>")
    load = again.next_op
    assert load is not None and is_pure(again) and not buffers_read(again)
    assert buffers_read(load) == {again.operands[0]}


def test_what_a_warp_does_together_stays_where_it_is() -> None:
    of_loops = (loop.WarpReduceOp, loop.ShuffleOp, loop.MmaOp, loop.LoadMatrixOp)
    for kind in (*of_loops, cuda.ShuffleOp, cuda.MmaOp, cuda.LdmatrixOp):
        assert kind.has_trait(Convergent)


@pytest.mark.parametrize("dialect", [arith.Arith, math.Math])
def test_xdsl_operations_that_a_kernel_may_hold_are_known(dialect: Dialect) -> None:
    """Operations of a later xDSL that declare nothing belong into the table."""
    for kind in dialect.operations:
        assert kind in UNDECLARED or any(isinstance(t, MemoryEffect) for t in kind.traits.traits), kind.name


def test_unknown_operations_may_do_anything() -> None:
    unknown = memref.AllocaScopeOp.create(regions=[])
    assert accesses(unknown) is None and may_write(unknown, set()) and not is_pure(unknown)
