"""The executor's logic on a device in numpy."""

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.backends.cuda.fake_driver import FakeDriver, Memory
from treadle.artifact.artifact import Artifact
from treadle.artifact.manifest import Manifest, State, Tensor
from treadle.backends import call_lock
from treadle.backends.cuda.executor import BufferRef, CudaProgram, Launch, TensorSpec
from treadle.backends.cuda.open_artifact import open_program
from treadle.errors import TreadleError

F32 = np.dtype(np.float32)
X = TensorSpec("x", (2, 3), F32)
Y = TensorSpec("y", (2, 3), F32)
BIAS = np.arange(6, dtype=np.float32)

INPUT, OUTPUT, CONSTANT = BufferRef("input", 0), BufferRef("output", 0), BufferRef("constant", 0)
SCRATCH = BufferRef("arena", 256)


def double(memory: Memory, source: int, target: int) -> None:
    memory[target : target + 6] = 2 * memory[source : source + 6]


def add(memory: Memory, left: int, right: int, target: int) -> None:
    memory[target : target + 6] = memory[left : left + 6] + memory[right : right + 6]


def launch(kernel: str, *buffers: BufferRef, dynamic_shared: int = 0) -> Launch:
    return Launch(kernel, kernel.encode() + b"_image", (4, 1, 1), (32, 1, 1), buffers, dynamic_shared)


LAUNCHES = (launch("double", INPUT, SCRATCH), launch("add", SCRATCH, CONSTANT, OUTPUT))


def make_driver(**options: Any) -> FakeDriver:
    return FakeDriver({"double": double, "add": add}, **options)


def make_program(
    driver: FakeDriver, launches: tuple[Launch, ...] = LAUNCHES, *, owns_driver: bool = False
) -> CudaProgram:
    return CudaProgram(driver, launches, [X], [Y], [BIAS], arena_bytes=512, owns_driver=owns_driver)


class ClosingDriver(FakeDriver):
    """Counts how often it is closed."""

    closed = 0
    capability, device_name = (8, 6), "a device for cubins of sm_80"

    def close(self) -> None:
        """See `Driver`."""
        assert not self.live, "memory is given back first"
        self.closed += 1


def test_launches_run_in_order_through_the_arena() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with make_program(make_driver()) as program:
        (y,) = program.run([x])
    np.testing.assert_array_equal(y, 2 * x + BIAS.reshape(2, 3))


def test_a_run_leaves_nothing_for_the_next() -> None:
    with make_program(make_driver()) as program:
        (first,) = program.run([np.ones((2, 3), np.float32)])
        (second,) = program.run([np.zeros((2, 3), np.float32)])
    np.testing.assert_array_equal(first, 2 + BIAS.reshape(2, 3))
    np.testing.assert_array_equal(second, BIAS.reshape(2, 3))


def count(memory: Memory, source: int, counter: int, target: int) -> None:
    """Reads what has to be zero, and leaves it so."""
    memory[target : target + 6] = memory[source : source + 6] + memory[counter]
    memory[counter] = 0


def test_what_kernels_find_zero_is_cleared_once() -> None:
    driver = FakeDriver({"count": count})
    launches = (launch("count", INPUT, BufferRef("zeroed", 4), OUTPUT),)
    x = np.ones((2, 3), np.float32)
    with CudaProgram(driver, launches, [X], [Y], zeroed_bytes=8) as program:
        for _ in range(2):
            (y,) = program.run([x])
            np.testing.assert_array_equal(y, x)


class Split:
    """Two blocks that each compute a part of a sum; the last to arrive adds both. A fault ends the kernel after one."""

    def __init__(self) -> None:
        self.faults: list[BaseException] = []

    def __call__(self, memory: Memory, source: int, parts: int, counter: int, target: int) -> None:
        for part in (parts, parts + 6):
            memory[part : part + 6] = memory[source : source + 6] / 2
            memory[counter] += 1
            if self.faults:
                raise self.faults.pop()
            if memory[counter] == 2:
                memory[target : target + 6] = memory[parts : parts + 6] + memory[parts + 6 : parts + 12]
                memory[counter] = 0


