"""Schedules are confirmed in the whole model: what is kept, what is dropped, and what the database says of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers.small_searches import search_little
from tests.tuning.small_model import write_model
from treadle.schedules.rules.templates import templates
from treadle.schedules.search.database import Database
from treadle.target.host import hardware_of, host_target
from treadle.target.options import CompileOptions
from treadle.tools.tune_command import model_lines
from treadle.tuning import tuner
from treadle.tuning.child import CallEndedError
from treadle.tuning.group_search import Group
from treadle.tuning.in_model import ModelTimer, ModelTimes, Ratio, reserved, verdicts
from treadle.tuning.measure import Comparison, LocalMeasurer, Timing
from treadle.tuning.model import tasks_of_model, tune
from treadle.tuning.tasks import GroupTask

ROUNDS = 8


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.onnx")


@pytest.fixture
def tasks(model: Path) -> list[GroupTask]:
    return tasks_of_model(model, host_target(), {}, CompileOptions(), rules=(templates,))


def times(tuned: Sequence[float], tasks: Sequence[GroupTask], whole: float) -> ModelTimes:
    """Every launch of the default takes one second; of the tuned model those of each task and a call are given."""
    default = {name: [1.0] * ROUNDS for task in tasks for name in task.nodes}
    after = {name: [each] * ROUNDS for task, each in zip(tasks, tuned, strict=True) for name in task.nodes}
    return ModelTimes(([1.0] * ROUNDS, [whole] * ROUNDS), (default, after))


def endless() -> float:
    return math.inf


def test_tasks_know_the_nodes_of_all_equal_groups(tasks: list[GroupTask]) -> None:
    assert [task.nodes for task in tasks] == [("MatMul 'a', Relu 'b'", "MatMul 'c', Relu 'd'"), ("Softmax 'y'",)]


def test_a_ratio_that_wavers_is_less_sure() -> None:
    steady, wavering = Ratio.of([2.0] * 9, [1.0] * 9), Ratio.of([1.0, 2.0, 3.0] * 3, [1.0] * 9)
    assert steady == Ratio(2.0, 2.0)
    # Quartiles 1 and 3, of 9 rounds: 2 - 1.57 * 2 / 3.
    assert wavering.median == 2
    assert wavering.least == pytest.approx(2 - 1.57 * 2 / 3)


def test_what_is_slower_in_the_model_is_dropped_and_the_rest_timed_again(tasks: list[GroupTask]) -> None:
    asked: list[int] = []

    def timed(waiting: Sequence[GroupTask]) -> ModelTimes:
        asked.append(len(waiting))
        return times([0.5, 1.1][: len(waiting)], waiting, 0.8)

    found = verdicts(tasks, timed, endless)
    assert asked == [2, 1]
    assert [found[task.digest].kept for task in tasks] == [True, False]
    assert found[tasks[0].digest].text == "2.000x, in a model 1.250 times as fast"
    assert found[tasks[1].digest].text == "dropped: 0.909x, not faster in the model"


def test_of_a_model_that_became_slower_the_half_with_the_least_gain_is_dropped(tasks: list[GroupTask]) -> None:
    found = verdicts(
        tasks, lambda waiting: times([0.9, 0.5][-len(waiting) :], waiting, 1.25 if len(waiting) == 2 else 0.8), endless
    )
    assert [found[task.digest].kept for task in tasks] == [False, True]
    assert found[tasks[0].digest].text == "dropped: 1.111x, a model with it and others is not certainly faster (0.800x)"


def test_a_model_that_never_becomes_faster_keeps_nothing(tasks: list[GroupTask]) -> None:
    found = verdicts(tasks, lambda waiting: times([0.9] * len(waiting), waiting, 1.0), endless)
    assert [found[task.digest].kept for task in tasks] == [False, False]


def test_launches_that_are_not_in_the_model_confirm_nothing(tasks: list[GroupTask]) -> None:
    found = verdicts(tasks[:1], lambda waiting: times([0.5], tasks[1:], 0.5), endless)
    assert found[tasks[0].digest].text == "dropped: no launch, not faster in the model"


@pytest.mark.parametrize(("left", "calls"), [([-1.0, -1.0], 1), ([5.0, -1.0], 1), ([5.0, 5.0, 5.0], 2)])
def test_what_there_is_no_time_for_is_dropped(tasks: list[GroupTask], left: list[float], calls: int) -> None:
    """The first attempt has the time that was kept for it; later ones are as long as it was."""
    asked: list[int] = []

    def timed(waiting: Sequence[GroupTask]) -> ModelTimes:
        asked.append(len(waiting))
        return times([0.5, 1.1][: len(waiting)], waiting, 0.8)

    remaining = iter(left)
    found = verdicts(tasks, timed, lambda: next(remaining))
    assert len(asked) == calls
    assert found[tasks[0].digest].kept == (calls == 2)
    assert calls == 2 or found[tasks[0].digest].text == "dropped: no time was left to confirm it in the model"


def test_a_model_that_crashes_keeps_nothing(tasks: list[GroupTask]) -> None:
    def timed(_: Sequence[GroupTask]) -> ModelTimes:
        raise CallEndedError("it ended the process that ran it (SIGSEGV)")

    found = verdicts(tasks, timed, endless)
    assert {each.text for each in found.values()} == {
        "dropped: the model failed, it ended the process that ran it (SIGSEGV)"
    }


def test_a_fifth_of_the_time_is_kept_for_the_model() -> None:
    assert [reserved(seconds) for seconds in (30, 100, 900)] == [0.0, 20.0, 180.0]


def slow_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is timed first of a group is slower than everything else; rounds are short."""
    defaults: dict[str, bytes] = {}

    def measure(_: LocalMeasurer, comparison: Comparison) -> list[Timing]:
        default = defaults.setdefault(comparison.text, comparison.libraries[0])
        return [Timing(3e-6 if library == default else 1e-6) for library in comparison.libraries]

    monkeypatch.setattr(LocalMeasurer, "measure", measure)
    search_little(monkeypatch)
    monkeypatch.setattr(tuner, "MEASURED", 2)


