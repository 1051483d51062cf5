"""graph-mixed-precision: what becomes narrow, where casts stand, and how far results may move."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, bf16, f16, f32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, SSAValue

from tests.helpers.graphs import Graph, operators, random, run_passes
from treadle.backends.reference import evaluate_module
from treadle.dialects.graph import (
    AttentionOp,
    BinaryOp,
    CastOp,
    ConcatOp,
    ConstantOp,
    ConvOp,
    GatherOp,
    MaskOp,
    MatmulOp,
    Operator,
    PoolOp,
    ReductionOp,
    ReshapeOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
)
from treadle.dialects.graph.dtypes import epsilon, numpy_dtype
from treadle.errors import TreadleError
from treadle.passes.graph.graph_legalize_types import GraphLegalizeTypesPass
from treadle.passes.graph.graph_mixed_precision import GraphMixedPrecisionPass
from treadle.passes.graph.rewriting import tensor

NARROW: dict[str, Attribute] = {"f16": f16, "bf16": bf16}


def narrowed(graph: Graph, results: list[SSAValue], precision: str = "f16") -> ModuleOp:
    """The module after the pass; each rounding may move results by a unit of the narrow type's last place."""
    module = graph.module(*results)
    before = evaluate_module(module, graph.inputs)
    run_passes(module, [GraphMixedPrecisionPass(precision)])
    roundings = sum(isinstance(op, CastOp | MatmulOp | ConvOp | AttentionOp | ConstantOp) for op in module.walk())
    unit = epsilon(numpy_dtype(NARROW[precision]))
    for old, new in zip(before, evaluate_module(module, graph.inputs), strict=True):
        assert (old.shape, old.dtype) == (new.shape, new.dtype)
        np.testing.assert_allclose(new, old, rtol=0, atol=4 * unit * np.sqrt(roundings) * float(np.abs(old).max()))
    return module


def elements(module: ModuleOp) -> dict[str, set[Attribute]]:
    """The element types of each operator's results."""
    found: dict[str, set[Attribute]] = {}
    for op in module.walk():
        if isinstance(op, Operator | ConstantOp):
            name = f"{op.name.removeprefix('graph.')}"
            found.setdefault(name, set()).add(tensor(op.results[0]).get_element_type())
    return found


@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_products_are_narrow_and_functions_are_not(precision: str) -> None:
    graph = Graph(random(4, 8))
    h = graph.add(MatmulOp(graph[0], graph.constant(random(8, 24))))
    h = graph.add(UnaryOp("gelu", graph.add(BinaryOp("add", h, graph.constant(random(24))))))
    y = graph.add(SoftmaxOp(graph.add(MatmulOp(h, graph.constant(random(24, 5)))), 1))
    module = narrowed(graph, [y], precision)
    narrow = NARROW[precision]
    found = elements(module)
    assert found["matmul"] == {narrow} and found["constant"] == {narrow, f32}
    assert found["binary"] == found["unary"] == found["softmax"] == {f32}
    assert operators(module).count("cast") == 4, "the input, each result, and what lies between"


def test_a_value_is_rounded_once_for_all_its_readers() -> None:
    """A residual reads the copy that the products read."""
    graph = Graph(random(4, 8))
    x = graph.add(UnaryOp("tanh", graph[0]))
    a, b = (graph.add(MatmulOp(x, graph.constant(random(8, 8, seed=n)))) for n in range(2))
    y = graph.add(BinaryOp("add", x, graph.add(BinaryOp("add", a, b))))
    module = narrowed(graph, [y])
    function = next(op for op in module.body.block.ops if isinstance(op, FuncOp))
    tanh = next(op for op in function.body.block.ops if isinstance(op, UnaryOp))
    (reader,) = (use.operation for use in tanh.result.uses)
    assert isinstance(reader, CastOp) and reader.to == f16


def test_inputs_and_results_of_the_function_stay_as_they_are() -> None:
    graph = Graph(random(4, 8))
    x = graph.add(UnaryOp("tanh", graph[0]))
    y = graph.add(MatmulOp(x, graph.constant(random(8, 8))))
    module = narrowed(graph, [x, y])
    returned = next(op for op in module.walk() if isinstance(op, ReturnOp))
    assert isinstance(returned.operands[0].owner, UnaryOp)
    assert [tensor(value).get_element_type() for value in returned.operands] == [f32, f32]


def test_movers_between_products_are_narrow() -> None:
    graph = Graph(random(1, 3, 9, 9), random(1, 4, 5, 5))
    y = graph.add(ConvOp(graph[0], graph.constant(random(4, 3, 3, 3)), [2, 2], [1] * 4, [1, 1], 1))
    y = graph.add(PoolOp("max", graph.add(ConcatOp([y, graph[1]], 1)), [2, 2], [1, 1], [0] * 4, [1, 1]))
    y = graph.add(TransposeOp(graph.add(ReshapeOp(y, [8, 16])), [1, 0]))
    y = graph.add(MatmulOp(y, graph.constant(random(8, 3))))
    found = elements(narrowed(graph, [y]))
    assert found["concat"] == found["pool"] == found["reshape"] == found["transpose"] == found["conv"] == {f16}


