"""Works and times of candidates from their values: as counted on their kernels, and fast."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, i32

from tests.helpers.graphs import Graph
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp, MatmulOp, ReductionOp, TransposeOp, UnaryOp
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import UseAttr
from treadle.passes.loop.count_gpu_work import count_gpu_work
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.search.candidate import Task
from treadle.schedules.search.predict import Forecast
from treadle.schedules.search.programs import template_program
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target
from treadle.tuning.group_search import ranked_for_gpu
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


@pytest.mark.parametrize(
    ("template", "extents", "dtype"),
    [
        ("matmul_simt", (256, 256, 256), np.float32),
        ("matmul_simt", (130, 208, 148), np.float32),
        ("matmul_simt", (128, 4096, 128), np.float32),
        ("matmul_mma", (512, 512, 512), np.float16),
        ("matmul_mma", (264, 768, 392), np.float16),
        ("matmul_tf32", (256, 512, 256), np.float32),
        ("matmul_tf32", (260, 512, 300), np.float32),
        ("matmul_int8", (512, 512, 512), np.uint8),
        ("matmul_int8", (272, 768, 400), np.int8),
    ],
)
def test_tiles_say_what_is_counted_on_kernels(template: str, extents: tuple[int, int, int], dtype: Dtype) -> None:
    module, known = product(*extents, dtype), TEMPLATES[template]
    anchor = anchor_of(fused_of(module))
    space = list(known.space(anchor, A100))
    for choices in random.Random(template).sample(space, 2):
        work = known.work(anchor, choices, A100)
        assert work is not None
        scheduled = module.clone()
        fused_of(scheduled).schedule = UseAttr.get(template, choices)
        lower(treadle_context(), scheduled, A100, after="schedule", to="loops")
        (kernel,) = [op for op in scheduled.walk() if isinstance(op, FuncOp)]
        assert dataclasses.asdict(work) == pytest.approx(dataclasses.asdict(count_gpu_work(kernel)))


@pytest.mark.parametrize("extents", [(60, 256, 256), (256, 250, 256), (256, 256, 64)])
def test_what_a_tile_does_not_say(extents: tuple[int, int, int]) -> None:
    """Tiles that are larger than the product, and steps beyond the end of K."""
    anchor = anchor_of(fused_of(product(*extents)))
    template = TEMPLATES["matmul_simt"]
    choices = {**template.default(anchor, A100), "warps": (4, 2), "repeats": (2, 2), "thread": (4, 4), "split_k": 1}
    assert template.work(anchor, choices, A100) is None


def test_a_producer_in_the_group_is_not_in_the_tile() -> None:
    graph = Graph(np.zeros((256, 256), np.float32), np.zeros((256, 256), np.float32))
    product = graph.add(MatmulOp(graph[0], graph[1]))
    module = graph.module(graph.add(UnaryOp("relu", product)))
    lower(treadle_context(), module, A100, after="graph", to="fuse")
    anchor = anchor_of(fused_of(module))
    template = TEMPLATES["matmul_simt"]
    assert template.work(anchor, template.default(anchor, A100), A100) is None


@pytest.mark.parametrize(("dtype", "size"), [(np.float32, 104), (np.float16, 192), (np.uint8, 192)])
def test_a_space_is_ranked_without_kernels(dtype: Dtype, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (task,) = tasks_of(product(4096, 4096, 4096, dtype), A100)
    names = {task.default.program}
    search = Task(task.search.anchor, A100, tuple(p for p in task.search.programs if p.sym_name.data in names))
    monkeypatch.delattr("treadle.tuning.group_search.lower")
    ranking = ranked_for_gpu(dataclasses.replace(task, search=search))
    assert len(ranking) == size
    times = dict(ranking)
    assert list(times.values()) == sorted(times.values())
    peak = {4: A100.peak_f32, 2: A100.peak_f16_tensor, 1: A100.peak_int8_tensor}[np.dtype(dtype).itemsize]
    best, worst = ranking[0][1], ranking[-1][1]
    assert 1 < best / (2 * 4096**3 / peak) < 1.5 < worst / best
    assert times[task.default] < 1.3 * best


def test_other_schedules_are_ranked_by_their_kernels() -> None:
    graph = Graph(np.zeros((256, 1024), np.float32))
    module = graph.module(graph.add(ReductionOp("add", graph[0], [1], keep=False)))
    lower(treadle_context(), module, A100, after="graph", to="fuse")
    (task,) = tasks_of(module, A100)
    program = template_program(TEMPLATES["reduce_cuda"], task.search.anchor, A100)
    search = Task(task.search.anchor, A100, (program,))
    candidate = search.distinct()[0]
    assert Forecast(search).seconds(candidate) is None
    ranking = ranked_for_gpu(dataclasses.replace(task, search=search))
    assert len(ranking) == 30
    assert all(1e-6 < seconds < 1e-3 for _, seconds in ranking)
