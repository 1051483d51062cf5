"""Kernels that are constructed for a range: which are taken, and that every call computes what is defined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, ValueInfoProto, save_model
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import treadle
from tests.helpers.graphs import Graph
from tests.helpers.small_searches import search_little
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp, MatmulOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import DispatchAttr, UseAttr
from treadle.errors import TreadleError
from treadle.ir import parse
from treadle.passes.schedule import construct, ranged_schedule
from treadle.passes.schedule.construct import constructed_range, search_of, spread, template_programs
from treadle.passes.schedule.schedule_select import PointTimes, ScheduleSelectPass, default_schedule, module_points
from treadle.schedules.joint import Point
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.database import Dispatched
from treadle.shapes.decision_tree import kernel_for
from treadle.target import Target

AVX2 = Target.parse("avx2")
POINTS = [Point((n,), (n,), 0.125) for n in (1, 2, 4, 8, 16, 32, 48, 64)]


@pytest.fixture
def any_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever gains anything is used."""
    for limit in ("LEAST_GAIN_OF_KERNEL", "LEAST_LOSS"):
        monkeypatch.setattr(construct, limit, 0.0)


@dataclass
class Fake:
    """Seconds by the rows of a product's tile: the nearer to those that a point wants, the fewer.

    illegal: rows that no point may have; unknown: what nothing predicts
    """

    wanted: Sequence[int]
    illegal: int = 0
    unknown: Candidate | None = None

    def at(self, candidate: Candidate, search: Task, number: int) -> float:
        if candidate == self.unknown:
            return inf
        use = search.replay(candidate)
        assert isinstance(use, UseAttr)
        rows = use.knobs().get("rows")
        if not isinstance(rows, int):
            return inf
        if rows == self.illegal:
            raise TreadleError("not legal here")
        return 1.0 + abs(rows - self.wanted[number])


def search() -> tuple[Task, Candidate]:
    graph = Graph(np.zeros((64, 96), np.float32), np.zeros((96, 64), np.float32))
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    lower(treadle_context(), module, AVX2, after="graph", to="fuse")
    (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    return search_of(fused, default_schedule(fused, AVX2), AVX2, template_programs)


def rows_of(schedule: object) -> object:
    assert isinstance(schedule, UseAttr)
    return schedule.knobs()["rows"]


@pytest.mark.usefixtures("any_gain")
def test_each_end_of_a_range_gets_the_kernel_that_is_constructed_for_it() -> None:
    task, default = search()
    found = constructed_range(task, [default], POINTS, Fake([1, 1, 1, 1, 2, 2, 2, 2]), "exhaustive")
    assert isinstance(found, Dispatched)
    assert [rows_of(found.kernels[kernel_for(found.tree, (n,))]) for n in (1, 8, 9, 64)] == [1, 1, 2, 2]
    assert [each.seconds[-1] for each in found.predicted] == [1.0] * len(POINTS)


@pytest.mark.usefixtures("any_gain")
def test_one_kernel_that_is_the_best_everywhere_stands_alone() -> None:
    task, default = search()
    found = constructed_range(task, [default], POINTS, Fake([1] * 8), "exhaustive")
    assert rows_of(found) == 1


@pytest.mark.usefixtures("any_gain")
def test_known_kernels_that_are_as_good_stay() -> None:
    task, default = search()
    rows = rows_of(task.replay(default))
    assert isinstance(rows, int)
    assert constructed_range(task, [default], POINTS, Fake([rows] * 8), "exhaustive") is None


@pytest.mark.usefixtures("any_gain")
def test_what_is_not_legal_at_a_point_is_not_proposed_there() -> None:
    task, default = search()
    found = constructed_range(task, [default], POINTS, Fake([1] * 8, illegal=1), "exhaustive")
    assert rows_of(found) == 2


@pytest.mark.usefixtures("any_gain")
def test_a_default_that_is_not_predicted_stays() -> None:
    task, default = search()
    assert constructed_range(task, [default], POINTS, Fake([1] * 8, unknown=default), "exhaustive") is None


def test_points_at_which_kernels_are_constructed() -> None:
    assert [spread(count) for count in (1, 2, 4, 16)] == [[0], [0, 1], [0, 1, 2, 3], [0, 5, 10, 15]]


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    """x times the transpose of w, as in attention."""
    inputs = [make_tensor_value_info(name, TensorProto.FLOAT, [2, "n", 24]) for name in ("x", "w")]
    nodes = [make_node("Transpose", ["w"], ["t"], perm=[0, 2, 1]), make_node("MatMul", ["x", "t"], ["y"])]
    graph = make_graph(nodes, "scores", inputs, [ValueInfoProto(name="y")])
    path = tmp_path / "scores.onnx"
    save_model(make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8), str(path))
    return path


