"""ThreadPool: several models on one set of threads, on small libraries written by hand and on compiled models."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import treadle
from tests.backends.c.toolchains import private_environment
from tests.helpers.environment import sanitizer_flags
from tests.helpers.forked import status_of_child
from tests.helpers.onnx_models import linear_model
from tests.helpers.threads import TASKS, all_ended_but, tasks
from tests.helpers.waiting import HANGS
from treadle.backends.c import compiler
from treadle.backends.c.compiler import Unit, build_library
from treadle.backends.c.executor import CpuProgram
from treadle.backends.interface import TensorSpec
from treadle.errors import TreadleError

RUNTIME = Path(compiler.__file__).parent / "runtime"
LENGTH = 4096
SPEC = TensorSpec("x", (LENGTH,), np.dtype(np.float32))

pytestmark = pytest.mark.skipif(not TASKS.exists(), reason="counts threads in /proc")

# y = x * FACTOR in two kernels through the arena.
TEXT = r"""
#include "pool.h"
enum { N = 4096 };
static void copy(void *const *args, long worker, long workers) {
    const float *x = args[0];
    float *y = args[1];
    for (long i = N * worker / workers; i < N * (worker + 1) / workers; i++) y[i] = x[i];
}
static void scale(void *const *args, long worker, long workers) {
    const float *x = args[0];
    float *y = args[1];
    for (long i = N * worker / workers; i < N * (worker + 1) / workers; i++) y[i] = x[i] * FACTOR;
}
void treadle_run(struct treadle_pool *pool, void *const *inputs, void *const *outputs,
                 void *const *constants, char *arena) {
    (void)constants;
    treadle_pool_run(pool, copy, (void *const[]){inputs[0], arena}, 64);
    treadle_pool_run(pool, scale, (void *const[]){arena, outputs[0]}, 64);
}
"""
FACTORS = (2, 3, 5)
Scaled = Callable[[int], CpuProgram]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def library(factor: int, cache: Path, *changes: tuple[str, str]) -> Path:
    """A library that multiplies by `factor`, whose pool differs from this package's in `changes`."""
    texts = {name: (RUNTIME / name).read_text() for name in ("pool.c", "pool.h")}
    for before, after in changes:
        assert before in texts["pool.c"]
        texts = {name: text.replace(before, after) for name, text in texts.items()}
    units = [Unit("host", f"#define FACTOR {factor}\n{TEXT}"), Unit("treadle_pool", texts["pool.c"])]
    chosen = private_environment(cache, flags=sanitizer_flags())
    return build_library(units, chosen, headers={"pool.h": texts["pool.h"]})


def program(path: Path, pool: treadle.ThreadPool | int) -> CpuProgram:
    return CpuProgram(path, [SPEC], [SPEC], (), LENGTH * 4, pool)


def assert_scales(program: CpuProgram, factor: int, start: int = 0) -> None:
    x = np.arange(start, start + LENGTH, dtype=np.float32)
    np.testing.assert_array_equal(program.run([x])[0], x * factor)


def places(workers: set[int]) -> list[str]:
    """The CPUs on which threads may run, as the system lists them."""
    lines = [line for n in workers for line in (TASKS / str(n) / "status").read_text().splitlines()]
    return [line.split()[1] for line in lines if line.startswith("Cpus_allowed_list")]


def test_three_models_run_on_the_threads_of_one(cache: Path) -> None:
    before = tasks()
    with treadle.ThreadPool(4) as pool:
        programs = [program(library(factor, cache), pool) for factor in FACTORS]
        assert len(tasks() - before) == 3
        for turn in range(30):
            for running, factor in zip(programs, FACTORS, strict=True):
                assert_scales(running, factor, turn)
        programs[0].close()  # whose library started the threads
        assert len(tasks() - before) == 3
        with pytest.raises(TreadleError, match="after close"):
            programs[0].run([np.zeros(LENGTH, np.float32)])
        for running, factor in zip(programs[1:], FACTORS[1:], strict=True):
            assert running.threads == 4
            assert_scales(running, factor)
    assert all_ended_but(before)


