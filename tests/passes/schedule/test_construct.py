"""Schedules that are chosen by predicted time: what is chosen, what stays, and that values are those of the default."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

import treadle
from tests.helpers.graphs import Graph
from tests.helpers.small_searches import search_little
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp, MatmulOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import UseAttr
from treadle.errors import TreadleError
from treadle.passes.schedule.construct import constructed, decision, search_of, template_programs
from treadle.passes.schedule.schedule_select import ScheduleSelectPass, check_use, default_schedule
from treadle.schedules.search.predict import Forecast
from treadle.schedules.search.strategies import STRATEGIES
from treadle.target import Target
from treadle.target.options import CONSTRUCTIONS


def products(target: Target) -> ModuleOp:
    """Two equal products and another one, after stage `fuse`."""
    shapes = [(24, 40), (40, 48), (24, 40), (40, 48), (8, 200), (200, 16)]
    graph = Graph(*(np.zeros(shape, np.float32) for shape in shapes))
    module = graph.module(*(graph.add(MatmulOp(graph[n], graph[n + 1])) for n in (0, 2, 4)))
    lower(treadle_context(), module, target, after="graph", to="fuse")
    return module


@pytest.mark.parametrize("name", ["sm_80", "avx2"])
def test_what_an_exhaustive_search_predicts_to_be_fastest_is_chosen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.passes.schedule.construct.LEAST_GAIN", 0.0)
    target = Target.parse(name)
    module = products(target)
    fused = next(op for op in module.walk() if isinstance(op, FusedOp))
    task, default = search_of(fused, default_schedule(fused, target), target, template_programs)
    found, forecast = constructed(task, default, "exhaustive"), Forecast(task)
    times = [seconds for seconds in forecast(task.distinct()) if seconds is not None]
    assert forecast.seconds(found) == min(times)
    use = decision(task, found)
    assert isinstance(use, UseAttr)
    check_use(fused, use, target, "test")


def test_equal_groups_are_searched_once_and_get_one_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    search_little(monkeypatch)
    target = Target.parse("sm_80")
    module = products(target)
    ScheduleSelectPass(target="sm_80", construct="evolution").apply(treadle_context(), module)
    first, second, _ = [op.schedule for op in module.walk() if isinstance(op, FusedOp)]
    assert first is not None and first == second
    module.verify()


@pytest.mark.parametrize(
    ("target", "construct"),
    [
        *(("cpu", construct) for construct in ("walk", "walk-paper", "greedy", "exhaustive")),
        *(("sm_80", construct) for construct in ("walk", "greedy", "exhaustive")),
        pytest.param("sm_80", "walk-paper", marks=pytest.mark.slow),
        pytest.param("cpu", "evolution-annealed", marks=pytest.mark.slow),
    ],
)
def test_what_is_constructed_computes_the_same(target: str, construct: str) -> None:
    generator = np.random.default_rng(0)
    x, w = (generator.standard_normal(shape).astype(np.float32) for shape in ((24, 40), (40, 48)))
    graph = Graph(x, w)
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    device = None if target == "cpu" else "emulator"
    model = treadle.compile(module, target, construct=construct, device=device)
    (y,) = model(x, w)
    np.testing.assert_allclose(y, x @ w, rtol=1e-4, atol=1e-4)


def test_a_construction_that_there_is_not() -> None:
    accepted = "default, walk, walk-paper, greedy, exhaustive, evolution, evolution-annealed"
    with pytest.raises(TreadleError, match=f"unknown construction 'best'; accepted: {accepted}"):
        treadle.compile(ModuleOp([]), construct="best")


def test_constructions_are_strategies() -> None:
    assert {*CONSTRUCTIONS} - {"default"} == {*STRATEGIES} - {"random"}


def test_what_is_hardly_faster_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target.parse("sm_80")
    graph = Graph(np.zeros((128, 96), np.float32), np.zeros((96, 64), np.float32))
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    lower(treadle_context(), module, target, after="graph", to="fuse")
    (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    task, default = search_of(fused, default_schedule(fused, target), target, template_programs)
    found, forecast = constructed(task, default, "exhaustive"), Forecast(task)
    assert found != default
    gain = 1 - forecast.seconds(found) / forecast.seconds(default)
    monkeypatch.setattr("treadle.passes.schedule.construct.LEAST_GAIN", gain + 0.01)
    assert constructed(task, default, "exhaustive") == default
