"""Index arithmetic read from the IR and written to it: what is written computes the expression."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.context import Context
from xdsl.dialects import arith, scf, test
from xdsl.dialects.builtin import Builtin, IndexType, IntegerAttr, ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.parser import Parser
from xdsl.rewriter import InsertPoint

from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Expr, Range, const, mod, var
from treadle.index.reader import IndexReader

RANGES: list[Range] = [(0, 127), (0, 3), (-9, 30), (None, None)]


def evaluate(block: Block, values: dict[SSAValue, int]) -> None:
    for op in block.ops:
        if isinstance(op, arith.ConstantOp):
            assert isinstance(op.value, IntegerAttr)
            values[op.result] = op.value.value.data
            continue
        values[op.results[0]] = apply(op, *(values[o] for o in op.operands))


def apply(op: Operation, a: int, b: int) -> int:
    if op.name in ("arith.divui", "arith.remui"):
        assert a >= 0
    if op.name in ("arith.divui", "arith.floordivsi"):
        return a // b
    if op.name == "arith.remui":
        return a % b
    return {"arith.addi": a + b, "arith.subi": a - b, "arith.muli": a * b}[op.name]


def expressions(block: Block) -> st.SearchStrategy[Expr]:
    leaves = st.one_of(
        st.sampled_from([var(a, *r) for a, r in zip(block.args, RANGES, strict=True)]),
        st.integers(-20, 40).map(const),
    )

    def grow(child: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        divisor = st.sampled_from([2, 3, 4, 8, 12])
        return st.one_of(
            st.builds(lambda a, b: a + b, child, child),
            st.builds(lambda a, b: a - b, child, child),
            st.builds(lambda a, b: a * b, child, child),
            st.builds(lambda a, c: a // c, child, divisor),
            st.builds(lambda a, c: a % c, child, divisor),
        )

    return st.recursive(leaves, grow, max_leaves=8)


@settings(max_examples=200)
@given(st.data())
def test_written_operations_compute_the_expression(data: st.DataObject) -> None:
    block = Block(arg_types=[IndexType()] * len(RANGES))
    e = data.draw(expressions(block))
    value = IndexEmitter(InsertPoint.at_end(block)).emit(e)
    values: dict[SSAValue, int] = {
        a: data.draw(st.integers(-50 if lo is None else lo, 50 if hi is None else hi))
        for a, (lo, hi) in zip(block.args, RANGES, strict=True)
    }
    expected = e.evaluate(values)
    evaluate(block, values)
    assert values[value] == expected
    known: dict[SSAValue, Range] = dict(zip(block.args, RANGES, strict=True))
    again = IndexReader({v: var(v, *r) for v, r in known.items()}).read(value)
    assert again.evaluate(values) == expected


def parse(text: str) -> list[Operation]:
    ctx = Context()
    for dialect in (Builtin, arith.Arith, scf.Scf, test.Test):
        ctx.load_dialect(dialect)
    return list(Parser(ctx, text).parse_module().walk())


def operands_of_last(ops: list[Operation]) -> tuple[SSAValue, ...]:
    return tuple(next(op for op in reversed(ops) if isinstance(op, test.TestOp)).operands)


def test_reading_recombines_a_split() -> None:
    ops = parse("""
        %t = "test.op"() : () -> index
        %c8 = arith.constant 8 : index
        %q = arith.divui %t, %c8 : index
        %r = arith.remui %t, %c8 : index
        %m = arith.muli %q, %c8 : index
        %s = arith.addi %m, %r : index
        "test.op"(%s, %t) : (index, index) -> ()
    """)
    split, whole = operands_of_last(ops)
    reader = IndexReader()
    assert reader.read(split) == reader.read(whole)
    assert IndexReader({whole: var(whole, 0, 7)}).read(split).range() == (0, 7)


@pytest.mark.parametrize(
    ("computed", "expected"),
    [
        ("arith.minui %i, %c5 : index", (2, 5)),
        ("arith.maxsi %j, %c5 : index", (5, None)),
        ("arith.select %p, %i, %c5 : index", (2, 17)),
        ("arith.index_cast %n : i64 to index", (-(1 << 63), (1 << 63) - 1)),
        ("arith.divui %i, %j : index", (None, None)),
        ("arith.subi %i, %c5 : index", (-3, 12)),
        ("arith.remui %i, %c5 : index", (0, 4)),
        ("arith.floordivsi %i, %c5 : index", (0, 3)),
    ],
)
def test_ranges(computed: str, expected: Range) -> None:
    ops = parse(f"""
        %j, %n, %p = "test.op"() : () -> (index, i64, i1)
        %c2 = arith.constant 2 : index
        %c3 = arith.constant 3 : index
        %c5 = arith.constant 5 : index
        %c20 = arith.constant 20 : index
        scf.for %i = %c2 to %c20 step %c3 {{
          %v = {computed}
          "test.op"(%v) : (index) -> ()
        }}
    """)
    assert IndexReader().read(operands_of_last(ops)[0]).range() == expected


def test_invariant_arithmetic_leaves_the_loop() -> None:
    """The inner emitter writes only what depends on the loop variable."""
    ops = parse("""
        %t, %n = "test.op"() : () -> (index, index)
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        scf.for %i = %c0 to %n step %c1 {
          "test.op"(%i) : (index) -> ()
        }
    """)
    loop = next(op for op in ops if isinstance(op, scf.ForOp))
    t, n = (var(v, 0, None) for v in ops[1].results)
    i = var(loop.body.block.args[0], 0, None)
    before = IndexEmitter(InsertPoint.before(loop))
    inner = before.inside(InsertPoint.at_start(loop.body.block))
    inner.emit(i * n * 4 + t // 8 + mod(i, 4) - 3)
    assert [op.name for op in loop.body.block.ops][:4] == [
        "arith.muli", "arith.remui", "arith.addi", "arith.addi",
    ]  # fmt: skip
    module = loop.parent_op()
    assert isinstance(module, ModuleOp)
    count = len(list(module.walk()))
    inner.emit(i * n * 4 + t // 8 + mod(i, 4) - 3)
    assert len(list(module.walk())) == count


def test_a_variable_that_stands_for_no_value_is_named() -> None:
    with pytest.raises(TypeError, match="x stands for no SSA value"):
        IndexEmitter(InsertPoint.at_end(Block())).emit(var("x", 0, 3))