@pytest.mark.usefixtures("any_gain")
@pytest.mark.parametrize(
    ("target", "strategy"),
    [("avx2", "exhaustive"), ("avx2", "evolution"), ("sm_80", "evolution")],
)
def test_every_call_computes_the_same(
    scores: Path, target: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As compiled C, and as CUDA in the emulator."""
    search_little(monkeypatch)
    ranged = {name: (2, treadle.Dim("n", 1, 40), 24) for name in ("x", "w")}
    device = None if target == "avx2" else "emulator"
    with treadle.compile(scores, target, ranged, construct=strategy, cached=False, device=device) as model:
        assert model.artifact.module_text() != _default_text(scores, target, ranged)
        for n in (1, 2, 7, 17, 40):
            x, w = (np.random.default_rng(n + k).standard_normal((2, n, 24)).astype(np.float32) for k in range(2))
            (y,) = model(x, w)
            exact = x.astype(np.float64) @ w.astype(np.float64).transpose(0, 2, 1)
            assert np.abs(y - exact).max() <= 24 * np.finfo(np.float32).eps * np.abs(exact).max()


def _default_text(path: Path, target: str, ranged: Mapping[str, Sequence[int | treadle.Dim]]) -> str:
    with treadle.compile(path, target, ranged, cached=False) as model:
        return model.artifact.module_text()


PRODUCT = """
func.func @main(%x: tensor<128x64xf32>, %w: tensor<64x96xf32>, %n: tensor<i64>) -> tensor<128x96xf32>
    attributes {symbols = ["n:1..128"], extents = ["n"]} {
  %y = graph.fused "product" {
    %m = graph.matmul %x, %w : (tensor<128x64xf32>, tensor<64x96xf32>) -> tensor<128x96xf32>
    graph.yield %m : tensor<128x96xf32>
  } requires [#graph.required<d0 < 0>] : tensor<128x96xf32>
  func.return %y : tensor<128x96xf32>
}"""


def test_what_is_constructed_is_predicted_to_be_faster() -> None:
    """Of the calls of a range together, by the predictions that the choice is made by."""
    default, found = (_selected(PRODUCT, "sm_80", construct) for construct in ("default", "exhaustive"))
    assert found[0] != default[0]
    assert sum(found[1]) < (1 - ranged_schedule.LEAST_LOSS) * sum(default[1])


def _selected(text: str, target: str, construct: str) -> tuple[str, list[float]]:
    """The decision for a module's group, and its predicted seconds at each point of the range."""
    module = parse(text)
    ScheduleSelectPass(target=target, construct=construct).apply(treadle_context(), module)
    (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    points = module_points(fused)
    times = PointTimes.of(fused, points, Target.parse(target))
    schedule = fused.schedule
    assert times is not None and schedule is not None
    kernels = schedule.alternatives.data if isinstance(schedule, DispatchAttr) else (schedule,)
    seconds = [times.of_use(use) for use in kernels if isinstance(use, UseAttr)]
    tree = schedule.tree.data if isinstance(schedule, DispatchAttr) else None
    taken = [0 if tree is None else kernel_for(tree, point.extents) for point in points]
    return str(schedule), [seconds[kernel][n] for n, kernel in enumerate(taken)]
