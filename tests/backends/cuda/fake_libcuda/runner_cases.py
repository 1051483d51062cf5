"""Whole programs that otherwise only run where a GPU is: the conformance runner, CUDA graphs, `make gpu-bench`."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from benchmarks import gpu_first, gpu_spaces, space_kernels
from benchmarks.gpu import main as gpu_bench
from benchmarks.schedule_cases import Case, cases
from tests.backends.cuda.conformance.accuracy import assert_agrees
from tests.backends.cuda.conformance.cases import CASES as FUNCTIONS
from tests.backends.cuda.conformance.cases import all_kernels
from tests.backends.cuda.conformance.runners import on_device
from tests.backends.cuda.fake_libcuda.as_python import emulated
from tests.backends.cuda.fake_libcuda.setting import ONE, OUTPUT, SIZE, X, fails, image, kernel, launch, opened, program
from tests.helpers.emulator_cache import cache_with_emulator
from tests.tuning.small_model import write_model
from treadle import compile
from treadle.backends.cuda import write_artifact
from treadle.backends.cuda.compiler import Cubin, Unit
from treadle.backends.cuda.executor import Launch
from treadle.schedules.gpu_time import GpuWork
from treadle.schedules.rules.templates import templates
from treadle.schedules.search.database import Database, read_entry
from treadle.target import Target
from treadle.tuning import candidates, in_model, tuner
from treadle.tuning.model import tune


def functions_of_the_header_run_as_on_a_gpu() -> None:
    """The runner of the conformance cases, which `make gpu-test` uses on a GPU."""
    with opened() as driver:
        for function, case in FUNCTIONS.items():
            result = on_device(function, driver, image(all_kernels()))
            assert_agrees(result, case.expected, case.ulps, case.absolute)


def a_program_becomes_a_graph() -> None:
    """What was recorded once runs at each of three launches, on what then lies in the buffers."""
    adding = launch("y[t] += x[t];"), Launch("k", kernel("y[t] += 1;", "float *y"), *ONE, (OUTPUT,))
    with opened() as driver, program(driver, *adding) as model:
        model.run([X])
        graph = model.capture()
        back, (output,) = np.zeros(SIZE, np.float32), model._addresses["output"]
        driver.upload(output, back)
        driver.download(back, output)
        driver.synchronize()
        assert not back.any()  # recording has run nothing
        graph.launch()
        graph.launch(2)
        driver.download(back, output)
        driver.synchronize()
        np.testing.assert_array_equal(back, 3 * (X + 1))
        graph.close()
        graph.close()
        with fails("launching a graph: the graph was closed"):
            graph.launch()


def the_benchmark_measures_and_writes() -> None:
    """One workload; the cubins are what the fake driver loads, and no other side takes part."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "TREADLE_CACHE_DIR", str(cache_with_emulator(Path(folder)))
        )  # no other test may find these artifacts
        patch.setattr(write_artifact, "compile_cubins", _emulated)
        options = ["--rounds", "3", "--batch-ms", "1", "--peers", "treadle", "ONNX Runtime", "--output", folder]
        assert gpu_bench(["--workloads", "matmul_128", *options]) == 0
        (path,) = Path(folder).glob("gpu-treadle-emulator-*.json")
        content = json.loads(path.read_text())
    assert (content["gpu"], content["capability"], content["rounds"]) == ("Treadle emulator", "8.0", 3)
    (row,) = content["results"]
    (side,) = row["sides"].values()
    assert row["workload"] == "matmul_128" and list(row["missing"]) == ["ONNX Runtime"]
    assert side["cuda_graph"] and side["difference"] == 0 and len(side["rounds_us"]) == 3
    assert 0 < side["quartiles_us"][0] <= side["median_us"]


