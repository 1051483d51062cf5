"""The thread pool and CpuProgram, on small libraries written by hand."""

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.backends.c.toolchains import COMMANDS, private_environment
from tests.helpers.threads import TASKS, all_ended_but, tasks
from treadle.backends.c.compiler import Unit, build_library
from treadle.backends.c.executor import ALIGNMENT, CpuProgram, aligned, aligned_empty
from treadle.backends.interface import TensorSpec
from treadle.errors import TreadleError

F32 = np.dtype(np.float32)
LENGTH = 1000
SPEC = TensorSpec("x", (LENGTH,), F32)

# out = (in + constant) * 2 in two kernels through the arena; the second output counts how often each share is done.
TEXT = r"""
#include "pool.h"
enum { N = 1000 };
static void add(void *const *args, long worker, long workers) {
    const float *x = args[0], *c = args[1];
    float *y = args[2];
    for (long i = N * worker / workers; i < N * (worker + 1) / workers; i++) y[i] = x[i] + c[i];
}
static void twice(void *const *args, long worker, long workers) {
    const float *x = args[0];
    float *y = args[1];
    volatile char panel[3 << 20];
    panel[0] = panel[sizeof panel - 1] = 2;
    for (long i = N * worker / workers; i < N * (worker + 1) / workers; i++) y[i] = x[i] * panel[0];
    ((float *)args[2])[worker] += 1;
}
void treadle_run(struct treadle_pool *pool, void *const *inputs, void *const *outputs,
                 void *const *constants, char *arena) {
    float *turns = outputs[1];
    for (long i = 0; i < 8; i++) turns[i] = 0;
    treadle_pool_run(pool, add, (void *const[]){inputs[0], constants[0], arena}, 8);
    treadle_pool_run(pool, twice, (void *const[]){arena, outputs[0], turns}, 8);
}
"""


@pytest.fixture(scope="module", params=COMMANDS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program above, as a shared library."""
    return build_library(
        [Unit("host", TEXT)], private_environment(tmp_path_factory.mktemp("cache"), COMMANDS[request.param])
    )


def program(library: Path, threads: int | None = None) -> CpuProgram:
    """The program with the constant 0, 1, 2, ..."""
    constant = np.arange(LENGTH, dtype=np.float32)
    turns = TensorSpec("turns", (8,), F32)
    return CpuProgram(library, [SPEC], [SPEC, turns], [constant], LENGTH * 4, threads)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_every_share_is_done_once(library: Path, threads: int) -> None:
    x = np.linspace(-1, 1, LENGTH, dtype=np.float32)
    with program(library, threads) as running:
        results = [running.run([x]) for _ in range(50)]
    y, turns = results[-1]
    np.testing.assert_array_equal(y, (x + np.arange(LENGTH, dtype=np.float32)) * 2)
    shares = 1 if threads == 1 else 8
    assert turns.tolist() == [1] * shares + [0] * (8 - shares)


# Which thread does a share, and when: the caller is thread 0 of two, and what is taken is counted in order.
_ORDER = r"""
#include "pool.h"
#include <stdatomic.h>
static atomic_long taken;
static _Thread_local char here;
static void *caller;
static void note(void *const *args, long worker, long workers) {
    (void)workers;
    ((float *)args[0])[worker] = (float)(atomic_fetch_add(&taken, 1) * 2 + (&here != caller));
}
void treadle_run(struct treadle_pool *pool, void *const *inputs, void *const *outputs,
                 void *const *constants, char *arena) {
    (void)inputs, (void)constants, (void)arena;
    caller = &here;
    atomic_store(&taken, 0);
    treadle_pool_run(pool, note, (void *const[]){outputs[0]}, 8);
}
"""


def test_a_thread_takes_neighbours_first_and_then_from_the_end_of_the_others(tmp_path: Path) -> None:
    library = build_library([Unit("host", _ORDER)], private_environment(tmp_path, next(iter(COMMANDS.values()))))
    with CpuProgram(library, [], [TensorSpec("order", (8,), F32)], [], 0, 2) as running:
        for _ in range(200):
            (order,) = running.run([])
            for thread in (0, 1):
                shares = sorted((int(n), share) for share, n in enumerate(order) if int(n) % 2 == thread)
                taken = [share for _, share in shares]
                own = [share for share in taken if share // 4 == thread]
                others = [share for share in taken if share // 4 != thread]
                assert taken == sorted(own) + sorted(others, reverse=True)


def test_sleeping_workers_wake(library: Path) -> None:
    x = np.ones(LENGTH, np.float32)
    with program(library, 2) as running:
        for _ in range(5):
            threading.Event().wait(0.03)
            y, _ = running.run([x])
            assert y[1] == 4


@pytest.fixture
def cpus() -> Iterator[list[int]]:
    """The CPUs of this thread, which has them again afterwards."""
    before = os.sched_getaffinity(0)
    yield sorted(before)
    os.sched_setaffinity(0, before)


def worker_cpus(library: Path, threads: int, caller: list[int]) -> list[set[int]]:
    """Where the other threads of a program may run after a call from each of these CPUs."""
    before, found = tasks(), list[set[int]]()
    with program(library, threads) as running:
        workers = tasks() - before
        for cpu in caller:
            os.sched_setaffinity(0, {cpu})
            running.run([np.zeros(LENGTH, np.float32)])
            found += [os.sched_getaffinity(worker) for worker in workers]
    return found


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no CPUs of threads")
def test_workers_keep_off_the_cpu_of_the_caller(library: Path, cpus: list[int]) -> None:
    if len(cpus) < 2:
        pytest.skip("one CPU")
    first, second = cpus[:2]
    places = worker_cpus(library, 2, [first, second, first])
    assert places == [set(cpus) - {first}, set(cpus) - {second}, set(cpus) - {first}]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no CPUs of threads")
def test_more_threads_than_cpus_may_run_anywhere(library: Path, cpus: list[int]) -> None:
    assert worker_cpus(library, len(cpus) + 1, cpus[:1]) == [set(cpus)] * len(cpus)


def test_a_strided_input_is_copied(library: Path) -> None:
    x = np.arange(2 * LENGTH, dtype=np.float32)[::2]
    with program(library, 2) as running:
        np.testing.assert_array_equal(running.run([x])[0], x * 3)


def test_a_contiguous_input_is_read_where_it_lies(library: Path) -> None:
    x = np.arange(LENGTH + 1, dtype=np.float32)[1:]
    assert x.ctypes.data % ALIGNMENT
    with program(library, 2) as running:
        assert running._checked([x])[0] is x
        np.testing.assert_array_equal(running.run([x])[0], x * 2 + np.arange(LENGTH) * 2)


def test_an_input_between_elements_is_copied(library: Path) -> None:
    x = np.zeros(4 * LENGTH + 1, np.uint8)[1:].view(np.float32)
    x[:] = np.arange(LENGTH)
    with program(library, 2) as running:
        assert running._checked([x])[0].ctypes.data % x.itemsize == 0
        np.testing.assert_array_equal(running.run([x])[0], x * 4)


def test_outputs_are_aligned_and_not_reused(library: Path) -> None:
    x = np.zeros(LENGTH, np.float32)
    with program(library, 1) as running:
        first, second = running.run([x])[0], running.run([x + 1])[0]
    assert first[0] == 0
    assert second[0] == 2
    assert first.ctypes.data % ALIGNMENT == 0


SLEEPER = r"""
#include "pool.h"
#include <time.h>
static void nap(void *const *args, long worker, long workers) {
    if (worker == 0) nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, 0);
}
static void nothing(void *const *args, long worker, long workers) {}
void treadle_run(struct treadle_pool *pool, void *const *inputs, void *const *outputs,
                 void *const *constants, char *arena) {
    treadle_pool_run(pool, nothing, inputs, 1);
    treadle_pool_run(pool, nap, inputs, 4);
    treadle_pool_run(pool, nap, inputs, 1);
    treadle_pool_run(pool, nothing, inputs, 4);
}
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_launches_are_timed_in_order(tmp_path: Path, threads: int) -> None:
    library = build_library([Unit("host", SLEEPER)], private_environment(tmp_path))
    with CpuProgram(library, [], [], threads=threads) as running:
        start = time.monotonic()
        first, second, third, fourth = running.launch_seconds([], 4)
        taken = time.monotonic() - start
        assert second >= 0.02 and third >= 0.02
        assert first >= 0 and fourth >= 0
        assert first + second + third + fourth <= taken
        assert len(running.launch_seconds([], 2)) == 2  # the others are not timed
        assert running.launch_seconds([], 6)[4:] == [0, 0]  # there are no more


