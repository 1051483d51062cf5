"""What joins a row's kernel, and how often it is computed there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph, random
from treadle.backends.reference import evaluate_module
from treadle.backends.reference.run_module import run_module
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import BinaryOp, LayerNormOp, MatmulOp, SoftmaxOp, UnaryOp
from treadle.dialects.loop import KernelOp
from treadle.dialects.registry import treadle_context
from treadle.schedules.row_analysis import MOST_CACHED
from treadle.target import Target

TARGETS = ("cpu", "sm_80")


def kernels(module: ModuleOp, target: str) -> list[KernelOp]:
    lower(treadle_context(), module, Target.parse(target), to="kernels")
    return [op for op in module.walk() if isinstance(op, KernelOp)]


def count(kernel: KernelOp, name: str) -> int:
    """How often an operation is written in a kernel, loops counted once."""
    return sum(op.name == name for op in kernel.walk())


def normalised(g: Graph, x: SSAValue) -> SSAValue:
    return g.add(LayerNormOp(x, g[1], g[2], 1, 1e-5))


def prologue(g: Graph) -> SSAValue:
    return normalised(g, g.add(UnaryOp("tanh", g[0])))


def epilogue(g: Graph) -> SSAValue:
    return g.add(UnaryOp("tanh", normalised(g, g[0])))


def row(columns: int) -> Graph:
    return Graph(np.zeros((6, columns), np.float32), np.ones(columns, np.float32), np.zeros(columns, np.float32))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("build", [prologue, epilogue])
def test_a_costly_neighbour_is_computed_once(build: Callable[[Graph], SSAValue], target: str) -> None:
    graph = Graph(random(6, 70), random(70), random(70, seed=1))
    module = graph.module(build(graph))
    (expected,) = evaluate_module(module, graph.inputs)
    found = kernels(module, target)
    assert len(found) == 1
    # The chunks of whole vectors and the last one are written separately.
    assert count(found[0], "math.tanh") == (2 if target == "cpu" else 1)
    (actual,) = run_module(module, graph.inputs)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))


@pytest.mark.parametrize("target", TARGETS)
def test_a_costly_prologue_of_a_row_that_is_read_again_is_stored(target: str) -> None:
    graph = row(MOST_CACHED + 4)
    first, second = kernels(graph.module(prologue(graph)), target)
    assert (count(first, "math.tanh") > 0, count(second, "math.tanh")) == (True, 0)
    graph = row(MOST_CACHED + 4)
    assert len(kernels(graph.module(epilogue(graph)), target)) == 1


@pytest.mark.parametrize("target", TARGETS)
def test_a_sum_that_only_the_row_reads_is_added_in_it(target: str) -> None:
    graph = Graph(random(6, 70), random(70), random(70, seed=1), random(6, 70, seed=2))
    total = graph.add(BinaryOp("add", graph[0], graph[3]))
    assert len(kernels(graph.module(graph.add(BinaryOp("mul", total, normalised(graph, total)))), target)) == 1


@pytest.mark.parametrize("target", TARGETS)
def test_a_sum_that_is_read_again_is_stored_first(target: str) -> None:
    graph = Graph(random(6, 70), random(70), random(70, seed=1), random(6, 70, seed=2))
    total = graph.add(BinaryOp("add", graph[0], graph[3]))
    module = graph.module(total, normalised(graph, total))
    first, second = kernels(module, target)
    assert count(first, "arith.addf") == 1 and count(second, "math.rsqrt") == 1


@pytest.mark.parametrize("target", TARGETS)
def test_a_product_keeps_its_epilogue(target: str) -> None:
    graph = Graph(random(6, 5), random(5, 70, seed=1))
    scores = graph.add(UnaryOp("tanh", graph.add(MatmulOp(graph[0], graph[1]))))
    product, softmax = kernels(graph.module(graph.add(SoftmaxOp(scores, 1))), target)
    assert count(product, "math.tanh") > 0 and count(softmax, "math.tanh") == 0
