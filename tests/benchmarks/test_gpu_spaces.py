"""Timing whole schedule spaces: a fake device, ranks, what is resumed, what a run without a GPU says.

That it runs on a driver is a case on the fake one, `tests/backends/cuda/fake_libcuda/runner_cases.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from rich.console import Console

from benchmarks import gpu_spaces
from benchmarks.gpu_spaces import main, measured, rows_of, standing, table
from benchmarks.result_files import write_results
from benchmarks.schedule_cases import Case, cases
from benchmarks.space_kernels import SpaceKernel, kernel_of, space_kernels
from benchmarks.space_times import Bench, time_kernels
from tests.backends.cuda.fake_driver import FakeDriver, Memory
from treadle.backends.interface import BufferRef
from treadle.errors import TreadleError
from treadle.target import Target

SIZE = 8
BUFFERS = (BufferRef("input", 0), BufferRef("output", 0))
TARGET = Target.parse("sm_80")
SMALL = Case("channels last", ((2, 16, 3, 11),), cases()["channels last, 8 x 64 x 56 x 56"].operators)


def doubled(memory: Memory, x: int, y: int) -> None:
    memory[y : y + SIZE] = 2 * memory[x : x + SIZE]


def wrong(memory: Memory, x: int, y: int) -> None:
    memory[y : y + SIZE] = 3 * memory[x : x + SIZE]


def flush(memory: Memory, x: int) -> None:
    memory[x] += 1


def kernel(name: str, **choices: int) -> SpaceKernel:
    return SpaceKernel(choices, b"cubin", name, buffers=BUFFERS, registers=24)


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver({"doubled": doubled, "wrong": wrong, "treadle_flush": flush})


@pytest.fixture
def bench(driver: FakeDriver) -> Iterator[Bench]:
    x = np.arange(SIZE, dtype=np.float32)
    with Bench(driver, [x], np.zeros(SIZE, np.float32), b"flush", 4096) as bench:
        yield bench
    assert not driver.live


def test_schedules_take_turns_and_are_compared_with_the_first(bench: Bench, driver: FakeDriver) -> None:
    broken = SpaceKernel({"threads": 7}, error="too many")
    timed, failed = time_kernels(bench, [kernel("doubled", threads=1), kernel("wrong", threads=2), broken], 5, 1e9)
    assert failed == [broken]
    assert [each.difference for each in timed] == [0.0, 0.5]
    assert [len(each.cold) for each in timed] == [len(each.warm) for each in timed] == [5, 5]
    # The fake device's clock counts events.
    assert timed[0].median_cold == 1.0 and timed[0].median_warm == 0.25


def test_l2_is_overwritten_before_each_measurement(bench: Bench, driver: FakeDriver) -> None:
    launch = bench.bind(kernel("doubled"))
    driver.calls.clear()
    bench.cold(launch)
    flushing = "launch (4, 1, 1) (256, 1, 1) 0"
    own = "launch (1, 1, 1) (1, 1, 1) 0"
    assert driver.calls == [flushing, flushing, own]
    driver.calls.clear()
    bench.warm(launch)
    assert driver.calls == [flushing] * 4 + [own] * 5


def test_partial_sums_and_counters_get_memory_that_schedules_share(bench: Bench, driver: FakeDriver) -> None:
    """Split-k: a kernel adds what it finds in the arena, counts in memory that is zero, and leaves it zero."""

    def split(memory: Memory, x: int, y: int, partial: int, counter: int) -> None:
        assert memory[counter : counter + 2].tolist() == [0.0, 0.0]
        memory[partial : partial + SIZE] = memory[x : x + SIZE]
        memory[y : y + SIZE] = 2 * memory[partial : partial + SIZE]

    driver.kernels = {**driver.kernels, "split": split}
    scratch = (*BUFFERS, BufferRef("arena", 256), BufferRef("zeroed", 8))
    some = [
        SpaceKernel({"split_k": n}, b"cubin", "split", buffers=scratch, arena=256 + 4 * SIZE, zeroed=16) for n in (2, 3)
    ]
    timed, failed = time_kernels(bench, [kernel("doubled"), *some], 3, 1e9)
    assert not failed and [each.difference for each in timed] == [0.0, 0.0, 0.0]
    assert len(driver.live) == 3 + 2  # input, output, what is flushed; one arena and one block of counters for both


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 3), (8.0, 8), (100.0, 10)])
def test_rounds_end_with_the_time(bench: Bench, driver: FakeDriver, seconds: float, rounds: int) -> None:
    # Four events are a round, and a second.
    timed, _ = time_kernels(bench, [kernel("doubled")], 10, seconds, lambda: driver._clock / 4)
    assert len(timed[0].cold) == rounds


def test_a_kernel_that_fails_is_named_with_its_choices(bench: Bench) -> None:
    def breaks(memory: Memory, x: int, y: int) -> None:
        raise TreadleError("the GPU failed: an illegal memory access", where="waiting for the device")

    bench._driver.kernels = {"breaks": breaks}  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TreadleError, match=r"kernel 'breaks' of \{'threads': 3\}: the GPU failed: an illegal"):
        time_kernels(bench, [kernel("breaks", threads=3)], 1, 1.0)


def test_a_kernel_that_cannot_be_loaded_is_left_out(bench: Bench) -> None:
    odd = SpaceKernel({"threads": 3}, b"cubin", "doubled", buffers=(*BUFFERS, BufferRef("constant", 0)))
    timed, failed = time_kernels(bench, [kernel("doubled"), odd], 1, 1.0)
    assert [each.kernel.name for each in timed] == ["doubled"]
    assert [each.error for each in failed] == [
        "gpu_spaces: a kernel reads constant memory; accepted: input, output, arena, zeroed"
    ]


def row(*times: float) -> dict[str, Any]:
    schedules = [{"cold_us": each, "warm_us": each / 2, "difference": 0.0} for each in times]
    return {"case": "a sum", "template": "reduce_cuda", "size": len(times), "schedules": schedules, "failed": []}


def test_the_default_stands_first_in_a_row() -> None:
    assert standing(row(3.0, 2.0, 4.0, 1.5), "cold_us") == (3, 2.0)
    assert standing(row(3.0), "warm_us") == (1, 1.0)
    screen = StringIO()
    Console(file=screen, width=160).print(table([row(3.0, 2.0, 4.0, 1.5), row()], "Some GPU"))
    assert "3 of 4" in screen.getvalue() and "2.00" in screen.getvalue() and "none of 0 compiles" in screen.getvalue()


def test_only_what_the_same_commit_has_measured_is_resumed(tmp_path: Path) -> None:
    for commit, date in (("abc", "2030-01-01"), ("def", "2030-01-02"), ("def with changes", "2030-01-03")):
        write_results("gpu-spaces-x", {"date": date, "commit": commit}, [row(float(date[-1]))], tmp_path)
    assert rows_of(tmp_path, "gpu-spaces-x", "def")["a sum"]["schedules"][0]["cold_us"] == 2.0
    assert not rows_of(tmp_path, "gpu-spaces-x", "def with changes")
    assert not rows_of(tmp_path, "gpu-spaces-y", "def")


def test_a_space_becomes_kernels_the_default_first() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")
    found = list(space_kernels(SMALL, TARGET, workers=0))
    assert next(dict(each.choices) for each in found) == SMALL.default(TARGET).knobs()
    assert sorted(str(dict(each.choices)) for each in found) == sorted(map(str, SMALL.space(TARGET)))
    assert all(each.image and each.registers and each.error is None for each in found)
    assert {each.buffers for each in found} == {BUFFERS}


def test_processes_compile_in_the_same_order() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")
    alone, shared = (list(space_kernels(SMALL, TARGET, workers)) for workers in (0, 1))
    assert [(each.choices, each.name, each.block) for each in alone] == [
        (each.choices, each.name, each.block) for each in shared
    ]


def test_a_schedule_without_a_kernel_says_why() -> None:
    found = kernel_of(SMALL.text(), "transpose_cuda", "sm_80", {"threads": 3})
    assert found.error is not None and "threads" in found.error


def test_a_row_holds_every_schedule(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    some = [kernel("doubled", threads=1), kernel("wrong", threads=2), SpaceKernel({"threads": 9}, error="no")]
    monkeypatch.setattr(gpu_spaces, "space_kernels", lambda *_: iter(some))
    found = measured(SMALL, TARGET, bench, 0, 3, 1.0)
    assert json.loads(json.dumps(found)) == found
    assert (found["size"], [each["choices"]["threads"] for each in found["schedules"]]) == (3, [1, 2])
    assert found["failed"] == [{"choices": {"threads": 9}, "error": "no"}]
    assert found["schedules"][0]["rounds"] == 3 and found["schedules"][1]["difference"] == 0.5


def test_without_a_gpu_there_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu_spaces, "why_no_gpu", lambda: "no GPU: none was built in")
    assert main([]) == 0
    assert capsys.readouterr().out == "gpu-spaces skipped: no GPU: none was built in\n"


def test_a_case_that_breaks_the_device_is_written_down_and_the_next_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[MagicMock] = []

    def open_driver() -> MagicMock:
        opened.append(MagicMock(capability=(8, 0)))
        return opened[-1]

    def bench(driver: object, case: Case, *_: object) -> MagicMock:
        if len(opened) == 1:
            raise TreadleError("the GPU failed: an illegal memory access", where="waiting for the device")
        return MagicMock()

    monkeypatch.setattr(gpu_spaces, "why_no_gpu", lambda: None)
    monkeypatch.setattr(gpu_spaces, "describe_run", lambda: {"date": "2030-01-02", "commit": "abc"})
    monkeypatch.setattr(gpu_spaces, "describe_gpu", lambda: {"gpu": "Some GPU"})
    monkeypatch.setattr(gpu_spaces, "open_driver", open_driver)
    monkeypatch.setattr(gpu_spaces, "compile_cubin", lambda *_: MagicMock(image=b""))
    monkeypatch.setattr(gpu_spaces, "cases", lambda: {"broken": SMALL, "next": SMALL})
    monkeypatch.setattr(gpu_spaces, "_bench", bench)
    monkeypatch.setattr(gpu_spaces, "measured", lambda *_: row(3.0))
    assert main(["--output", str(tmp_path)]) == 1
    assert "broken: waiting for the device: the GPU failed: an illegal memory access" in capsys.readouterr().out
    (path,) = tmp_path.glob("*.json")
    first, second = json.loads(path.read_text())["results"]
    assert "illegal" in first["error"] and second == row(3.0)
    assert [driver.close.called for driver in opened] == [True, True]


def test_anchors_without_time_are_left_for_the_next_run(tmp_path: Path) -> None:
    measured_names: list[str] = []
    assert gpu_spaces._each(["a", "b"], measured_names.append, deadline=float("inf")) == []
    assert gpu_spaces._each(["c", "d"], measured_names.append, deadline=0.0) == ["c", "d"]
    assert measured_names == ["a", "b"]


@pytest.mark.parametrize("options", [["--case", "gpt5"], ["--seconds", "soon"]])
def test_wrong_arguments_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(options)
    assert "invalid" in capsys.readouterr().err
