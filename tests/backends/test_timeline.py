"""Timelines of launches: a planted imbalance is a gap in the numbers, and the JSON is a trace as Chrome defines it."""

from __future__ import annotations

import json
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle
from tests.backends.cuda.fake_driver import FakeDriver, Memory
from tests.helpers.onnx_models import linear_model
from treadle.backends.c.compiler import Unit, build_library
from treadle.backends.c.executor import CpuProgram
from treadle.backends.cuda.executor import BufferRef, CudaProgram, Launch
from treadle.backends.interface import TensorSpec
from treadle.backends.timeline import (
    CompileSteps,
    LaunchNames,
    Recorder,
    Span,
    Timeline,
    TracedLaunch,
    lanes,
    most_events,
)
from treadle.errors import TreadleError
from treadle.tools.treadle_cli import main

X = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
SPEC = TensorSpec("x", (1,), np.dtype(np.float32))
PLANTED = 0.08
"""Seconds that the planted share sleeps."""

# Three launches: one whose first share takes as long as all others together, one whose shares take the same, one alone.
TEXT = r"""
#include <time.h>
#include "pool.h"
static void rest(double seconds) {
    struct timespec time = {0, (long)(seconds * 1e9)};
    nanosleep(&time, 0);
}
void skewed(void *const *args, long worker, long workers) {
    (void)args, (void)workers;
    if (worker == 0) rest(SECONDS);
}
void even(void *const *args, long worker, long workers) {
    (void)args;
    rest(SECONDS / workers);
}
void alone(void *const *args, long worker, long workers) {
    (void)args, (void)worker, (void)workers;
    rest(SECONDS / 8);
}
void treadle_run(struct treadle_pool *pool, void *const *inputs, void *const *outputs,
                 void *const *constants, char *arena) {
    (void)constants, (void)arena;
    treadle_pool_run(pool, skewed, (void *const[]){inputs[0], outputs[0]}, 8);
    treadle_pool_run(pool, even, (void *const[]){inputs[0], outputs[0]}, 8);
    treadle_pool_run(pool, alone, (void *const[]){inputs[0], outputs[0]}, 1);
}
"""
KERNELS = ["skewed", "even", "alone"]


def timeline_of(program: CpuProgram | CudaProgram, recorder: Recorder, workers: int, names: LaunchNames) -> Timeline:
    return Timeline(recorder, workers, lambda: names, lambda: program.trace(None))


