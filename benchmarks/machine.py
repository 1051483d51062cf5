"""What a result depends on besides the code: the processor or GPU, the date, the commit, the versions."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from treadle.backends.c.compiler import find_toolchain
from treadle.backends.cuda.open_driver import open_driver
from treadle.environment import available_cores, load_environment
from treadle.support.version import __version__

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("xdsl", "numpy", "onnxruntime")
GPU_PACKAGES = (
    *("nvidia-cuda-nvrtc", "cuda-bindings", "pycuda"),
    *("torch", "torchvision", "transformers", "triton", "onnxruntime-gpu"),
)


def describe_run() -> dict[str, object]:
    """The circumstances of a run, ready for JSON."""
    versions = {"treadle": __version__, **versions_of(PACKAGES)}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "cpu": cpu_model(),
        "cores": available_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "compiler": find_toolchain(load_environment()).version.splitlines()[0],
        "versions": {"python": platform.python_version(), **versions},
    }


def describe_gpu(driver_version: Path = Path("/proc/driver/nvidia/version")) -> dict[str, object]:
    """The GPU at hand, its driver and what may run on it, ready for JSON; TreadleError without one."""
    device = open_driver()
    try:
        name, (major, minor) = device.device_name, device.capability
        cuda, binding = ".".join(map(str, device.cuda_version)), type(device).__name__
    finally:
        device.close()
    return {
        "gpu": name,
        "capability": f"{major}.{minor}",
        "driver": nvidia_driver(driver_version),
        "driver_cuda": cuda,
        "binding": binding,
        "gpu_versions": versions_of(GPU_PACKAGES),
    }


def nvidia_driver(path: Path) -> str:
    """The version in the file that NVIDIA's kernel module writes, such as 580.65.06; "unknown" without."""
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", path.read_text()) if path.is_file() else None
    return found.group(1) if found else "unknown"


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """The versions of those that are installed; the checkout itself need not be."""
    return {name: found for name in packages if (found := installed(name)) is not None}


def installed(package: str) -> str | None:
    """The version of an installed package; None if it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name and its widest vectors, as far as the system tells them."""
    if not cpuinfo.is_file():
        return platform.processor() or "unknown"
    fields = dict(
        (key.strip(), value.strip())
        for key, sign, value in (line.partition(":") for line in cpuinfo.read_text().splitlines())
        if sign
    )
    flags = fields.get("flags", "").split()
    vectors = next((name for name in ("avx512f", "avx2") if name in flags), "")
    return f"{fields.get('model name', 'unknown')} {vectors}".strip()


def commit(checkout: Path = ROOT) -> str:
    """The commit that is checked out, marked if the working tree differs from it; "unknown" outside of git."""
    try:
        head = _git(checkout, "rev-parse", "HEAD")
        return f"{head} with changes" if _git(checkout, "status", "--porcelain") else head
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(checkout: Path, *arguments: str) -> str:
    command = ["git", "-C", str(checkout), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
