"""What a result depends on besides the code: the processor, the date, the commit, the versions."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from treadle.backends.c.toolchain import find_toolchain
from treadle.knobs import available_cores, load_knobs

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("treadle", "xdsl", "numpy", "onnxruntime")


def describe_run() -> dict[str, object]:
    """The circumstances of a run, ready for JSON."""
    versions = {name: version(name) for name in PACKAGES}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "cpu": cpu_model(),
        "cores": available_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "compiler": find_toolchain(load_knobs()).version.splitlines()[0],
        "versions": {"python": platform.python_version(), **versions},
    }


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


def commit() -> str:
    """The commit that is checked out, marked if the working tree differs from it; "unknown" outside of git."""
    try:
        head = _git("rev-parse", "HEAD")
        return f"{head} with changes" if _git("status", "--porcelain") else head
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