def test_a_library_that_cannot_time_says_so(library: Path) -> None:
    with program(library) as running:
        running._native.record = None  # as in libraries of before there was the function
        with pytest.raises(TreadleError, match="cannot time its kernels"):
            running.launch_seconds([np.ones(LENGTH, np.float32)], 2)


def test_threads_take_turns(library: Path) -> None:
    wrong: list[float] = []
    with program(library, 2) as running:

        def work(value: float) -> None:
            for _ in range(50):
                y = running.run([np.full(LENGTH, value, np.float32)])[0]
                wrong.extend(y[y != (value + np.arange(LENGTH, dtype=np.float32)) * 2])

        callers = [threading.Thread(target=work, args=(value,)) for value in range(3)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert not wrong


def test_a_closed_program_says_so(library: Path) -> None:
    running = program(library, 2)
    running.close()
    running.close()
    with pytest.raises(TreadleError, match="after close"):
        running.run([np.zeros(LENGTH, np.float32)])


@pytest.mark.skipif(not TASKS.exists(), reason="counts threads in /proc")
def test_collection_ends_the_threads(library: Path) -> None:
    before = tasks()
    running = program(library, 4)
    assert len(tasks() - before) == 3
    del running
    gc.collect()
    assert all_ended_but(before)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "0 inputs given, 1 needed"),
        ([np.zeros(3, np.float32)], r"float32\[3\] given; accepted: x: float32\[1000\]"),
        ([np.zeros(LENGTH)], r"input 'x': float64\[1000\] given"),
    ],
)
def test_a_wrong_input_is_named(library: Path, inputs: list[np.ndarray], message: str) -> None:
    with program(library, 1) as running, pytest.raises(TreadleError, match=message):
        running.run(inputs)


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    with pytest.raises(TreadleError, match="cannot load"):
        CpuProgram(tmp_path / "none.so", [], [], threads=1)


def test_no_threads_at_all_are_refused(library: Path) -> None:
    with pytest.raises(TreadleError, match="threads is 0"):
        program(library, 0)


def test_alignment_copies_only_what_needs_it() -> None:
    whole = aligned_empty((3, 5), np.float16)
    assert aligned(whole) is whole
    part = aligned_empty((33,), np.float32)[1:]
    part[...] = 7
    assert aligned(part).ctypes.data % ALIGNMENT == 0
    np.testing.assert_array_equal(aligned(part), part)
    assert aligned_empty((0, 4), np.float32).shape == (0, 4)
