"""The GPU's road on small graphs, stage by stage, in the interpreter: the values, in both orders of the threads."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backends.cuda.gpu_graphs import CASES
from tests.helpers.graphs import Graph, random
from treadle.backends.reference import evaluate_module
from treadle.backends.reference.run_module import run_module
from treadle.compiler import lower
from treadle.dialects.registry import treadle_context
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
