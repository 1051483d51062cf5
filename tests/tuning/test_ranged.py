"""Searches for models with ranges: what they keep is compiled, dispatched, certified, and right for every shape."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, ValueInfoProto, save_model
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import treadle
from tests.helpers.small_searches import search_little
from treadle.dialects.schedule import UseAttr
from treadle.errors import TreadleError
from treadle.schedules.joint import Weights
from treadle.schedules.rules.templates import templates
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.database import Database, Dispatched
from treadle.schedules.search.learned import Analytic
from treadle.schedules.search.predict import Forecast
from treadle.shapes.dim import normalized
from treadle.target import Target
from treadle.target.host import hardware_of, host_target
from treadle.target.options import CompileOptions
from treadle.tools.arguments import parse_weights
from treadle.tools.treadle_cli import main
from treadle.tuning import tuner
from treadle.tuning.candidates import Predictions
from treadle.tuning.group_search import Group
from treadle.tuning.measure import Comparison, LocalMeasurer, Timing
from treadle.tuning.model import tasks_of_model
from treadle.tuning.tasks import POINTS_TIMED
from treadle.tuning.workers import Workers, this_machine

LONGEST = 64
RANGE = {"x": (3, treadle.Dim("n", 1, LONGEST), 32), "w": (3, treadle.Dim("n", 1, LONGEST), 32)}


@pytest.fixture(autouse=True)
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that cost a test little."""
    search_little(monkeypatch)
    monkeypatch.setattr(tuner, "MEASURED", 2)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """x times the transpose of w, as in attention."""
    inputs = [make_tensor_value_info(name, TensorProto.FLOAT, [3, "n", 32]) for name in ("x", "w")]
    nodes = [make_node("Transpose", ["w"], ["t"], perm=[0, 2, 1]), make_node("MatMul", ["x", "t"], ["y"])]
    graph = make_graph(nodes, "scores", inputs, [ValueInfoProto(name="y")])
    path = tmp_path / "scores.onnx"
    save_model(make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8), str(path))
    return path


class Fake:
    """Instead of times: of the first library, that of the default, ten; else, by the extent, one for half of the
    libraries and nine for the others."""

    def __init__(self) -> None:
        self.first: bytes | None = None
        self.extents: set[int] = set()

    def measure(self, comparison: Comparison) -> list[Timing]:
        (extent,) = comparison.extents
        self.first = self.first or comparison.libraries[0]
        self.extents.add(extent)
        return [Timing(1e-6 * self._number(library, extent)) for library in comparison.libraries]

    def _number(self, library: bytes, extent: int) -> int:
        if library == self.first:
            return 10
        return 1 if (hashlib.sha256(library).digest()[0] % 2 == 0) == (extent <= 8) else 9

    def close(self) -> None: ...


def search(model: Path, folder: Path, measurer: Any, **options: Any) -> list[Group]:
    shapes, trials = options.pop("shapes", RANGE), options.pop("trials", 8)
    with ThreadPoolExecutor(2) as executor:
        return treadle.tune(
            model, folder, shapes, seconds=600, trials=trials, executor=executor, measurer=measurer,
            rules=(templates,), threads=2, **options,
        )  # fmt: skip


def check(compiled: treadle.CompiledModel) -> None:
    for n in (1, 2, 7, 8, 9, 16, 31, LONGEST):
        x, w = (np.random.default_rng(n + k).standard_normal((3, n, 32)).astype(np.float32) for k in range(2))
        (y,) = compiled(x, w)
        np.testing.assert_allclose(y, x @ w.transpose(0, 2, 1), rtol=1e-5, atol=32 * 1e-5)


