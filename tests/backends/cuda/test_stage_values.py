"""The GPU's road on small graphs, stage by stage, in the interpreter: the values, in both orders of the threads."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from tests.backends.cuda.gpu_graphs import CASES
from tests.helpers.graphs import Array, Graph, random
from treadle.backends.reference import evaluate_module
from treadle.backends.reference.run_module import run_module
from treadle.compiler.pipeline import lower
from treadle.dialects.loop import BarrierOp
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.target import Target


@pytest.mark.parametrize("name", CASES)
def test_every_stage_computes_what_the_graph_says(name: str) -> None:
    graph = Graph(random(*CASES[name].small))
    module = graph.module(CASES[name].build(graph))
    (expected,) = evaluate_module(module, graph.inputs)
    after = None
    for stage in ("kernels", "plan", "loops"):
        lower(treadle_context(), module, Target.parse("sm_80"), after=after, to=stage)
        after = stage
        for reverse in (False, True):
            (actual,) = run_module(module, graph.inputs, reverse=reverse)
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))


@pytest.mark.parametrize("name", ["product", "squeeze"])
def test_no_barrier_can_be_left_out(name: str) -> None:
    graph = Graph(random(*CASES[name].small))
    module = graph.module(CASES[name].build(graph))
    (expected,) = evaluate_module(module, graph.inputs)
    lower(treadle_context(), module, Target.parse("sm_80"), to="plan")
    barriers = sum(isinstance(op, BarrierOp) for op in module.walk())
    assert barriers
    for left_out in range(barriers):
        broken = module.clone()
        barrier = [op for op in broken.walk() if isinstance(op, BarrierOp)][left_out]
        barrier.detach()
        assert not all(_agrees(broken, graph, expected, reverse) for reverse in (False, True))


def _agrees(module: ModuleOp, graph: Graph, expected: Array, reverse: bool) -> bool:
    try:
        (actual,) = run_module(module, graph.inputs, reverse=reverse)
    except TreadleError:  # what nobody has stored yet is read
        return False
    return bool(np.allclose(actual, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max())))
