"""task-lower: figure 8's lowered form, and lowered loops that visit what the mapping says."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.context import Context
from xdsl.dialects import arith, func, scf, test
from xdsl.dialects.builtin import Builtin, FunctionType, IndexType, IntegerAttr, ModuleOp, StringAttr
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.parser import Parser
from xdsl.printer import Printer

from treadle.dialects.loop import LOOP
from treadle.dialects.task import ForOp, Mapping, Task, YieldOp, custom, repeat, replicate, spatial
from treadle.errors import TreadleError
from treadle.passes.lower.task_lower import TaskLowerPass


def lowered(text: str) -> ModuleOp:
    ctx = Context()
    for dialect in (Builtin, arith.Arith, func.Func, scf.Scf, test.Test, Task, LOOP):
        ctx.load_dialect(dialect)
    module = Parser(ctx, text).parse_module()
    module.verify()
    TaskLowerPass().apply(ctx, module)
    module.verify()
    return module


def printed(module: ModuleOp) -> str:
    stream = io.StringIO()
    Printer(stream=stream).print_op(module)
    return stream.getvalue()


def test_figure_8() -> None:
    text = """
func.func @load(%t : index) {
  task.for (%i, %k) in #task.map<repeat(4, 1) * spatial(16, 8)>(%t) {
    "test.op"(%i, %k) : (index, index) -> ()
  }
  func.return
}"""
    assert (
        printed(lowered(text))
        == """\
builtin.module {
  func.func @load(%t: index) {
    %c0 = arith.constant 0 : index
    %c4 = arith.constant 4 : index
    %c1 = arith.constant 1 : index
    %c16 = arith.constant 16 : index
    %c8 = arith.constant 8 : index
    %0 = arith.divui %t, %c8 : index
    %k = arith.remui %t, %c8 : index
    scf.for %io = %c0 to %c4 step %c1 {
      %1 = arith.muli %io, %c16 : index
      %i = arith.addi %1, %0 : index
      "test.op"(%i, %k) : (index, index) -> ()
    }
    func.return
  }
}"""
    )


def test_unroll_and_attributes_go_to_the_loops() -> None:
    text = """
func.func @load(%t : index) {
  task.for (%i, %k) in #task.map<repeat(4, 2)> unroll {
    "test.op"(%i, %k) : (index, index) -> ()
  } {loop.vector}
  func.return
}"""
    assert (
        printed(lowered(text))
        == """\
builtin.module {
  func.func @load(%t: index) {
    %c0 = arith.constant 0 : index
    %c4 = arith.constant 4 : index
    %c1 = arith.constant 1 : index
    %c2 = arith.constant 2 : index
    scf.for %i = %c0 to %c4 step %c1 {
      scf.for %k = %c0 to %c2 step %c1 {
        "test.op"(%i, %k) : (index, index) -> ()
      } {loop.unroll, loop.vector}
    } {loop.unroll}
    func.return
  }
}"""
    )


def test_constant_worker_and_nested_loops_fold() -> None:
    text = """
func.func @f() {
  %w = arith.constant 5 : index
  task.for (%i) in #task.map<spatial(8)>(%w) {
    task.for (%j) in #task.map<repeat(1)> {
      "test.op"(%i, %j) : (index, index) -> ()
    }
  }
  func.return
}"""
    assert (
        printed(lowered(text))
        == """\
