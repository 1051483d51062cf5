"""A model that another version of Treadle compiles and runs, in a process of its own, called from this one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.bench.interleave import Run

Array = NDArray[Any]

_SERVE = """
import os
import sys
checkout, path, folder, threads, *names = sys.argv[1:]
sys.path.insert(0, checkout)
os.environ["TREADLE_CACHE_DIR"] = folder + "/cache"  # versions do not read each other's artifacts
import numpy as np
import treadle
inputs = dict(zip(names, np.load(folder + "/inputs.npz").values()))
shapes = {name: array.shape for name, array in inputs.items()}
model = treadle.compile(path, "cpu", shapes, threads=int(threads))
ordered = [inputs[tensor.name] for tensor in model.inputs]
np.savez(folder + "/outputs.npz", *(np.asarray(y) for y in model(*ordered)))
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        model(*ordered)
    print("done", flush=True)
"""
"""What all versions understand: `treadle.compile`, and a model that is called with arrays."""


@dataclass(frozen=True)
class Side:
    """A model that is measured: what it gives, in order, and what calls it so many times."""

    outputs: list[Array]
    run: Run


@contextmanager
def other_version(
    checkout: Path, path: Path, inputs: Mapping[str, Array], threads: int, python: str = sys.executable
) -> Generator[Side]:
    """Compiles a model for the CPU with the sources of a checkout, and the default schedules; SystemExit if it cannot.

    python: an interpreter that has what that version needs
    """
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "inputs.npz", *inputs.values())
        told = [str(checkout.resolve()), str(path.resolve()), folder, str(threads), *inputs]
        process = subprocess.Popen(
            [python, "-c", _SERVE, *told], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder
        )
        asked, answers = process.stdin, process.stdout
        assert asked is not None and answers is not None

        def expect(answer: str) -> None:
            if answers.readline().strip() != answer:
                raise SystemExit(
                    f"{python} with the sources in {checkout} cannot compile or run {path.name}: see above"
                )

        def run(count: int) -> None:
            print(count, file=asked, flush=True)
            expect("done")

        try:
            expect("ready")
            with np.load(Path(folder) / "outputs.npz") as outputs:
                results = list(outputs.values())
            yield Side(results, run)
        finally:
            process.kill()
            process.communicate()


__all__ = ["Side", "other_version"]
