"""A row times a transposed matrix on a GPU: the terms of a result lie next to one another."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.graphs import Graph
from tests.schedules.tensor_cores import GPU, assert_product, sample
from treadle.backends.cuda.emulator import CHECKS
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp, MatmulOp, TransposeOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import UseAttr
from treadle.environment import Environment


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("terms", [512, 304])
def test_every_byte_of_a_sector_is_used(turned: bool, terms: int, emulator_environment: Environment) -> None:
    graph = Graph(sample((1, terms), "float16", 0), sample((64, terms) if turned else (terms, 64), "float16", 1))
    weight = graph.add(TransposeOp(graph[1], [1, 0])) if turned else graph[1]
    module = graph.module(graph.add(MatmulOp(graph[0], weight)))
    lower(treadle_context(), module, GPU, to="schedule")
    uses = [op.schedule for op in module.walk() if isinstance(op, FusedOp)]
    template = "reduce_cuda" if turned else "matmul_rows_mma"
    assert [use.template.data for use in uses if isinstance(use, UseAttr)] == [template]
    lower(treadle_context(), module, GPU, after="schedule", to="lower")
    (result,), reports = EmulatedProgram(module, tuple(CHECKS), environment=emulator_environment).run(graph.inputs)
    assert not [str(report) for report in reports if report.findings]
    a, b = graph.inputs
    assert_product(result, a, np.swapaxes(b, 0, 1) if turned else b)
    _, (report,) = EmulatedProgram(module, (), counters=True, environment=emulator_environment).run(graph.inputs)
    assert report.counters is not None
    total = report.counters.total
    assert 0 < total.global_sectors <= 1.1 * total.global_ideal
