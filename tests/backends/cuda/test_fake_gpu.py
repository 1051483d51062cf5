"""The executor with the real bindings, on a `libcuda.so.1` whose device is the emulator; `fake_libcuda/cases.py`."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.backends.cuda.fake_libcuda.as_python import in_place_of_nvrtc
from tests.backends.cuda.fake_libcuda.cases import ALONE, CASES, ONLY_PYCUDA, SLOW
from tests.backends.cuda.fake_libcuda.setting import CAPACITY
from tests.helpers.environment import environment_with
from treadle.backends.cuda import compiler
from treadle.backends.cuda.compiler import Unit, compile_cubin
from treadle.target import Target

ROOT = Path(__file__).parents[3]
MODULE = "tests.backends.cuda.fake_libcuda.cases"
TOGETHER = [name for name in CASES if name not in ALONE]

Run = Callable[[str, tuple[str, ...]], dict[str, str | None]]


@pytest.fixture(scope="module")
def run(fake_driver_folder: Path) -> Run:
    """Runs cases in a process of their own, since the loader reads LD_LIBRARY_PATH once; what became of each."""

    @cache
    def outcomes(binding: str, names: tuple[str, ...]) -> dict[str, str | None]:
        settings = {
            "LD_LIBRARY_PATH": str(fake_driver_folder),
            "TREADLE_CUDA_DRIVER": binding,
            "TREADLE_FAKE_GPU_DEVICES": "0" if "no_device" in names else "2",
            "TREADLE_FAKE_GPU_MEMORY": str(CAPACITY),
            "TREADLE_FAKE_GPU_CAPABILITY": "80",
            "TREADLE_FAKE_GPU_LIMIT": "2" if "a_kernel_that_never_ends" in names else "60",
        }
        command = [sys.executable, "-W", "error", "-m", MODULE, *names]
        environment = environment_with(settings)
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800, check=False
        )
        found: dict[str, str | None] = dict.fromkeys(names, f"did not run: {done.stderr}")
        return found | dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))

    return outcomes


def _can_run(binding: str, name: str) -> bool:
    return binding == "pycuda" or name not in ONLY_PYCUDA


@pytest.mark.parametrize(
    ("binding", "name"),
    [
        pytest.param(binding, name, marks=[pytest.mark.slow] if name in SLOW else [])
        for binding in ("bindings", "pycuda")
        for name in CASES
        if _can_run(binding, name)
    ],
)
def test_on_the_fake_driver(binding: str, name: str, run: Run) -> None:
    if importlib.util.find_spec({"bindings": "cuda", "pycuda": "pycuda"}[binding]) is None:
        pytest.skip(f"{binding} is not installed")
    together = tuple(each for each in TOGETHER if _can_run(binding, each))
    error = run(binding, (name,) if name in ALONE else together)[name]
    assert error is None, error


def test_what_stands_in_for_nvrtc_is_called_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a rehearsal, which takes minutes, uses it otherwise."""
    monkeypatch.setattr(compiler, "_compile", in_place_of_nvrtc)
    cubin = compile_cubin(Unit("k", 'extern "C" __global__ void k(float *y) { *y = 1; }\n'), Target.parse("sm_80"))
    assert cubin.image[1:4] == b"ELF" and list(cubin.resources) == ["k"]
