"""Running whole modules with NumPy."""

import numpy as np
import pytest
from xdsl.dialects import test as test_dialect
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Region

from tests.helpers.graphs import Graph, random
from treadle.backends.reference import evaluate_module
from treadle.dialects.graph import BinaryOp, FusedOp, MatmulOp, UnaryOp, YieldOp
from treadle.errors import TreadleError


def test_results_in_order() -> None:
    graph = Graph(random(2, 3), random(3, 4))
    product = graph.add(MatmulOp(graph[0], graph[1]))
    relu = graph.add(UnaryOp("relu", product))
    total, same = evaluate_module(graph.module(relu, graph[0]), graph.inputs)
    np.testing.assert_allclose(total, np.maximum(graph.inputs[0] @ graph.inputs[1], 0), rtol=1e-6)
    np.testing.assert_array_equal(same, graph.inputs[0])


def test_fused_groups_capture_tensors() -> None:
    graph = Graph(random(2, 3))
    doubled = graph.add(BinaryOp("add", graph[0], graph[0]))
    inner = Graph()
    exponential = inner.add(UnaryOp("exp", doubled))
    inner.block.add_op(YieldOp(inner.add(BinaryOp("mul", exponential, graph[0]))))
    fused = graph.add(FusedOp("exp_mul", Region(inner.block)))
    (got,) = evaluate_module(graph.module(fused), graph.inputs)
    x = graph.inputs[0]
    np.testing.assert_allclose(got, np.exp(x + x) * x, rtol=1e-6)


def test_what_does_not_fit_is_named() -> None:
    graph = Graph(random(2, 3))
    module = graph.module(graph[0])
    with pytest.raises(TreadleError, match=r"input 0 is float32\[3, 2\]; accepted: float32\[2, 3\]"):
        evaluate_module(module, [random(3, 2)])
    with pytest.raises(TreadleError, match="0 inputs for 1 arguments"):
        evaluate_module(module, [])
    with pytest.raises(TreadleError, match=r"no function @other; accepted: @main"):
        evaluate_module(module, graph.inputs, "other")
    with pytest.raises(TreadleError, match="no function @main"):
        evaluate_module(ModuleOp([]), [])


def test_an_operation_of_another_dialect_is_named() -> None:
    graph = Graph(random(2, 3))
    strange = graph.add(test_dialect.TestOp(result_types=[graph[0].type]))
    with pytest.raises(TreadleError, match=r"test.op cannot be evaluated"):
        evaluate_module(graph.module(strange), graph.inputs)
