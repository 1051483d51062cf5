"""Whether there is a GPU, asked of no driver, and of the fake one with and without a device."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from treadle.backends.cuda import gpu_probe
from treadle.backends.cuda.gpu_probe import why_no_gpu

# -S -E: no packages and no environment, as before anything is installed.
PROBE = [sys.executable, "-S", "-E", str(Path(gpu_probe.__file__))]


def test_no_driver() -> None:
    reason = "no GPU: the NVIDIA driver is not installed (libnone.so.1 cannot be loaded)"
    assert why_no_gpu("libnone.so.1") == reason


class FakeLibrary:
    """A driver that starts with a status and finds no device."""

    def __init__(self, status: int, named: bool = True) -> None:
        self._status, self._named = status, named

    def cuInit(self, flags: int) -> int:
        return self._status

    def cuDeviceGetCount(self, count: object) -> int:
        return 0

    def cuGetErrorName(self, status: int, name: object) -> int:
        if self._named:
            name._obj.value = b"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"  # pyright: ignore[reportAttributeAccessIssue]
        return 0 if self._named else 1


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        (FakeLibrary(0), "is installed and finds no device"),
        (FakeLibrary(803), "does not start (cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)"),
        (FakeLibrary(803, named=False), "does not start (cuInit: error 803)"),
    ],
)
def test_a_driver_of_no_use(library: FakeLibrary, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_probe.ctypes, "CDLL", lambda name: library)
    assert why_no_gpu.__wrapped__("libcuda.so.1") == f"no GPU: the NVIDIA driver {reason}"


@pytest.mark.parametrize(("devices", "status", "said"), [("1", 0, ""), ("0", 1, "no GPU: the NVIDIA driver")])
def test_as_a_command(
    devices: str, status: int, said: str, fake_driver_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver_folder))
    monkeypatch.setenv("TREADLE_FAKE_GPU_DEVICES", devices)
    done = subprocess.run(PROBE, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, "")
    assert done.stdout.startswith(said) and done.stdout.count("\n") == status


@pytest.mark.skipif(shutil.which("make") is None or why_no_gpu() is None, reason="needs make, and no GPU")
@pytest.mark.parametrize("target", ["gpu-test", "gpu-bench"])
def test_make_skips_in_one_line(target: str) -> None:
    command = ["make", "--silent", "--no-print-directory", target, f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{target} skipped: {why_no_gpu()}\n"
