"""graph-define, graph-inline, graph-fuse: values stay the same; who is fused with whom, and why."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from xdsl.dialects import arith

from tests.passes.graph.support import check_same, groups, main_of, outputs, parse, random_inputs, run
from treadle.dialects.graph import AtOp, ComputeOp, FusedOp, MatmulOp, Operator
from treadle.errors import TreadleError
from treadle.passes.graph.definition_analysis import moves_data
from treadle.passes.graph.fusion_plan import nodes_of, plan_fusion
from treadle.passes.graph.graph_define import GraphDefinePass
from treadle.passes.graph.graph_fuse import GraphFusePass
from treadle.passes.graph.graph_inline import GraphInlinePass
from treadle.passes.graph.inline_compute import inline_compute
from treadle.target import Target

PASSES = (GraphDefinePass(), GraphInlinePass(), GraphFusePass())

FIGURE_15 = """
func.func @reverse(%c: tensor<100xf32>) -> tensor<2x50xf32> {
  %two = graph.constant #graph.inline<"2.0"> : tensor<f32>
  %three = graph.constant #graph.inline<"3.0"> : tensor<f32>
  %a = graph.binary "mul" %c, %two : (tensor<100xf32>, tensor<f32>) -> tensor<100xf32>
  %b = graph.slice %a {starts = array<i64: 99>, sizes = array<i64: 100>, steps = array<i64: -1>}
      : (tensor<100xf32>) -> tensor<100xf32>
  %t = graph.binary "mul" %b, %three : (tensor<100xf32>, tensor<f32>) -> tensor<100xf32>
  %d = graph.reshape %t {shape = array<i64: 2, 50>} : (tensor<100xf32>) -> tensor<2x50xf32>
  func.return %d : tensor<2x50xf32>
}
"""

ATTENTION = """
func.func @main(%x: tensor<8x12xf32>, %w: tensor<12x12xf32>, %bias: tensor<12xf32>, %k: tensor<8x12xf32>)
    -> tensor<3x8x8xf32> {
  %m = graph.matmul %x, %w : (tensor<8x12xf32>, tensor<12x12xf32>) -> tensor<8x12xf32>
  %a = graph.binary "add" %m, %bias : (tensor<8x12xf32>, tensor<12xf32>) -> tensor<8x12xf32>
  %q = graph.reshape %a {shape = array<i64: 8, 3, 4>} : (tensor<8x12xf32>) -> tensor<8x3x4xf32>
  %qh = graph.transpose %q {perm = array<i64: 1, 0, 2>} : (tensor<8x3x4xf32>) -> tensor<3x8x4xf32>
  %kr = graph.reshape %k {shape = array<i64: 8, 3, 4>} : (tensor<8x12xf32>) -> tensor<8x3x4xf32>
  %kh = graph.transpose %kr {perm = array<i64: 1, 2, 0>} : (tensor<8x3x4xf32>) -> tensor<3x4x8xf32>
  %s = graph.matmul %qh, %kh : (tensor<3x8x4xf32>, tensor<3x4x8xf32>) -> tensor<3x8x8xf32>
  %p = graph.softmax %s {dim = 2 : i64} : (tensor<3x8x8xf32>) -> tensor<3x8x8xf32>
  func.return %p : tensor<3x8x8xf32>
}
"""

PADDED = """
func.func @main(%x: tensor<1x2x5x5xf32>, %w: tensor<2x1x3x3xf32>) -> tensor<1x2x5x5xf32> {
  %r = graph.unary "sigmoid" %x : (tensor<1x2x5x5xf32>) -> tensor<1x2x5x5xf32>
  %y = graph.conv %r, %w {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>,
      dilations = array<i64: 1, 1>, groups = 2 : i64}
      : (tensor<1x2x5x5xf32>, tensor<2x1x3x3xf32>) -> tensor<1x2x5x5xf32>
  %z = graph.unary "relu" %y : (tensor<1x2x5x5xf32>) -> tensor<1x2x5x5xf32>
  func.return %z : tensor<1x2x5x5xf32>
}
"""

SHARED = """
func.func @main(%x: tensor<4x6xf32>, %a: tensor<4x3xf32>, %b: tensor<4x2xf32>)
    -> (tensor<6x3xf32>, tensor<6x2xf32>) {
  %t = graph.transpose %x {perm = array<i64: 1, 0>} : (tensor<4x6xf32>) -> tensor<6x4xf32>
  %m = graph.matmul %t, %a : (tensor<6x4xf32>, tensor<4x3xf32>) -> tensor<6x3xf32>
  %n = graph.matmul %t, %b : (tensor<6x4xf32>, tensor<4x2xf32>) -> tensor<6x2xf32>
  func.return %m, %n : tensor<6x3xf32>, tensor<6x2xf32>
}
"""

PADS = """
func.func @main(%x: tensor<3x4xf32>) -> tensor<1x7x8xf32> {
  %zero = graph.constant #graph.inline<"0.0"> : tensor<f32>
  %one = graph.constant #graph.inline<"1.0"> : tensor<f32>
  %p = graph.pad "constant" %x, %zero {pads = array<i64: 1, 1, 1, 1>}
      : (tensor<3x4xf32>, tensor<f32>) -> tensor<5x6xf32>
  %e = graph.unary "exp" %p : (tensor<5x6xf32>) -> tensor<5x6xf32>
  %q = graph.pad "constant" %e, %one {pads = array<i64: 1, 1, 1, 1>}
      : (tensor<5x6xf32>, tensor<f32>) -> tensor<7x8xf32>
  %r = graph.reshape %q {shape = array<i64: 1, 7, 8>} : (tensor<7x8xf32>) -> tensor<1x7x8xf32>
  %n = graph.unary "neg" %r : (tensor<1x7x8xf32>) -> tensor<1x7x8xf32>
  func.return %n : tensor<1x7x8xf32>
}
"""

RESIDUAL = """
func.func @main(%x: tensor<4x4xf32>, %v: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %m = graph.matmul %x, %v : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %n = graph.matmul %x, %w : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = graph.binary "add" %m, %n : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %r = graph.unary "relu" %s : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %g = graph.unary "gelu" %r : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %h = graph.binary "mul" %g, %r : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  func.return %h : tensor<4x4xf32>
}
"""

TWO_INDEX_MAPS = """
func.func @main(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %m = graph.matmul %x, %w : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %t = graph.transpose %m {perm = array<i64: 1, 0>} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = graph.binary "add" %m, %t : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  func.return %s : tensor<4x4xf32>
}
"""

MODULES = {
    "figure 15": FIGURE_15,
    "attention": ATTENTION,
    "padded": PADDED,
    "shared": SHARED,
    "pads": PADS,
    "residual": RESIDUAL,
    "two maps": TWO_INDEX_MAPS,
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_passes_keep_the_values(name: str, count: int):
    check_same(MODULES[name], *PASSES[:count])


@pytest.mark.parametrize("name", MODULES)
def test_every_compute_and_matmul_is_in_one_group(name: str):
    module = check_same(MODULES[name], *PASSES)
    assert not [op for op in main_of(module).body.block.ops if isinstance(op, ComputeOp | Operator)]
    labels = [group.label.data for group in groups(module)]
    assert len(set(labels)) == len(labels) and all(label.isidentifier() for label in labels)
    for group in groups(module):
        anchors = [op for op in group.body.block.ops if isinstance(op, MatmulOp)]
        assert len(anchors) <= 1


def test_figure_15_is_one_kernel_that_reads_and_computes_once():
    module = check_same(FIGURE_15, *PASSES)
    (group,) = groups(module)
    (compute,) = [op for op in group.body.block.ops if isinstance(op, ComputeOp)]
    assert compute.shape == (2, 50) and len(compute.reads()) == 1
    assert sum(isinstance(op, arith.MulfOp) for op in compute.body.block.ops) == 2


def test_attention_heads_are_an_epilogue_and_a_prologue():
    module = check_same(ATTENTION, *PASSES)
    first, second, *_ = groups(module)
    assert [op.name for op in first.body.block.ops] == [
        "graph.matmul",
        "graph.compute",
        "graph.compute",
        "graph.yield",
    ]
    assert [op.name for op in second.body.block.ops] == ["graph.compute", "graph.matmul", "graph.yield"]
    assert first.label.data == "matmul_add"


def test_arithmetic_that_a_window_would_repeat_is_stored():
    module = check_same(PADDED, *PASSES)
    assert [group.label.data for group in groups(module)] == ["sigmoid", "conv_relu"]


def test_a_transpose_of_an_argument_is_repeated_in_both_groups():
    module = check_same(SHARED, *PASSES)
    assert [group.label.data for group in groups(module)] == ["matmul", "matmul_2"]
    for group in groups(module):
        assert [op.name for op in group.body.block.ops] == ["graph.compute", "graph.matmul", "graph.yield"]


@pytest.mark.parametrize("name", ["pads", "figure 15"])
def test_inlining_under_a_predicate_keeps_the_values(name: str):
    module = run(parse(MODULES[name]), GraphDefinePass())
    computes = [op for op in main_of(module).body.block.ops if isinstance(op, ComputeOp)]
    for producer, consumer in pairwise(computes):
        inline_compute(producer, consumer)
    (*_, last) = computes
    inputs = random_inputs(module)
    assert len(last.reads()) == 1 and (last.reads()[0].predicate is not None) == (name == "pads")
    (actual,) = outputs(module, inputs)
    (expected,) = outputs(parse(MODULES[name]), inputs)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_pads_of_one_value_join_their_predicates():
    text = PADS.replace('inline<"1.0">', 'inline<"0.0">').replace('"exp"', '"neg"')
    module = run(parse(text), GraphDefinePass())
    first, negation, second, *_ = [op for op in main_of(module).body.block.ops if isinstance(op, ComputeOp)]
    inline_compute(first, negation)
    assert not moves_data(negation) and not any(isinstance(op, arith.SelectOp) for op in negation.walk())
    second.reads()[0].operands[0] = first.result
    inline_compute(first, second)
    assert moves_data(second) and not any(isinstance(op, arith.SelectOp) for op in second.walk())


def test_the_later_of_two_anchors_takes_the_sum_and_silu_reads_once():
    module = check_same(RESIDUAL, *PASSES)
    first, second = groups(module)
    assert first.label.data == "matmul" and second.label.data.startswith("matmul_add_relu")
    (epilogue,) = [op for op in second.body.block.ops if isinstance(op, ComputeOp)]
    assert len(epilogue.reads()) == 2


def test_a_result_read_at_two_indices_is_stored():
    module = check_same(TWO_INDEX_MAPS, *PASSES)
    assert [group.label.data for group in groups(module)] == ["matmul", "add"]


def test_returned_results_are_stored():
    text = """
    func.func @main(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
      %m = graph.matmul %x, %w : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %r = graph.unary "relu" %m : (tensor<4x4xf32>) -> tensor<4x4xf32>
      func.return %m, %r : tensor<4x4xf32>, tensor<4x4xf32>
    }"""
    (group,) = groups(check_same(text, *PASSES))
    assert group.label.data == "matmul_relu" and len(group.results) == 2


def test_relu_before_a_window_is_not_computed_in_the_window():
    text = """
    func.func @main(%x: tensor<6xf32>, %w: tensor<3x2xf32>) -> tensor<4x2xf32> {
      %r = graph.unary "sigmoid" %x : (tensor<6xf32>) -> tensor<6xf32>
      %p = graph.compute "im2col" (%i, %k) {
        %j = arith.addi %i, %k : index
        %v = graph.at %r[%j] : tensor<6xf32>
        graph.yield %v : f32
      } : tensor<4x3xf32>
      %m = graph.matmul %p, %w : (tensor<4x3xf32>, tensor<3x2xf32>) -> tensor<4x2xf32>
      func.return %m : tensor<4x2xf32>
    }"""
    first, second = groups(check_same(text, *PASSES))
    assert first.label.data == "sigmoid" and second.label.data == "im2col_matmul"


def test_decisions_have_reasons():
    module = run(parse(ATTENTION), *PASSES[:2])
    ops = list(main_of(module).body.block.ops)
    texts = [str(decision) for decision in plan_fusion(ops, Target.parse("cpu")).decisions(nodes_of(ops))]
    assert any("%m (matmul) -> %a (add): fused, as an epilogue" in t for t in texts)
    assert any("not fused, the user is an anchor itself" in t for t in texts)


def test_explain_prints_the_decisions(capsys: pytest.CaptureFixture[str]):
    run(parse(FIGURE_15), *PASSES[:2], GraphFusePass(explain=True))
    assert "fused, as a prologue" in capsys.readouterr().err


def test_operators_without_definition_are_rejected():
    with pytest.raises(TreadleError, match=r"graph\.binary has not been replaced.*graph-define"):
        run(parse(FIGURE_15), GraphFusePass())


def test_equal_reads_are_shared_by_define():
    text = """
    func.func @main(%x: tensor<1x4xf32>) -> tensor<1x4xf32> {
      %y = graph.binary "mul" %x, %x : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<1x4xf32>
      func.return %y : tensor<1x4xf32>
    }"""
    module = check_same(text, GraphDefinePass())
    assert sum(isinstance(op, AtOp) for op in module.walk()) == 1


def test_labels_are_identifiers_of_bounded_length():
    kinds = (
        "relu",
        "exp",
        "tanh",
        "gelu_tanh",
        "sigmoid",
        "erf",
        "floor",
        "ceil",
        "sqrt",
        "abs",
        "round",
        "neg",
    )
    body = "\n".join(
        f'%v{n} = graph.unary "{kind}" %v{n - 1} : (tensor<4xf32>) -> tensor<4xf32>'
        for n, kind in enumerate(kinds, start=1)
    )
    end = "func.return %v12 : tensor<4xf32>"
    text = f"func.func @main(%v0: tensor<4xf32>) -> tensor<4xf32> {{ {body}\n {end} }}"
    (group,) = groups(check_same(text, *PASSES))
    assert isinstance(group, FusedOp) and len(group.label.data) <= 60