def test_kernels_are_dispatched_as_they_were_measured(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake, folder = Fake(), tmp_path / "tuned"
    (group,) = search(model, folder, fake)
    assert len(fake.extents) == POINTS_TIMED
    assert {1, LONGEST} <= fake.extents
    assert (group.default_seconds, group.best_seconds) == pytest.approx((10e-6, 1e-6))
    entry = Database(folder).find(group.task.digest, hardware_of(host_target()))
    assert entry is not None
    assert isinstance(entry.schedule, Dispatched)
    assert len(entry.schedule.kernels) == 2
    assert entry.symbols == (f"n:1..{LONGEST}",)
    assert [each.seconds[-1] for each in entry.schedule.predicted] == pytest.approx([1e-6] * POINTS_TIMED)
    with treadle.compile(model, "cpu", RANGE, database=folder, cached=False) as compiled:
        check(compiled)
        assert "#schedule.tree<" in compiled.artifact.module_text()
        assert main(["certify", str(compiled.folder)]) == 0
    assert "worst 0.0%, mean 0.0%" in capsys.readouterr().out


def test_real_times_and_results(model: Path, tmp_path: Path) -> None:
    """Every candidate is compared with the definition, where elements are required; nothing here asks who wins."""
    measurer = LocalMeasurer()
    try:
        (group,) = search(model, tmp_path / "tuned", measurer, trials=4)
    finally:
        measurer.close()
    assert group.failures == 0
    assert group.best_seconds is not None
    with treadle.compile(model, "cpu", RANGE, database=tmp_path / "tuned", cached=False) as compiled:
        check(compiled)


def test_one_kernel_that_is_best_everywhere_is_no_dispatch(model: Path, tmp_path: Path) -> None:
    class Digests(Fake):
        def _number(self, library: bytes, extent: int) -> int:
            return 10 if library == self.first else 1 + hashlib.sha256(library).digest()[0]

    (group,) = search(model, tmp_path / "tuned", Digests())
    entry = Database(tmp_path / "tuned").find(group.task.digest, hardware_of(host_target()))
    assert entry is not None
    assert isinstance(entry.schedule, UseAttr)


def test_weights_give_the_points(model: Path, tmp_path: Path) -> None:
    fake = Fake()
    search(model, tmp_path / "tuned", fake, weights={"n": {5: 3.0, 17: 1.0}}, trials=2)
    assert fake.extents == {5, 17}


def test_a_database_of_another_range(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (group,) = search(model, tmp_path / "tuned", Fake())
    other = {name: (3, treadle.Dim("n", 2, LONGEST), 32) for name in RANGE}
    with treadle.compile(model, "cpu", other, database=tmp_path / "tuned", cached=False):
        pass
    (line,) = [line for line in capsys.readouterr().err.splitlines() if group.task.digest in line]
    assert line.endswith(f"the entry was tuned for the range n:1..{LONGEST}; accepted: n:2..{LONGEST}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"1": 1}', None),
        ("[1]", "is no object"),
        ("{", "is no JSON"),
        ('{"x": 1}', "'x' has the weight 1"),
        ('{"1": "often"}', "'1' has the weight 'often'"),
        ('{"1": -2}', "the weight of 1 is -2"),
        ('{"65": 2}', "the extent 65 is not in the range"),
        ('{"1": 0}', "no value has a weight above 0"),
        ('{"1": NaN}', "the weight of 1 is nan"),
    ],
)
def test_histograms(
    model: Path, tmp_path: Path, content: str, message: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(content)
    shape = ["--shape", f"n=1..{LONGEST}"]
    if message is None:
        assert parse_weights([f"n={path}"]) == {"n": {1: 1.0}}
        return
    code = main(["tune", str(model), *shape, "--database", str(tmp_path / "t"), "--weights", f"n={path}"])
    assert code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("treadle: ")]
    assert message in line


@pytest.mark.parametrize(
    ("weights", "message"),
    [(["n"], "cannot read 'n'"), (["n=a", "n=b"], "two files for 'n'"), (["n=missing.json"], "cannot read")],
)
def test_bad_arguments(
    model: Path, tmp_path: Path, weights: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    given = [word for each in weights for word in ("--weights", each)]
    if weights[0] == "n=a":
        (tmp_path / "a").write_text(json.dumps({"1": 1}))
        given = ["--weights", f"n={tmp_path / 'a'}", "--weights", "n=b"]
    assert main(["tune", str(model), "--shape", "n=1..8", "--database", str(tmp_path / "t"), *given]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shapes", "weights"),
    [(RANGE, {"m": {1: 1.0}}), ({"x": (3, 8, 32), "w": (3, 8, 32)}, {"n": {1: 1.0}})],
)
def test_unknown_symbols(
    model: Path, tmp_path: Path, shapes: Mapping[str, Any], weights: Mapping[str, Mapping[int, float]]
) -> None:
    with pytest.raises(TreadleError, match="the model has no symbol"):
        search(model, tmp_path / "tuned", Fake(), shapes=shapes, weights=weights)


def test_stale_entries_of_a_range_are_searched_again(model: Path, tmp_path: Path) -> None:
    with pytest.raises(TreadleError, match="the model has a range"):
        search(model, tmp_path / "tuned", Fake(), stale=True)


@pytest.mark.parametrize("target", ["avx2", "sm_80"])
def test_candidates_are_ranked_by_the_calls_of_the_range(model: Path, target: str) -> None:
    """DietCode's cost: the mean over points, with the rounds and the padding of each; not that of the largest call."""
    few, most = (ranking(model, target, {"n": {length: 1.0}}) for length in (1, LONGEST))
    assert few.keys() == most.keys()
    mean = ranking(model, target, {"n": {1: 0.75, LONGEST: 0.25}})
    for candidate, seconds in mean.items():
        assert seconds == pytest.approx(0.75 * few[candidate] + 0.25 * most[candidate])
    if target == "avx2":
        assert min(few, key=few.__getitem__) != min(most, key=most.__getitem__)
    else:
        alone = static_seconds(model, target, 1, list(few))
        assert few == pytest.approx(alone, rel=0.02)


def ranking(model: Path, target: str, weights: Weights) -> dict[Candidate, float]:
    """The predicted seconds of the templates' kernels for a range of which calls have these lengths."""
    machine = Target.parse(target)
    (task,) = tasks_of_model(model, machine, normalized(RANGE), CompileOptions(), weights=weights)
    found = [each for each in task.search.of_templates() if each.program.startswith("matmul")]
    with ThreadPoolExecutor(1) as executor:
        times = Predictions(task, Workers(executor, this_machine()), Analytic())(found)
    return {each: seconds for each, seconds in zip(found, times, strict=True) if seconds is not None}


def static_seconds(model: Path, target: str, length: int, candidates: Sequence[Candidate]) -> dict[Candidate, float]:
    """The same of a model of one length."""
    static = normalized({name: (3, length, 32) for name in ("x", "w")})
    machine, options = Target.parse(target), CompileOptions()
    (task,), (whole,) = (tasks_of_model(model, machine, shapes, options) for shapes in (static, normalized(RANGE)))
    forecast = Forecast(task.search)
    return {each: forecast.seconds_of(whole.search.replay(each)) for each in candidates}