def searched(model: Path, folder: Path) -> list[Group]:
    with ThreadPoolExecutor(2) as executor:
        return tune(model, folder, seconds=600, trials=6, rules=(templates,), executor=executor)


@pytest.mark.parametrize(("seconds", "kept"), [(0.5, True), (1.5, False)])
def test_the_database_has_what_the_model_confirmed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, kept: bool
) -> None:
    slow_default(monkeypatch)

    def answer(_: ModelTimer, tasks: Sequence[GroupTask]) -> ModelTimes:
        return times([seconds] * len(tasks), tasks, seconds)

    monkeypatch.setattr(ModelTimer, "__call__", answer)
    groups = searched(model, tmp_path / "db")
    judged = [group for group in groups if group.in_model is not None]
    assert judged
    for group in judged:
        assert group.in_model is not None
        assert (group.in_model.kept, group.confirmed, group.best != group.default) == (kept, kept, kept)
        entry = Database(tmp_path / "db").find(group.task.digest, hardware_of(host_target()))
        assert entry is not None
        assert group.best is not None
        assert entry.schedule == group.task.search.replay(group.best)
        assert entry.record.in_model == group.in_model.text
        assert entry.record.in_model.startswith("dropped: ") != kept
        assert (entry.record.us < entry.record.default_us) == kept
    *lines, outcome = model_lines(groups)
    assert lines == [f"{g.task}: {g.in_model.text}" for g in judged if g.in_model is not None]
    if kept:
        assert outcome == f"{_schedules(len(judged))} kept; the whole model: 1000 -> 500 ms, 2.000 times as fast"
    else:
        assert outcome.startswith(
            "no schedule is better than the default outside the noise: the defaults are kept; with "
        )
        assert outcome.endswith("1000 -> 1500 ms, 0.667 times as fast")