def test_masks_between_products_are_narrow() -> None:
    """With their number, which the narrow type must hold; the extent stays what it is."""
    graph = Graph(random(4, 8), np.array(5))
    x = graph.add(MatmulOp(graph[0], graph.constant(random(8, 8))))
    hidden = graph.add(MaskOp(x, graph[1], 1, -np.inf))
    y = graph.add(MatmulOp(graph.add(MaskOp(x, graph[1], 1, 0.5)), graph.constant(random(8, 3))))
    lowest = graph.add(MaskOp(x, graph[1], 1, float(np.finfo(np.float32).min)))
    module = graph.module(hidden, y, lowest)
    before = evaluate_module(module, graph.inputs)
    run_passes(module, [GraphMixedPrecisionPass("f16")])
    for old, new in zip(before, evaluate_module(module, graph.inputs), strict=True):
        np.testing.assert_allclose(new, old, rtol=0, atol=2e-2)
    masks = [op for op in module.walk() if isinstance(op, MaskOp)]
    assert [(str(op.fill), op.type.get_element_type()) for op in masks] == [
        ("0xfc00 : f16", f16),
        ("5.000000e-01 : f16", f16),
        ("-3.40282347e+38 : f32", f32),
    ]


def test_attention_with_a_length_is_narrow() -> None:
    graph = Graph(random(2, 9, 8), np.array(5))
    module = narrowed(graph, [graph.add(AttentionOp(graph[0], graph[0], graph[0], length=graph[1]))])
    (op,) = [op for op in module.walk() if isinstance(op, AttentionOp)]
    assert op.type.get_element_type() == f16 and op.length is not None


def test_a_tied_weight_is_stored_narrow_and_once() -> None:
    graph = Graph(np.array([[3, 1]], np.int64))
    table = graph.constant(random(6, 8))
    x = graph.add(ReshapeOp(graph.add(GatherOp(table, graph[0], 0)), [2, 8]))
    h = graph.add(UnaryOp("tanh", x))
    y = graph.add(MatmulOp(h, graph.add(TransposeOp(table, [1, 0]))))
    module = narrowed(graph, [y])
    tables = [op for op in module.walk() if isinstance(op, ConstantOp) and op.result.uses]
    assert [op.type.get_element_type() for op in tables] == [f16]


def test_masks_and_averages_are_not_rounded() -> None:
    graph = Graph(random(1, 2, 4, 8), random(1, 1, 1, 4))
    y = graph.add(AttentionOp(graph[0], graph[0], graph[0], graph[1], scale=0.3))
    y = graph.add(ReductionOp("mean", y, [2], False))
    module = narrowed(graph, [y])
    attention = next(op for op in module.walk() if isinstance(op, AttentionOp))
    assert attention.mask is not None and tensor(attention.mask).get_element_type() == f32
    assert attention.type.get_element_type() == f16 and elements(module)["reduction"] == {f32}


def test_a_constant_that_overflows_keeps_its_operator() -> None:
    graph = Graph(random(4, 8))
    large = random(8, 8)
    large[0, 0] = 1e5
    y = graph.add(MatmulOp(graph[0], graph.constant(large)))
    assert elements(narrowed(graph, [y]))["matmul"] == {f32}


def test_a_second_run_changes_nothing() -> None:
    graph = Graph(random(4, 8))
    y = graph.add(MatmulOp(graph.add(UnaryOp("tanh", graph[0])), graph.constant(random(8, 8))))
    module = narrowed(graph, [y])
    once = str(module)
    GraphMixedPrecisionPass("f16").apply(Context(), module)
    assert str(module) == once


def test_f32_changes_nothing_and_tf32_marks_products() -> None:
    graph = Graph(random(4, 8))
    y = graph.add(MatmulOp(graph[0], graph.constant(random(8, 8))))
    module = graph.module(y)
    plain = str(module)
    run_passes(module, [GraphMixedPrecisionPass()])
    assert str(module) == plain
    run_passes(module, [GraphMixedPrecisionPass("tf32")])
    assert [op.precision for op in module.walk() if isinstance(op, MatmulOp)] == [StringAttr("tf32")]


def test_an_unknown_precision_is_named() -> None:
    with pytest.raises(TreadleError, match=r"unknown precision 'f8'; accepted: f32, tf32, f16, bf16"):
        GraphMixedPrecisionPass("f8").apply(Context(), ModuleOp([]))


def test_an_operator_without_a_rule_is_named() -> None:
    with pytest.raises(TreadleError, match=r"no rule for operator 'softmax'; accepted: matmul, conv, pool"):
        GraphLegalizeTypesPass(operators=("conv", "softmax")).apply(Context(), ModuleOp([]))


@pytest.mark.parametrize("element", [np.float16, numpy_dtype(bf16)])
def test_narrow_products_mean_sums_in_f32(element: Any) -> None:
    """512 products of 1/4: a sum in bfloat16 would stop growing at 64."""
    graph = Graph(np.full((1, 512), 0.5).astype(element), np.full((512, 1), 0.5).astype(element))
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    assert evaluate_module(module, graph.inputs)[0] == 128
    run_passes(module, [GraphLegalizeTypesPass()])
    assert evaluate_module(module, graph.inputs)[0] == 128
    assert elements(module)["matmul"] == {f32}