def test_a_thread_that_is_late_for_the_last_run_ends(cache: Path) -> None:
    """It reads the number of a run after the caller has computed all shares of that run, and closed the pool."""
    late = ("seen = take_shares(self->crew", "seen = (usleep(20000), take_shares)(self->crew")
    path = library(2, cache, ("#include <time.h>", "#include <time.h>\n#include <unistd.h>"), late)

    def run_and_close() -> None:
        with program(path, 2) as running:
            assert_scales(running, 2)

    assert status_of_child(run_and_close) == 0, "close() waits for a thread that waits for a run"


def test_models_are_called_from_several_threads_and_one_is_closed(cache: Path) -> None:
    with treadle.ThreadPool(3) as pool:
        programs = [program(library(factor, cache), pool) for factor in FACTORS]
        begun = threading.Barrier(7)

        def call(caller: int) -> str:
            position = caller % 3
            begun.wait()
            for turn in range(60):
                try:
                    assert_scales(programs[position], FACTORS[position], caller * 100 + turn)
                except TreadleError as error:
                    return error.message
            return "done"

        def close() -> None:
            begun.wait()
            programs[1].close()

        with ThreadPoolExecutor(7) as callers:
            closing = callers.submit(close)
            ends = list(callers.map(call, range(6)))
            closing.result()
    assert [ends[n] for n in (0, 2, 3, 5)] == ["done"] * 4
    assert {ends[1], ends[4]} <= {"done", "run() after close()"}


def test_calls_of_models_of_a_pool_take_turns(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, most = list[int](), list[int]()
    original = CpuProgram._call

    def call(running: CpuProgram, *arguments: Any) -> None:
        under_way.append(1)
        most.append(len(under_way))
        threading.Event().wait(0.002)  # wide enough for another caller
        original(running, *arguments)
        under_way.pop()

    monkeypatch.setattr(CpuProgram, "_call", call)
    with treadle.ThreadPool(2) as pool, ThreadPoolExecutor(3) as callers:
        programs = [program(library(factor, cache), pool) for factor in FACTORS]
        work = zip(programs * 5, FACTORS * 5, strict=True)
        for done in [callers.submit(assert_scales, *each) for each in work]:
            done.result()
    assert most == [1] * 15


def test_launches_are_timed_on_threads_of_another_library(cache: Path) -> None:
    with treadle.ThreadPool(2) as pool:
        first, second = (program(library(factor, cache), pool) for factor in FACTORS[:2])
        x = np.zeros(LENGTH, np.float32)
        for running in (second, first, second):
            seconds = running.launch_seconds([x], 3)
            assert min(seconds[:2]) > 0 and seconds[2] == 0


LAYOUT = "const long treadle_pool_layout = 1;", "const long treadle_pool_layout = 2;"
RUN = "    void (*run)(struct treadle_pool *pool, treadle_kernel kernel, void *const *args, long blocks);\n"
MOVED = f"{RUN}    long workers;\n", f"    long workers;\n{RUN}"
OTHERWISE = f"{RUN}    long workers;\n", f"{RUN}    long unused[8];\n    long workers;\n"
OLD = ("treadle_pool_layout", "of_today"), ("treadle_pool_create_on", "treadle_later"), MOVED


@pytest.mark.parametrize(
    ("changes", "pools"), [([OTHERWISE], 1), ([LAYOUT, MOVED], 2), (OLD, 2)], ids=["same", "other", "none"]
)
def test_only_libraries_of_one_layout_share_threads(
    cache: Path, changes: Sequence[tuple[str, str]], pools: int
) -> None:
    before = tasks()
    with treadle.ThreadPool(3) as pool:
        first, second = program(library(2, cache), pool), program(library(3, cache, *changes), pool)
        assert len(tasks() - before) == 2 * pools
        for turn in range(20):
            assert_scales(first, 2, turn)
            assert_scales(second, 3, turn)
        first.close()
        assert_scales(second, 3)
    assert all_ended_but(before)


def test_programs_of_one_old_library_share_its_threads(cache: Path) -> None:
    before, path = tasks(), library(3, cache, *OLD)
    loaded = CpuProgram(path, [SPEC], [SPEC], (), LENGTH * 4, 1)._native.library
    with treadle.ThreadPool(3) as pool:
        programs = [CpuProgram(loaded, [SPEC], [SPEC], (), LENGTH * 4, pool) for _ in range(2)]
        assert len(tasks() - before) == 2
        for running in programs:
            assert_scales(running, 3)


def allowed() -> list[int]:
    """Two CPUs of this process."""
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system has no CPUs of threads")
    found = sorted(os.sched_getaffinity(0))
    if len(found) < 2:
        pytest.skip("one CPU")
    return found[:2]


@pytest.mark.parametrize("changes", [(), (LAYOUT, MOVED)])
def test_threads_are_bound_to_cpus(cache: Path, changes: tuple[tuple[str, str], ...]) -> None:
    first, second = allowed()
    mine = os.sched_getaffinity(0)
    for cpus in ([first, second], [second, first]):
        before = tasks()
        with treadle.ThreadPool(cpus=cpus) as pool:
            assert (pool.threads, pool.cpus) == (2, tuple(cpus))
            running = program(library(2, cache, *changes), pool)
            workers = tasks() - before
            assert len(workers) == 1
            for caller in (first, second):
                os.sched_setaffinity(0, {caller})
                try:
                    assert_scales(running, 2)
                finally:
                    os.sched_setaffinity(0, mine)
                assert places(workers) == [str(cpus[1])]
        assert os.sched_getaffinity(0) == mine


def test_an_old_library_cannot_bind_threads(cache: Path) -> None:
    path = library(2, cache, *OLD)
    with treadle.ThreadPool(cpus=allowed()) as pool, pytest.raises(TreadleError, match="before threads could be bound"):
        program(path, pool)


def test_cpus_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    for cpus, message in (
        ([0, 7, 9], "CPUs that the process may not use: 7, 9; accepted: different ones of 0, 1, 2"),
        ([-1, 0], "CPUs that the process may not use: -1"),
        ([1, 1, 0], "CPUs that are named twice: 1;"),
        ([0, 1, 2], "`cpus` has 3 for 2 threads; accepted: a CPU for each thread"),
        ([0], "`cpus` has 1 for 2 threads"),
    ):
        with pytest.raises(TreadleError, match=message):
            treadle.ThreadPool(2, cpus)
    with pytest.raises(TreadleError, match="threads is 0"):
        treadle.ThreadPool(cpus=[])
    monkeypatch.delattr(os, "sched_getaffinity")
    with pytest.raises(TreadleError, match="cannot be bound to CPUs on this system"):
        treadle.ThreadPool(2, [0, 1])


def test_a_cpu_that_is_gone_when_the_threads_start(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, before = library(2, cache), tasks()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 100_000, 1023}, raising=False)
    for gone in (1023, 100_000):
        pool = treadle.ThreadPool(cpus=[0, gone])
        with pytest.raises(TreadleError, match=r"cannot start 2 threads; accepted: CPUs that .* may use"):
            program(path, pool)
    assert all_ended_but(before)