builtin.module {
  func.func @f() {
    %w = arith.constant 5 : index
    %c5 = arith.constant 5 : index
    %c0 = arith.constant 0 : index
    "test.op"(%c5, %c0) : (index, index) -> ()
    func.return
  }
}"""
    )


def run(block: Block, values: dict[SSAValue, int], visited: list[tuple[int, ...]]) -> None:
    """A tiny evaluator of index arithmetic and loops; "test.op" records its operands."""
    for op in block.ops:
        operands = [values[o] for o in op.operands]
        if isinstance(op, arith.ConstantOp):
            assert isinstance(op.value, IntegerAttr)
            values[op.result] = op.value.value.data
        elif isinstance(op, scf.ForOp):
            for i in range(*operands):
                run(op.body.block, {**values, op.body.block.args[0]: i}, visited)
        elif isinstance(op, test.TestOp):
            visited.append(tuple(operands))
        elif op.results:
            values[op.results[0]] = apply(op, *operands)


def apply(op: Operation, a: int, b: int) -> int:
    if op.name in ("arith.divui", "arith.remui"):
        assert a >= 0
        return a // b if op.name == "arith.divui" else a % b
    return {"arith.addi": a + b, "arith.subi": a - b, "arith.muli": a * b}[op.name]


def parts() -> st.SearchStrategy[Mapping]:
    grid = st.builds(
        lambda make, dims, order: make(*dims, order=order),
        st.sampled_from([repeat, spatial]),
        st.tuples(st.integers(1, 4), st.integers(1, 4)),
        st.permutations(range(2)),
    )
    swizzle = st.integers(1, 4).map(lambda n: custom((n, n), n, lambda w, s: (s, (w - s) % n), steps=n))
    return st.one_of(grid, swizzle, st.integers(1, 3).map(lambda n: replicate(n) * repeat(1, 1)))


@settings(max_examples=80)
@given(st.lists(parts(), min_size=1, max_size=4), st.data())
def test_lowered_loops_visit_the_mapping(composed: list[Mapping], data: st.DataObject) -> None:
    mapping = composed[0]
    for part in composed[1:]:
        mapping = mapping * part
    entry = Block(arg_types=[IndexType()])
    loop = ForOp(mapping, entry.args[0])
    loop.body.block.add_ops([test.TestOp(operands=loop.body.block.args), YieldOp()])
    entry.add_ops([loop, func.ReturnOp()])
    kernel = func.FuncOp("f", FunctionType.from_lists([IndexType()], []), Region(entry))
    module = ModuleOp([kernel], {"sym_name": StringAttr("m")})
    module.verify()
    TaskLowerPass().apply(Context(), module)
    module.verify()
    worker = data.draw(st.integers(0, mapping.workers - 1))
    visited: list[tuple[int, ...]] = []
    run(entry, {entry.args[0]: worker}, visited)
    assert visited == mapping(worker)


KERNEL = """
loop.func @load(%A : memref<512xf32>) grid(%b in 4) threads(%t in 128) {{
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  %lane = arith.remui %t, %c32 : index
  %few = arith.cmpi slt, %t, %c64 : index
  %never = arith.cmpi slt, %c64, %c32 : index
  %none = arith.andi %few, %never : i1
  {before}
  task.for (%i) in #task.map<{mapping}> {{
    "test.op"(%i) : (index) -> ()
  }}
  {after}
}}"""


def kernel(mapping: str, guard: str | None = None) -> str:
    before, after = (f"scf.if {guard} {{", "}") if guard else ("", "")
    return KERNEL.format(mapping=mapping, before=before, after=after).replace("> {", ">(%worker) {")


@pytest.mark.parametrize(
    ("mapping", "worker", "guard"),
    [("spatial(128)", "%t", None), ("spatial(32)", "%lane", None), ("spatial(4)", "%b", None),
     ("spatial(64)", "%t", "%few"), ("spatial(32)", "%lane", "%few"), ("spatial(64)", "%t", "%none"),
     ("spatial(256)", "%t", "%none")],
)  # fmt: skip
def test_workers_that_fit(mapping: str, worker: str, guard: str | None) -> None:
    lowered(kernel(mapping, guard).replace("%worker", worker))


@pytest.mark.parametrize(
    ("mapping", "worker", "guard", "message"),
    [
        ("spatial(256)", "%t", None, "to 256 workers, but %t counts 128: nobody does the tasks of workers 128 to 255"),
        ("spatial(64)", "%t", None, "to 64 workers, but %t counts 128: workers 64 to 127 have none; accepted: a "
         "mapping of 128 workers, or scf.if %t < 64 around it"),
        ("spatial(128)", "%t", "%few", "to 128 workers, but %t counts 64: nobody does the tasks of workers 64 to 127"),
        ("spatial(16)", "%lane", None, "to 16 workers, but %lane counts 32: workers 16 to 31 have none"),
    ],
)  # fmt: skip
def test_workers_that_do_not_fit(mapping: str, worker: str, guard: str | None, message: str) -> None:
    with pytest.raises(TreadleError) as caught:
        lowered(kernel(mapping, guard).replace("%worker", worker))
    assert message in str(caught.value)
    assert str(caught.value).startswith("loop.func @load: ")
