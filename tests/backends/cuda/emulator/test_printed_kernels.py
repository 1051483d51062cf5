"""The pipeline's own kernels: they agree with NumPy on the emulator, and every check holds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph, random
from treadle.backends.cuda.emulator import CHECKS
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.backends.reference import evaluate_module
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import BinaryOp, ConvOp, MatmulOp, PoolOp, ReductionOp, SoftmaxOp, TransposeOp, UnaryOp
from treadle.dialects.registry import treadle_context
from treadle.environment import Environment
from treadle.errors import TreadleError
from treadle.target import Target

Build = Callable[[Graph], SSAValue]


def _mlp(g: Graph) -> SSAValue:
    hidden = g.add(UnaryOp("relu", g.add(MatmulOp(g[0], g[1]))))
    return g.add(SoftmaxOp(g.add(MatmulOp(hidden, g.constant(random(33, 20, seed=3)))), 1))


def _convolution(g: Graph) -> SSAValue:
    weights = g.constant(random(6, 3, 3, 3, seed=4) / 5)
    return g.add(
        PoolOp("max", g.add(ConvOp(g[0], weights, [1, 1], [1] * 4, [1, 1], 1)), [2, 2], [2, 2], [0] * 4, [1, 1])
    )


def _mean(g: Graph) -> SSAValue:
    return g.add(BinaryOp("sub", g[0], g.add(ReductionOp("mean", g[0], [1], keep=True))))


GRAPHS: dict[str, tuple[Build, tuple[tuple[int, ...], ...]]] = {
    "matmul with a ragged edge": (lambda g: g.add(MatmulOp(g[0], g[1])), ((45, 37), (37, 70))),
    "batched matmul": (lambda g: g.add(MatmulOp(g[0], g[1])), ((3, 20, 16), (3, 16, 24))),
    "matmul of aligned tiles": (lambda g: g.add(MatmulOp(g[0], g[1])), ((64, 64), (64, 64))),
    "two layers and a softmax": (_mlp, ((17, 48), (48, 33))),
    "convolution and pooling": (_convolution, ((2, 3, 10, 12),)),
    "a sum over rows": (lambda g: g.add(ReductionOp("add", g[0], [1], keep=False)), ((37, 300),)),
    "a maximum over columns": (lambda g: g.add(ReductionOp("max", g[0], [0], keep=False)), ((300, 37),)),
    "deviation from the mean": (_mean, ((9, 130),)),
    "a transposed copy": (lambda g: g.add(TransposeOp(g.add(UnaryOp("tanh", g[0])), [1, 0])), ((40, 33),)),
}


@pytest.mark.parametrize("checks", [(), tuple(CHECKS)], ids=["fast", "checked"])
@pytest.mark.parametrize("name", list(GRAPHS))
def test_kernels_agree_with_numpy_and_are_clean(
    name: str, checks: tuple[str, ...], emulator_environment: Environment
) -> None:
    build, shapes = GRAPHS[name]
    graph = Graph(*(random(*shape, seed=seed) for seed, shape in enumerate(shapes)))
    module = graph.module(build(graph))
    (expected,) = evaluate_module(module, graph.inputs)
    lower(treadle_context(), module, Target.parse("sm_80"))
    (result,), reports = EmulatedProgram(module, checks, environment=emulator_environment).run(graph.inputs)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5 * max(1.0, float(np.abs(expected).max())))
    assert reports and not [str(report) for report in reports if report.findings]


def test_inputs_that_do_not_fit(emulator_environment: Environment) -> None:
    graph = Graph(random(4, 8))
    module = graph.module(graph.add(UnaryOp("relu", graph[0])))
    lower(treadle_context(), module, Target.parse("sm_80"))
    with pytest.raises(TreadleError, match=r"inputs of other shapes or types; accepted: input0: float32\[4, 8\]"):
        EmulatedProgram(module, (), environment=emulator_environment).run([random(8, 4)])