@pytest.mark.parametrize("fault", [TreadleError("the GPU failed"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("aborted", ["run", "measure", "graph"])
def test_a_run_after_launches_that_were_aborted(aborted: str, fault: BaseException) -> None:
    split = Split()
    driver = FakeDriver({"split": split})
    launches = (launch("split", INPUT, SCRATCH, BufferRef("zeroed", 4), OUTPUT),)
    x = np.ones((2, 3), np.float32)
    with CudaProgram(driver, launches, [X], [Y], arena_bytes=512, zeroed_bytes=8) as program:
        program.run([x])
        split.faults.append(fault)
        with pytest.raises(type(fault)):
            if aborted == "measure":
                program.measure([x], repeats=2)
            elif aborted == "graph":
                program.capture().launch()
                driver.synchronize()
            else:
                program.run([x])
        for factor in (2, 3):
            (y,) = program.run([x * factor])
            np.testing.assert_array_equal(y, x * factor)
        uploads = driver.calls.count("upload")
        program.run([x])
        assert driver.calls.count("upload") == uploads + 1, "zeros again, though nothing failed"


def test_runs_of_several_threads_take_turns() -> None:
    def slow(memory: Memory, source: int, target: int) -> None:
        values = 2 * memory[source : source + 6]
        time.sleep(0.001)
        memory[target : target + 6] = values

    driver = FakeDriver({"double": slow, "add": add})
    with make_program(driver) as program, ThreadPoolExecutor(5) as pool:

        def run(value: int) -> list[np.ndarray]:
            return [program.run([np.full((2, 3), value, np.float32)])[0] for _ in range(5)]

        for value, results in enumerate(pool.map(run, range(5))):
            for y in results:
                np.testing.assert_array_equal(y, 2 * value + BIAS.reshape(2, 3))


def test_a_run_inside_a_run_is_refused() -> None:
    again = [True]

    def nested(memory: Memory, source: int, target: int) -> None:
        double(memory, source, target)
        if again:
            again.pop()
            program.run([np.ones((2, 3), np.float32)])

    program = make_program(FakeDriver({"double": nested, "add": add}))
    with pytest.raises(TreadleError, match="CudaProgram: called while a call of the same thread runs"):
        program.run([np.zeros((2, 3), np.float32)])
    (y,) = program.run([np.ones((2, 3), np.float32)])
    np.testing.assert_array_equal(y, 2 + BIAS.reshape(2, 3))


def test_a_forked_child_cannot_use_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = make_driver()
    program = make_program(driver)
    monkeypatch.setattr(call_lock, "_forks", call_lock.forks() + 1)
    with pytest.raises(TreadleError, match="opened before the process was forked; accepted: a process that is started"):
        program.run([np.zeros((2, 3), np.float32)])
    with pytest.raises(TreadleError, match="capturing a graph: the program was opened before the process was forked"):
        program.capture()
    program.close()
    assert len(driver.live) == 5, "memory of the parent was given back"


def test_an_input_that_is_not_contiguous_is_copied() -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2).T
    with make_program(make_driver()) as program:
        (y,) = program.run([x])
    np.testing.assert_array_equal(y, 2 * x + BIAS.reshape(2, 3))


def test_tensors_without_elements() -> None:
    empty = TensorSpec("x", (0, 3), F32)
    with CudaProgram(make_driver(), (), [empty], [empty]) as program:
        for _ in range(2):
            assert program.run([np.zeros((0, 3), np.float32)])[0].shape == (0, 3)


def test_constants_are_uploaded_and_kernels_loaded_once() -> None:
    driver = make_driver()
    launches = (
        launch("double", INPUT, SCRATCH),
        launch("double", SCRATCH, SCRATCH),
        launch("add", SCRATCH, CONSTANT, OUTPUT, dynamic_shared=1024),
    )
    with make_program(driver, launches) as program:
        assert driver.calls == [
            "upload",
            "load double_image double 2 0",
            "load add_image add 3 1024",
            "synchronize",
        ]
        driver.calls.clear()
        program.run([np.zeros((2, 3), np.float32)])
    assert driver.calls == [
        "upload",
        "launch (4, 1, 1) (32, 1, 1) 0",
        "launch (4, 1, 1) (32, 1, 1) 0",
        "launch (4, 1, 1) (32, 1, 1) 1024",
        "download",
        "synchronize",
    ]


def test_measure_times_the_kernels_only() -> None:
    driver = make_driver()
    with make_program(driver) as program:
        seconds = program.measure([np.zeros((2, 3), np.float32)], repeats=3, warmup=2)
    assert seconds == [1.0, 1.0, 1.0]
    assert sum(call.startswith("launch") for call in driver.calls) == (2 + 3) * len(LAUNCHES)
    assert "download" not in driver.calls


def test_close_gives_all_memory_back() -> None:
    driver = make_driver()
    program = make_program(driver)
    assert len(driver.live) == 5
    program.close()
    program.close()
    assert not driver.live
    with pytest.raises(TreadleError, match="the program was closed"):
        program.run([np.zeros((2, 3), np.float32)])
    with pytest.raises(TreadleError, match="capturing a graph: the program was closed"):
        program.capture()


@pytest.mark.parametrize("owned", [False, True])
def test_a_program_closes_the_driver_that_it_owns(owned: bool) -> None:
    driver = ClosingDriver({"double": double, "add": add})
    program = make_program(driver, owns_driver=owned)
    assert not driver.closed
    program.close()
    assert driver.closed == owned and not driver.live


def test_an_artifact_opens_and_closes_a_driver_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drivers: list[ClosingDriver] = []

    def opened(device: int) -> ClosingDriver:
        drivers.append(ClosingDriver({}, capacity=1024 if drivers else 1 << 16))
        return drivers[-1]

    monkeypatch.setattr("treadle.backends.cuda.open_artifact.open_driver", opened)
    tensors = tuple(Tensor(spec.name, spec.shape, spec.dtype.name) for spec in (X, Y))
    manifest = Manifest("sm_80", "cuda", tensors[:1], tensors[1:], (), arena_bytes=512)
    artifact = cast("Artifact", SimpleNamespace(manifest=manifest))
    open_program(artifact).close()
    assert drivers[0].closed and not drivers[0].live
    with pytest.raises(TreadleError, match="out of memory"):
        open_program(artifact)
    assert drivers[1].closed and not drivers[1].live


def test_a_graph_launches_all_kernels_without_copies() -> None:
    driver = make_driver()
    with make_program(driver) as program:
        driver.calls.clear()
        graph = program.capture()
        assert not driver.calls
        graph.launch()
        graph.close()
    assert len(driver.calls) == len(LAUNCHES) and all(call.startswith("launch") for call in driver.calls)


def test_a_program_that_does_not_fit_gives_back_what_it_took() -> None:
    driver = make_driver(capacity=1024)
    with pytest.raises(TreadleError, match="out of memory"):
        make_program(driver)
    assert not driver.live


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (
            np.zeros((3, 2), np.float32),
            "input 'x': got float32 of shape (3, 2); accepted: float32 of shape (2, 3)",
        ),
        (
            np.zeros((2, 3), np.float64),
            "input 'x': got float64 of shape (2, 3); accepted: float32 of shape (2, 3)",
        ),
    ],
)
def test_an_input_of_another_shape_or_type_is_refused(array: np.ndarray, reason: str) -> None:
    with make_program(make_driver()) as program, pytest.raises(TreadleError) as caught:
        program.run([array])
    assert str(caught.value) == reason