def _schedules(count: int) -> str:
    return "1 schedule is" if count == 1 else f"{count} schedules are"


@pytest.mark.parametrize(
    ("again", "tuned", "kept"),
    [
        ([1.0] * ROUNDS, [0.98] * ROUNDS, True),
        ([0.97] * ROUNDS, [0.98] * ROUNDS, False),
        ([1.03] * ROUNDS, [0.98] * ROUNDS, False),
        ([0.9, 1.1] * (ROUNDS // 2), [0.98] * ROUNDS, False),
        ([0.97] * ROUNDS, [0.9] * ROUNDS, True),
    ],
)
def test_a_model_has_to_be_faster_by_more_than_the_default_differs_from_itself(
    tasks: list[GroupTask], again: list[float], tuned: list[float], kept: bool
) -> None:
    def timed(waiting: Sequence[GroupTask]) -> ModelTimes:
        return replace(times([0.5] * len(waiting), waiting, 1.0), calls=([1.0] * ROUNDS, tuned), again=again)

    found = verdicts(tasks, timed, endless)
    assert {each.kept for each in found.values()} == {kept}
    assert all("two runs of the default differ by" in each.model for each in found.values())


def test_a_busy_machine_is_said(tasks: list[GroupTask]) -> None:
    found = replace(times([0.5], tasks[:1], 0.5), waited=0.37)
    assert "other programs ran: threads waited for a core 37% of the time" in found.text
    assert "other programs" not in times([0.5], tasks[:1], 0.5).text


def test_a_search_that_compares_no_models_says_why(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_default(monkeypatch)
    with ThreadPoolExecutor(2) as executor:
        measurer = Elsewhere()
        groups = tune(
            model, tmp_path / "db2", seconds=600, trials=6, rules=(templates,), executor=executor, measurer=measurer
        )
    *_, outcome = model_lines(groups)
    assert outcome.endswith("kernel by kernel, not in the whole model: kernels were measured elsewhere")


class Elsewhere:
    """Times that say that defaults are slow."""

    def __init__(self) -> None:
        self._defaults: dict[str, bytes] = {}

    def measure(self, comparison: Comparison) -> list[Timing]:
        default = self._defaults.setdefault(comparison.text, comparison.libraries[0])
        return [Timing(3e-6 if library == default else 1e-6) for library in comparison.libraries]

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [((0.9,) * 9, True), ((), True), ((0.5, 0.9, 1.6) * 3, False)],
)
def test_alone_a_gain_has_to_exceed_what_it_wavers_by(rounds: tuple[float, ...], expected: bool) -> None:
    default = Timing(1.0, rounds=(1.0,) * len(rounds))
    assert tuner._is_faster(Timing(0.9, rounds=rounds), default) == expected  # pyright: ignore[reportPrivateUsage]


def test_a_model_is_timed_with_and_without_its_schedules(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled, loaded in another process and run: the launches of both sides compute the same nodes."""
    slow_default(monkeypatch)
    found: list[ModelTimes] = []
    measured = ModelTimer.__call__

    def kept(timer: ModelTimer, tasks: Sequence[GroupTask]) -> ModelTimes:
        found.append(measured(timer, tasks))
        return found[-1]

    monkeypatch.setattr(ModelTimer, "__call__", kept)
    monkeypatch.setattr("treadle.tuning.in_model._TIMED_SECONDS", 0.2)
    groups = searched(model, tmp_path / "db")
    assert found
    for each in found:
        default, tuned = each.launches
        assert set(default) == set(tuned) == {name for group in groups for name in group.task.nodes}
        assert len(each.calls[0]) == len(each.calls[1]) >= 4
        assert all(second > 0 for side in each.calls for second in side)
        assert all(len(side[name]) == len(each.calls[0]) for side in each.launches for name in side)
