"""Libraries against each other: times are positive, and one that is wrong, dies or hangs costs itself and no other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from tests.helpers.graphs import Graph
from treadle.backends.c.compiler import Unit, build_library
from treadle.backends.interface import TensorSpec
from treadle.backends.reference.bounded import Bounded
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import UnaryOp
from treadle.dialects.registry import treadle_context
from treadle.target import Target
from treadle.tuning import measure
from treadle.tuning.measure import (
    Comparison,
    InterleavedTimer,
    LocalMeasurer,
    Operands,
    RemoteMeasurer,
    Timing,
    measure_here,
    random_inputs,
    timings,
)
from treadle.tuning.workers import Workers, this_machine, workers_of

SIZE = 64
ENTRY = """#include <stdlib.h>
#include "pool.h"
static float kept;
void treadle_run(struct treadle_pool *pool, void *const *inputs, void *const *outputs, void *const *constants,
                 char *arena) {
  const float *x = inputs[0];
  float *y = outputs[0];
  BODY
}
"""
BODIES = {
    "right": "for (int i = 0; i < 64; ++i) y[i] = x[i] > 0 ? x[i] : 0;",
    "slow": "for (int n = 0; n < 19200000; ++n) { int i = n % 64; y[i] = x[i] > 0 ? x[i] : 0; kept += y[i]; }",
    "wrong": "for (int i = 0; i < 64; ++i) y[i] = x[i];",
    "unfinished": "for (int i = 0; i < 63; ++i) y[i] = x[i] > 0 ? x[i] : 0;",
    "crash": "abort();",
    "hang": "for (volatile int i = 0;; ++i) {}",
}


def group() -> ModuleOp:
    """relu of a vector."""
    graph = Graph(np.zeros(SIZE, np.float32))
    module = graph.module(graph.add(UnaryOp("relu", graph[0])))
    lower(treadle_context(), module, Target.parse("cpu"), after="graph", to="fuse")
    return module


def comparison(*names: str) -> Comparison:
    units = (Unit(name, ENTRY.replace("BODY", BODIES[name])) for name in names)
    libraries = tuple(build_library([unit]).read_bytes() for unit in units)
    specs = (TensorSpec("x", (SIZE,), np.dtype(np.float32)),), (TensorSpec("y", (SIZE,), np.dtype(np.float32)),)
    return Comparison(str(group()), libraries, 0, *specs, (), 2, 0.2)


def test_right_libraries_have_times() -> None:
    """The slow one takes longer than a busy machine keeps the other waiting for a processor."""
    first, second = timings(comparison("right", "slow"))
    assert (first.error, second.error) == (None, None)
    assert first.seconds is not None
    assert second.seconds is not None
    assert 0 < first.seconds < second.seconds


@pytest.mark.parametrize("name", ["wrong", "unfinished"])
def test_a_wrong_library_is_not_timed(name: str) -> None:
    negative = int((random_inputs(comparison("right").inputs)[0] < 0).sum())
    assert 0 < negative < SIZE
    right, wrong, after = timings(comparison("right", name, "right"))
    assert right.seconds is not None
    assert after.seconds is not None
    assert wrong.seconds is None
    assert wrong.error == f"y is wrong in {negative if name == 'wrong' else 1} of 64 elements"


def test_results_of_unsigned_integers_may_be_below_what_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Bounded(np.array([5, 7], np.uint8), np.array([1.0, 1.0]))
    monkeypatch.setattr(measure, "bound_module", lambda *_: (expected,))
    monkeypatch.setattr(measure, "_EXPECTED", {})
    given = replace(comparison(), outputs=(TensorSpec("y", (2,), np.dtype(np.uint8)),))
    assert measure._difference(given, [], [np.array([4, 8], np.uint8)]) is None
    assert measure._difference(given, [], [np.array([3, 8], np.uint8)]) == "y is wrong in 1 of 2 elements"


def test_what_dies_or_hangs_costs_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call that hangs finds a child that has imported all it needs: its limit holds on the busiest machine."""
    with closing(LocalMeasurer()) as measurer:
        (first,) = measurer.measure(comparison("right"))
        assert first.seconds is not None
        with monkeypatch.context() as patch:
            patch.setattr(measure, "_PATIENCE", 0.6)
            (hang,) = measurer.measure(comparison("hang"))
        assert hang.error == "it did not end within 1 seconds"
        right, crash = measurer.measure(comparison("right", "crash"))
        assert right.seconds is not None
        assert crash.error == "it ended the process that ran it (SIGABRT)"


def test_a_worker_of_an_executor_measures_in_a_child_of_its_own() -> None:
    with ThreadPoolExecutor(2) as executor, closing(RemoteMeasurer(workers_of(executor))) as measurer:
        right, crash = measurer.measure(comparison("right", "crash"))
    assert right.seconds is not None
    assert crash.error == "it ended the process that ran it (SIGABRT)"


class LosesWorkers(RemoteMeasurer):
    """Of an executor whose worker dies with every comparison that one of some libraries is in."""

    def __init__(self, deadly: bytes):
        super().__init__(Workers(ThreadPoolExecutor(1), this_machine()))
        self.deadly = deadly

    def _run(self, comparison: Comparison) -> list[Timing]:
        if self.deadly in comparison.libraries:
            raise OSError("worker 3 is lost")
        return [Timing(1.0) for _ in comparison.libraries]


def test_a_worker_that_is_lost_costs_one_candidate() -> None:
    given = replace(comparison("right"), libraries=(b"a", b"b", b"c"))
    assert LosesWorkers(b"b").measure(given) == [Timing(1.0), Timing(error="OSError: worker 3 is lost"), Timing(1.0)]


def test_weights_come_in_copies_and_activations_do_not() -> None:
    inputs = [np.zeros(4, np.float32), np.ones(1024, np.float32)]
    copies = Operands(inputs, (), (1,), 4 * 1024 * 3).copies()
    assert len(copies) == 3
    assert len({copy[0].ctypes.data for copy in copies}) == 1
    assert len({copy[1].ctypes.data for copy in copies}) == 3
    assert all((copy[1] == 1).all() for copy in copies)
    assert len(Operands(inputs, (), (), 1 << 30).copies()) == 1


def test_timing_loads_nothing_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may lie on a file system from which no code is loaded."""
    given = comparison("right")
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))
    (timing,) = measure_here(given)
    assert timing.error is None and not (tmp_path / "cache").exists()


def test_libraries_take_turns() -> None:
    """A clock that counts its readings: every round begins with another library, and fewer than three are never run."""
    given = comparison("right", "slow")
    ticks = iter(range(1_000_000))
    operands = Operands(random_inputs(given.inputs), given.outputs, (), 0)
    timer = InterleavedTimer(given.libraries, 0, operands, 1)
    try:
        timer.run(10, seconds=1.0, clock=lambda: float(next(ticks)))
    finally:
        timer.close()
    assert [len(each.seconds) for each in timer.timed] == [3, 3]


def test_inputs_are_of_every_type() -> None:
    dtypes = ("float32", "float16", "float64", "int8", "int64", "bool", "uint8")
    arrays = random_inputs([TensorSpec(name, (100,), np.dtype(name)) for name in dtypes])
    assert [array.dtype.name for array in arrays] == list(dtypes)
    assert all(len(np.unique(array)) > 1 for array in arrays)