def test_a_wrong_number_of_inputs_is_refused() -> None:
    with (
        make_program(make_driver()) as program,
        pytest.raises(TreadleError, match="got 0 inputs, expected 1"),
    ):
        program.run([])


@pytest.mark.parametrize(
    ("buffer", "reason"),
    [
        (BufferRef("input", 1), "there is no input 1; accepted: 0 to 0"),
        (BufferRef("output", -1), "there is no output -1"),
        (BufferRef("constant", 2), "there is no constant 2"),
        (BufferRef("arena", 512), "there is no arena 512; accepted: 0 to 511"),
        (BufferRef("zeroed", 0), "there is no zeroed 0"),
    ],
)
def test_a_buffer_that_does_not_exist_is_refused(buffer: BufferRef, reason: str) -> None:
    with pytest.raises(TreadleError) as caught:
        make_program(make_driver(), (launch("double", INPUT, buffer),))
    assert f"argument 1 of kernel 'double': {reason}" in str(caught.value)


def test_an_empty_tensor_has_no_bytes() -> None:
    assert TensorSpec("e", (0, 3), F32).num_bytes == 0
    assert TensorSpec("s", (), F32).num_bytes == 4


# What is kept between runs.

STATES = [X, TensorSpec("past", (2, 3), np.dtype(np.float32))], [Y, TensorSpec("present", (2, 3), np.dtype(np.float32))]
KEPT = BufferRef("input", 1), BufferRef("output", 1)


def accumulate(memory: Memory, source: int, state: int, target: int) -> None:
    memory[state : state + 6] += memory[source : source + 6]
    memory[target : target + 6] = memory[state : state + 6]


def follow(memory: Memory, source: int, before: int, after: int, target: int) -> None:
    memory[after : after + 6] = memory[before : before + 6] + memory[source : source + 6]
    memory[target : target + 6] = memory[after : after + 6]


@pytest.mark.parametrize("in_place", [True, False])
def test_states_are_kept_between_runs(in_place: bool) -> None:
    driver = FakeDriver({"accumulate": accumulate, "follow": follow})
    launches = [launch("accumulate", INPUT, KEPT[1], OUTPUT)] if in_place else [launch("follow", INPUT, *KEPT, OUTPUT)]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with CudaProgram(driver, launches, *STATES, states=[State(1, 1, in_place)]) as program:
        assert program.inputs == (X,) and program.outputs == (Y,)
        for n in range(1, 4):
            np.testing.assert_array_equal(program.run([x])[0], n * x)
        program.clear_states()
        np.testing.assert_array_equal(program.run([x])[0], x)