def schedules_are_timed_and_a_second_run_measures_nothing() -> None:
    """The two schedules of a transposition; they agree, and what was measured is not measured again."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        small = Case("small", ((2, 16, 3, 11),), cases()["channels last, 8 x 64 x 56 x 56"].operators)
        patch.setattr(gpu_spaces, "cases", lambda: {"small": small})
        patch.setattr(gpu_spaces, "describe_run", lambda: {"date": "2030-01-02", "commit": "abc"})
        for module in (gpu_spaces, space_kernels):
            patch.setattr(module, "compile_cubin", lambda unit, target: _emulated([unit], target)[0])
        options = ["--workers", "0", "--rounds", "3", "--flush-mib", "0", "--output", folder]
        assert gpu_spaces.main(options) == 0
        (path,) = Path(folder).glob("gpu-spaces-treadle-emulator-2030-01-02.json")
        content = json.loads(path.read_text())
        patch.setattr(gpu_spaces, "measured", None)
        assert gpu_spaces.main(options) == 0
    (row,) = content["results"]
    assert (row["case"], row["template"], row["target"], row["size"]) == ("small", "transpose_cuda", "sm_80", 2)
    assert [each["difference"] for each in row["schedules"]] == [0.0, 0.0]
    assert all(each["cold_us"] > 0 and each["warm_us"] > 0 and each["rounds"] == 3 for each in row["schedules"])


def a_search_times_kernels_and_its_entries_are_used() -> None:
    """`treadle tune --target cuda`: builds here, times in a process that owns the device; one candidate of which is
    wrong, and one of which writes where no memory is. `compile --database` takes what is written."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TREADLE_CACHE_DIR", str(cache_with_emulator(Path(folder))))
        patch.setattr(tuner, "MEASURED", 4)
        patch.setattr(in_model, "_TIMED_SECONDS", 0.2)
        model, database = write_model(Path(folder) / "m.onnx"), Path(folder) / "tuned"
        damaged = iter((None, None, "wrong", "lost"))

        def compiled(unit: Unit, target: Target) -> Cubin:
            text = _DAMAGE.get(next(damaged, None) or "", str)(unit.text)
            return _emulated([Unit(unit.name, text)], target)[0]

        patch.setattr(candidates, "compile_cubin", compiled)
        patch.setattr(write_artifact, "compile_cubins", _emulated)
        with ThreadPoolExecutor(1) as executor:
            groups = tune(
                model, database, target="cuda", groups=["matmul"], trials=5, seconds=600, executor=executor,
                rules=(templates,), strategy="random",
            )  # fmt: skip
        (group,) = groups
        trials = Database(database).trials(group.task.digest, group.hardware)
        errors = [str(each.error) for each in trials if each.error is not None]
        entries = [read_entry(path) for path in database.glob("*/*.mlir")]
        again = compile(model, "cuda", database=database, cached=False)
        again(np.zeros((20, 48), np.float32))
        again.close()  # the other cases count the device's memory
        times = in_model.model_times((again.folder, again.folder), 1, 0.2)
    assert group.hardware == "A100 SXM4 80GB sm_80", group.hardware
    assert [each.us is not None for each in trials].count(True) >= 3 and len(errors) == 2, errors
    assert any("is wrong in" in each for each in errors) and any("DeviceLostError" in each for each in errors), errors
    assert {each.record.how for each in entries} <= {"Treadle emulator"}
    assert all(isinstance(trial.work, GpuWork) for trial in trials if trial.us)
    assert times.launches == ({}, {}) and min(times.calls[0]) > 0


_BODY = ") {\n"
_DAMAGE: dict[str, Callable[[str], str]] = {
    "wrong": lambda text: text.replace(" += ", " -= "),
    "lost": lambda text: text.replace(_BODY, f"{_BODY}if (threadIdx.x == 0) C[1 << 28] = 0.0f;\n", 1),
}
"""What makes a kernel give other numbers, or write where no memory is."""


def the_first_minutes_are_rehearsed() -> None:
    """Every step of `make gpu-first` on its smallest case: each ends with a result, and all are in one folder."""
    python = (sys.executable, "-m", "tests.backends.cuda.fake_libcuda.as_python")
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TREADLE_CACHE_DIR", f"{folder}/cache")
        results = Path(folder, "results")
        ended = gpu_first.main(["--rehearse", "--seconds", "1500", "--output", str(results)], python)
        content = json.loads((results / "steps.json").read_text())
        written = {str(path.relative_to(results)).rsplit("-", 3)[0] for path in results.rglob("*-*.json")}
    steps = {step["step"]: step for step in content["steps"]}
    assert {name: step["ended"] for name, step in steps.items()} == dict.fromkeys(
        [step.name for step in gpu_first.STEPS], "passed"
    ), steps
    assert ended == 0 and content["gpu"] == "Treadle emulator"
    assert len(steps["conformance"]["tests"]) >= len(FUNCTIONS)
    assert set(steps["kernels"]["tests"].values()) == {"passed"}
    own = {f"{name}/gpu-treadle-emulator" for name in ("operators", "models")}
    assert written == own | {"gpu-spaces-treadle-emulator"}


def _emulated(units: Sequence[Unit], target: Target, **_: object) -> list[Cubin]:
    return [emulated(unit, target.name) for unit in units]