def test_numbers_of_threads(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_NUM_THREADS", "3")
    assert treadle.ThreadPool().threads == 3
    with pytest.raises(TreadleError, match="threads is 0"):
        treadle.ThreadPool(0)
    with pytest.raises(TreadleError, match="cannot start 1000000 threads"):
        program(library(2, cache), treadle.ThreadPool(1_000_000))


def test_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert repr(treadle.ThreadPool(4)) == "ThreadPool(threads=4)"
    pool = treadle.ThreadPool(cpus=(2, 0))
    assert repr(pool) == "ThreadPool(threads=2, cpus=[2, 0])" and not pool.closed
    pool.close()
    assert repr(pool) == "ThreadPool(threads=2, cpus=[2, 0]) (closed)" and pool.closed


def test_collection_of_the_pool_and_its_models_ends_the_threads(cache: Path) -> None:
    before, pool = tasks(), treadle.ThreadPool(4)
    programs = [program(library(factor, cache), pool) for factor in FACTORS[:2]]
    del pool
    gc.collect()
    assert len(tasks() - before) == 3
    assert_scales(programs[1], 3)
    programs.clear()
    gc.collect()
    assert all_ended_but(before)


def test_a_call_inside_a_call_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with treadle.ThreadPool(2) as pool:
        first, second = (program(library(factor, cache), pool) for factor in FACTORS[:2])
        monkeypatch.setattr(first, "_call", lambda *_: assert_scales(second, 3))
        with pytest.raises(TreadleError, match="ThreadPool: called while a call of the same thread runs"):
            assert_scales(first, 2)
        monkeypatch.setattr(first, "_call", lambda *_: pool.close())
        with pytest.raises(TreadleError, match="ThreadPool: called while a call of the same thread runs"):
            assert_scales(first, 2)
        assert_scales(second, 3)


def test_a_forked_child_has_threads_of_its_own_for_all_models(cache: Path) -> None:
    cpus = allowed()
    late = library(7, cache)  # loaded in the child alone: it has not seen the fork
    with treadle.ThreadPool(cpus=cpus) as pool:
        first, second = (program(library(factor, cache), pool) for factor in FACTORS[:2])
        for running, factor in ((first, 2), (second, 3)):
            assert_scales(running, factor)

        def child() -> None:
            before = tasks()
            assert_scales(second, 3)
            assert_scales(first, 2)
            assert places(tasks() - before) == [str(cpus[1])]
            assert_scales(program(late, pool), 7)
            assert len(tasks() - before) == 1
            pool.close()
            assert all_ended_but(before)
            with pytest.raises(TreadleError, match="closed"):
                assert_scales(first, 2)

        def younger() -> None:
            with treadle.ThreadPool(2) as own:
                newest, known = program(late, own), program(library(2, cache), own)
                for _ in range(10):
                    assert_scales(newest, 7)
                    assert_scales(known, 2)
                assert status_of_child(lambda: (assert_scales(known, 2), assert_scales(newest, 7))) == 0

        assert status_of_child(child) == status_of_child(younger) == 0
        assert_scales(second, 3)
        assert_scales(first, 2)


def saved(folder: Path) -> tuple[Path, NDArray[np.float32], NDArray[np.float32]]:
    """An artifact, an input and the output."""
    with treadle.compile(linear_model(folder / "m.onnx")) as model:
        model.save(folder / "m.treadle")
        x = np.random.default_rng(3).standard_normal(model.inputs[0].shape).astype(np.float32)
        return folder / "m.treadle", x, model(x)[0]


def test_models_of_a_pool(tmp_path: Path) -> None:
    folder, x, y = saved(tmp_path)
    pool = treadle.ThreadPool(3)
    models = [
        treadle.load(folder, threads=pool), treadle.load(folder, pool, rebuild=True),
        treadle.compile(tmp_path / "m.onnx", threads=pool),
    ]  # fmt: skip
    before = tasks()
    for _ in range(3):
        for model in models:
            np.testing.assert_array_equal(model(x)[0], y)
        assert models[0].run_async(x).result()[0].tobytes() == y.tobytes()
        models[1].close()  # opens again at the next call
    assert len(tasks() - before) == 2 + 1  # and the thread of run_async
    models[0].close()
    pool.close()
    pool.close()
    for model in models:
        with pytest.raises(TreadleError, match="the thread pool is closed; accepted: a pool that is open while"):
            model(x)
    assert all_ended_but(before)


def test_gpus_and_the_emulator_have_no_such_threads(tmp_path: Path) -> None:
    path, pool = linear_model(tmp_path / "m.onnx"), treadle.ThreadPool(2)
    treadle.compile(path, "sm_80", device="emulator").save(tmp_path / "m.treadle")
    message = "threads: a thread pool does not run what is compiled for sm_80; accepted: a target whose kernels are C"
    for device in (None, "emulator"):
        with pytest.raises(TreadleError, match=message):
            treadle.compile(path, "sm_80", threads=pool, device=device)
        with pytest.raises(TreadleError, match=message):
            treadle.load(tmp_path / "m.treadle", threads=pool, device=device)


EXIT = """
import sys, threading, numpy, treadle
pool = treadle.ThreadPool(3)
models = [treadle.load(sys.argv[1], threads=pool) for _ in range(2)]
x = numpy.zeros(models[0].inputs[0].shape, numpy.float32)

def call(model):
    try:
        while True:
            model(x)
    except treadle.TreadleError:
        pass

for model in models:
    model(x)
    threading.Thread(target=call, args=(model,), daemon=True).start()
print("exits")
"""


def test_the_interpreter_exits_during_calls(tmp_path: Path) -> None:
    folder, _, _ = saved(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", EXIT, str(folder)], capture_output=True, text=True, timeout=HANGS, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "exits\n", "")
