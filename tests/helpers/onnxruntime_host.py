"""A program in C that loads a library into ONNX Runtime, without Python."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import onnxruntime
import pytest

INPUT = ((np.arange(32) - 16) / 4).reshape(4, 8)
"""What the host calls a model with."""


def sum_of_host(
    tmp_path: Path,
    kind: Literal["provider", "operator"],
    library: Path,
    model: Path,
    variables: Mapping[str, str] | None = None,
) -> float:
    """The sum of the output that a model with one input x of 4 by 8 floats has for `INPUT`, by a host that registers
    `library` as an execution provider or as one of custom operators. Skips the test where there is no library or gcc.
    """
    found = sorted((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    if not found or (compiler := shutil.which("gcc")) is None:
        pytest.skip("no libonnxruntime.so in this wheel, or no gcc")
    runtime, host = tmp_path / "libonnxruntime.so.1", tmp_path / "host"
    runtime.symlink_to(found[0])
    source = Path(__file__).with_suffix(".c")
    subprocess.run([compiler, "-w", str(source), str(runtime), f"-Wl,-rpath,{tmp_path}", "-o", str(host)], check=True)
    command = [str(host), kind, str(library), str(model)]
    return float(subprocess.run(command, capture_output=True, check=True, text=True, env=variables).stdout)