def check_trace(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The complete events of a trace, which has what the format asks for: keys, times that grow along each track, and
    slices that contain one another or do not meet."""
    assert isinstance(document["traceEvents"], list)
    for event in document["traceEvents"]:
        assert event.keys() >= {"name", "ph", "ts", "pid", "tid"} and event["ph"] in ("X", "M")
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int) and isinstance(event["name"], str)
        assert "name" in event["args"] if event["ph"] == "M" else event["dur"] >= 0 <= event["ts"]
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    tracks = groupby(slices, key=lambda event: (event["pid"], event["tid"]))
    found = [(track, list(events)) for track, events in tracks]
    assert len({track for track, _ in found}) == len(found), "a track's events follow one another"
    labels = {(e["pid"], e["tid"]) for e in document["traceEvents"] if e["name"] == "thread_name"}
    for track, events in found:
        assert track in labels
        assert all(one["ts"] <= other["ts"] for one, other in pairwise(events))
        open_until: list[float] = []
        for event in events:  # a reader adds in doubles
            start, end = event["ts"], event["ts"] + event["dur"]
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1], event
            open_until.append(end)
    return slices


@pytest.fixture(scope="module")
def planted() -> Timeline:
    library = build_library([Unit("host", TEXT.replace("SECONDS", str(PLANTED)))])
    with CpuProgram(library, [SPEC], [SPEC], (), 64, 2) as program:
        x = np.zeros(1, np.float32)
        program.run([x])  # the threads have started
        recorder = Recorder(1000)
        program.trace(recorder)
        timeline = timeline_of(program, recorder, 2, LaunchNames(program.kernel_names(KERNELS), {"even": "node"}))
        with timeline:
            program.run([x])
        program.run([x])
    return timeline


def test_a_planted_imbalance_is_a_gap(planted: Timeline) -> None:
    skewed, even, alone = planted.launches
    assert [launch.kernel for launch in planted.launches] == KERNELS
    assert [launch.nodes for launch in planted.launches] == ["", "node", ""]
    most = most_events(2) - 1
    assert [len(launch.shares) for launch in planted.launches] == [most, most, 1]
    busiest, other = max(skewed.busy), min(skewed.busy)
    assert busiest >= PLANTED > 4 * other
    assert max(end - start for _, start, end in skewed.waits()) > 0.5e9 * PLANTED, "of the thread that was done"
    assert skewed.waited > 0.4 * 2 * skewed.seconds
    assert even.waited < 0.4 * 2 * even.seconds
    assert alone.waited >= alone.seconds > PLANTED / 10, "the other thread has nothing to do"
    assert alone.shares[0].worker == 0


def test_the_gap_is_in_the_trace(planted: Timeline) -> None:
    slices = check_trace(planted.document())
    longest = max((event for event in slices if event["cat"] == "wait"), key=lambda event: event["dur"])
    assert longest["args"]["kernel"] == "skewed" and longest["dur"] > 0.5e6 * PLANTED
    assert {event["tid"] for event in slices if event["cat"] == "share"} == {1, 2}
    (call,) = (event for event in slices if event["cat"] == "call")
    launches = [event for event in slices if event["cat"] == "launch"]
    assert [event["name"] for event in launches] == KERNELS
    assert all(call["ts"] <= each["ts"] and each["ts"] + each["dur"] <= call["ts"] + call["dur"] for each in launches)
    assert planted.document()["otherData"] == {"events dropped": 0, "workers": 2}


def test_only_what_is_traced_is_in_it(planted: Timeline) -> None:
    """Calls before and after leave nothing."""
    assert len(planted.calls) == 1 and len(planted.launches) == 3


def test_a_full_ring_keeps_the_newest_whole_launches() -> None:
    library = build_library([Unit("host", TEXT.replace("SECONDS", "1e-5"))])
    with CpuProgram(library, [SPEC], [SPEC], (), 64, 2) as program:
        recorder = Recorder(25)  # a call has 9 + 9 + 2
        program.trace(recorder)
        timeline = timeline_of(program, recorder, 2, LaunchNames(program.kernel_names(KERNELS), {}))
        for _ in range(10):
            program.run([np.zeros(1, np.float32)])
        timeline.stop()
    assert [(launch.call, launch.kernel) for launch in timeline.launches] == [
        (8, "alone"), (9, "skewed"), (9, "even"), (9, "alone"),
    ]  # fmt: skip
    assert timeline.dropped == 200 - 22
    assert timeline.document()["otherData"]["events dropped"] == 178
    check_trace(timeline.document())


@pytest.fixture
def model(tmp_path: Path) -> treadle.CompiledModel:
    return treadle.compile(linear_model(tmp_path / "m.onnx"), threads=2)


def test_a_model_says_what_its_launches_compute(model: treadle.CompiledModel, tmp_path: Path) -> None:
    with model.trace() as timeline:
        expected = [model(X)[0] for _ in range(3)]
    np.testing.assert_array_equal(model(X)[0], expected[0])
    assert [launch.call for launch in timeline.launches] == [0, 1, 2]
    assert {launch.nodes for launch in timeline.launches} == {"MatMul 'product', Relu 'clamp'"}
    assert all("matmul" in launch.kernel for launch in timeline.launches)
    timeline.save(tmp_path / "t.json")
    check_trace(json.loads((tmp_path / "t.json").read_text()))
    with pytest.raises(TreadleError, match="cannot write: No such file or directory; accepted: a file in a folder"):
        timeline.save(tmp_path / "nowhere" / "t.json")


def test_a_range_names_kernels(tmp_path: Path) -> None:
    rows = treadle.Dim("rows", 1, 64)
    model = treadle.compile(linear_model(tmp_path / "m.onnx", "rows"), shapes={"rows": rows}, threads=2)
    with model.trace() as timeline:
        model(X)
    assert "MatMul 'product'" in timeline.launches[0].nodes


def test_a_model_that_is_closed_meanwhile_goes_on(model: treadle.CompiledModel) -> None:
    with model.trace() as timeline:
        model(X)
        model.close()
        model(X)
    assert len(timeline.launches) == 2


def test_of_models_on_one_pool_one_is_traced(model: treadle.CompiledModel) -> None:
    with treadle.ThreadPool(2) as pool:
        one, other = (treadle.load(model.folder, pool) for _ in range(2))
        other(X)  # whose library started the threads
        with one.trace() as timeline:
            one(X)
            other(X)
    assert len(timeline.calls) == len(timeline.launches) == 1


def test_what_cannot_be_traced(model: treadle.CompiledModel) -> None:
    timeline = model.trace()
    with pytest.raises(TreadleError, match=r"still recorded; accepted: `stop\(\)`, or the end of the `with`"):
        timeline.save("t.json")
    with pytest.raises(TreadleError, match=r"the model is traced already; accepted: the end of its timeline"):
        model.trace()
    timeline.stop()
    timeline.stop()
    assert timeline.launches == ()
    check_trace(timeline.document())
    least = most_events(2)
    with pytest.raises(TreadleError, match=f"room for {least - 1} events; accepted: {least} upwards"):
        model.trace(least - 1)
    model.close()
    with pytest.raises(TreadleError, match="the model was closed; accepted: an open one"):
        model.trace()
    model.open()
    model.trace().stop()


def test_the_emulator_is_not_timed(tmp_path: Path) -> None:
    model = treadle.compile(linear_model(tmp_path / "m.onnx"), "sm_80", device="emulator")
    with pytest.raises(TreadleError, match="the emulator's launches have no times; accepted: a model on a CPU or a"):
        model.trace()


def test_libraries_of_before(model: treadle.CompiledModel) -> None:
    program = model.open()
    assert isinstance(program, CpuProgram)
    program._native.trace = None
    with pytest.raises(TreadleError, match="the library cannot trace its kernels; accepted: the model compiled again"):
        model.trace()
    assert len(model(X)) == 1


class QuickDriver(FakeDriver):
    """Its events are 10 ns apart: a call of the host takes longer than what it queues."""

    def seconds_between(self, start: object, end: object) -> float:
        """See `Driver`."""
        return 1e-8 * super().seconds_between(start, end)


def test_launches_on_a_gpu_are_timed_by_events() -> None:
    def double(memory: Memory, source: int, target: int) -> None:
        memory[target] = 2 * memory[source]

    buffers = (BufferRef("input", 0), BufferRef("output", 0))
    launches = [Launch("double", b"image", (1, 1, 1), (32, 1, 1), buffers) for _ in range(3)]
    with CudaProgram(QuickDriver({"double": double}), launches, [SPEC], [SPEC]) as program:
        recorder = Recorder(5)
        program.trace(recorder)
        timeline = timeline_of(program, recorder, 0, LaunchNames({}, {}, ["a", "b", "c"]))
        for _ in range(2):
            assert program.run([np.ones(1, np.float32)])[0] == 2
        timeline.stop()
    assert [(launch.call, launch.nodes) for launch in timeline.launches] == [
        (0, "b"), (0, "c"), (1, "a"), (1, "b"), (1, "c"),
    ]  # fmt: skip
    assert {launch.seconds for launch in timeline.launches} == {1e-8}
    assert timeline.dropped == 1
    slices = check_trace(timeline.document())
    assert {event["tid"] for event in slices if event["cat"] == "launch"} == {1}
    assert not any(event["cat"] == "wait" for event in slices)


def test_waits_are_what_is_between_shares() -> None:
    launch = TracedLaunch(0, "k", "", 10, 50, (), 2)
    assert list(launch.waits()) == [] and launch.waited == 0
    steps = CompileSteps()
    assert steps.tracks(7) == {}
    assert list(lanes([Span("b", 2, 4), Span("a", 1, 3), Span("c", 3, 5)], "cc")) == ["cc 0", "cc 1"]


def test_the_command_traces_compiling_and_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))
    path, folder = linear_model(tmp_path / "m.onnx"), tmp_path / "compiled"
    trace = tmp_path / "t.json"
    options = ["--threads", "2", "--repeat", "2", "--timeline", str(trace)]
    assert main(["run", str(path), *options]) == 0
    assert f"{trace}: 3 calls, 3 launches" in capsys.readouterr().out
    slices = check_trace(json.loads(trace.read_text()))
    compiled = [event for event in slices if event["cat"] == "compile"]
    names = [event["name"] for event in compiled]
    assert {"importing the model", "graph-fuse", "loop-to-c", "printing C", "treadle_pool", "link"} <= set(names)
    last = max(event["ts"] + event["dur"] for event in compiled)
    assert last <= min(event["ts"] for event in slices if event["cat"] == "call")
    assert main(["run", str(path), *options]) == 0
    slices = check_trace(json.loads(trace.read_text()))
    assert not any(event["cat"] == "compile" for event in slices), "it comes from the cache"
    assert main(["compile", str(path), "-o", str(folder)]) == 0
    assert main(["run", str(folder), *options]) == 0
    assert sum(event["cat"] == "call" for event in check_trace(json.loads(trace.read_text()))) == 3
    capsys.readouterr()
    refusals = {
        ("--timeline", str(tmp_path / "nowhere" / "t.json")): "cannot write: No such file or directory",
        ("--timeline", str(tmp_path)): "cannot write: Is a directory",
        ("--timeline", "-"): "--timeline: stdout has the lines about the outputs; accepted: the name of a file",
        ("--timeline", "t", "--device", "emulator"): "the emulator's launches have no times",
    }
    for refused, message in refusals.items():
        assert main(["run", str(path), *refused]) == 2
        assert message in capsys.readouterr().err
