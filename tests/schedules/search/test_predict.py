"""Works and times of candidates from their values: as counted on their kernels, and fast."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, i32

from tests.helpers.graphs import Graph
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp, MatmulOp, ReductionOp, TransposeOp
from treadle.dialects.registry import treadle_context
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.predict import Forecast
from treadle.schedules.search.programs import template_program
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target
from treadle.tuning.tasks import tasks_of

A100 = Target.parse("sm_80")
Dtype = type[np.float32 | np.float16 | np.int8 | np.uint8]


def product(m: int, k: int, n: int, dtype: Dtype = np.float32) -> ModuleOp:
    """A product after stage `fuse`; of bytes the right operand lies along K."""
    of_bytes = dtype in (np.int8, np.uint8)
    graph = Graph(np.zeros((m, k), dtype), np.zeros((n, k) if of_bytes else (k, n), dtype))
    right = graph.add(TransposeOp(graph[1], [1, 0])) if of_bytes else graph[1]
    module = graph.module(graph.add(MatmulOp(graph[0], right, sums=i32 if of_bytes else None)))
    lower(treadle_context(), module, A100, after="graph", to="define")
    lower(treadle_context(), module, A100, after="define", to="fuse")
    return module


def fused_of(module: ModuleOp) -> FusedOp:
    (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    return fused


def ranked(task: Task) -> list[tuple[Candidate, float]]:
    """All candidates with their predicted seconds, fastest first."""
    forecast = Forecast(task)
    return sorted(((each, forecast.seconds(each)) for each in task.distinct()), key=lambda pair: pair[1])


@pytest.mark.parametrize(("dtype", "size"), [(np.float32, 104), (np.float16, 192), (np.uint8, 192)])
def test_a_space_is_ranked_without_kernels(dtype: Dtype, size: int) -> None:
    (task,) = tasks_of(product(4096, 4096, 4096, dtype), A100)
    names = {task.default.program}
    search = Task(task.search.anchor, A100, tuple(p for p in task.search.programs if p.sym_name.data in names))
    ranking = ranked(search)
    assert len(ranking) == size
    times = dict(ranking)
    assert list(times.values()) == sorted(times.values())
    peak = {4: A100.peak_f32, 2: A100.peak_f16_tensor, 1: A100.peak_int8_tensor}[np.dtype(dtype).itemsize]
    best, worst = ranking[0][1], ranking[-1][1]
    assert 1 < best / (2 * 4096**3 / peak) < 1.5 < worst / best
    assert times[task.default] < 1.3 * best


def test_any_template_is_ranked() -> None:
    graph = Graph(np.zeros((256, 1024), np.float32))
    module = graph.module(graph.add(ReductionOp("add", graph[0], [1], keep=False)))
    lower(treadle_context(), module, A100, after="graph", to="fuse")
    (task,) = tasks_of(module, A100)
    program = template_program(TEMPLATES["reduce_cuda"], task.search.anchor, A100)
    ranking = ranked(Task(task.search.anchor, A100, (program,)))
    assert len(ranking) == 30
    assert all(1e-6 < seconds < 1e-3 for _, seconds in ranking)
