"""The executor with the real pycuda, on a `libcuda.so.1` whose device is the emulator; `fake_libcuda/cases.py`."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.cuda.fake_libcuda.cases import CASES
from tests.backends.cuda.fake_libcuda.setting import CAPACITY

if importlib.util.find_spec("pycuda") is None:
    pytest.skip("pycuda is not installed", allow_module_level=True)

ROOT = Path(__file__).parents[3]
MODULE = "tests.backends.cuda.fake_libcuda.cases"


@pytest.mark.parametrize("name", list(CASES))
def test_on_the_fake_driver(name: str, fake_driver_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A process of its own: the loader reads LD_LIBRARY_PATH once, and a kernel that fails ends its context.
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver_folder))
    monkeypatch.setenv("TREADLE_FAKE_GPU_DEVICES", "0" if name == "no_device" else "1")
    monkeypatch.setenv("TREADLE_FAKE_GPU_MEMORY", str(CAPACITY))
    monkeypatch.setenv("TREADLE_FAKE_GPU_CAPABILITY", "80")
    monkeypatch.setenv("TREADLE_FAKE_GPU_LIMIT", "2" if name == "a_kernel_that_never_ends" else "60")
    command = [sys.executable, "-W", "error", "-m", MODULE, name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
