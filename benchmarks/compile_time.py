"""How long `treadle compile` takes as a user calls it, with an empty cache and again with a full one.

Run as a file, it shows how compilation time grows with the model (`compile_growth.py`):

    python benchmarks/compile_time.py
    python benchmarks/compile_time.py --models chain --nodes 250 1000 --json
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CompileTime:
    """Seconds of the whole process, Python's start included."""

    name: str
    target: str
    cold: float
    warm: float


def measure_compile(name: str, path: Path, shapes: Mapping[str, Sequence[int]], target: str) -> CompileTime:
    """Compiles the model twice with a cache that is empty at first; CalledProcessError if a compilation fails."""
    with tempfile.TemporaryDirectory(prefix="treadle-bench-") as scratch:
        folder = Path(scratch)
        command = compile_command(path, shapes, target, folder)
        cold = _seconds([*command, "-o", str(folder / "cold")])
        warm = _seconds([*command, "-o", str(folder / "warm")])
    return CompileTime(name, target, cold, warm)


def compile_command(path: Path, shapes: Mapping[str, Sequence[int]], target: str, folder: Path) -> list[str]:
    """`treadle compile` without `-o`, in a process whose cache lies in `folder`."""
    command = ["env", f"TREADLE_CACHE_DIR={folder / 'cache'}", sys.executable, "-m", "treadle.tools.treadle_cli"]
    command += ["compile", str(path), "--target", target]
    for name, shape in shapes.items():
        command += ["--shape", f"{name}={','.join(map(str, shape))}"]
    return command


def _seconds(command: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    # Run as a file, Python knows this folder but not the one above it.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(importlib.import_module("benchmarks.compile_growth").main())
