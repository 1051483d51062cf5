"""An artifact whose mapped weights are written into, replaced or removed while a model uses them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import treadle
from tests.helpers.onnx_models import linear_model
from treadle.errors import TreadleError

GENERATOR = np.random.default_rng(0)
WEIGHTS = (GENERATOR.standard_normal((1024, 1100)) / 32).astype(np.float32)
"""4.5 MB: enough to be mapped."""
X = GENERATOR.standard_normal((2, 1024)).astype(np.float32)
Y = np.maximum(X @ WEIGHTS, 0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    treadle.compile(linear_model(folder / "m.onnx", weights=WEIGHTS), shapes={"x": (2, 1024)}).save(folder / "saved")
    return folder / "saved"


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "saved"))


def weights_of(folder: Path) -> Path:
    return max((folder / "weights").iterdir(), key=lambda path: path.stat().st_size)


def assert_right(model: treadle.CompiledModel) -> None:
    np.testing.assert_allclose(model(X)[0], Y, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("size", [0, 100, -1, 10_000_000])
def test_weights_that_were_written_into_are_refused(size: int, folder: Path) -> None:
    path = weights_of(folder)
    intact = path.read_bytes()
    with treadle.load(folder) as model:
        assert_right(model)
        path.write_bytes(bytes(len(intact) if size < 0 else size))
        for _ in range(2):
            with pytest.raises(TreadleError, match=rf"{path.name}: the file was written into .*: a folder that"):
                model(X)
        path.write_bytes(intact)
        assert_right(model)


def test_weights_that_have_their_bytes_are_used(folder: Path) -> None:
    with treadle.load(folder) as model:
        assert_right(model)
        os.utime(weights_of(folder), (1, 1))
        assert_right(model)


def test_weights_that_were_replaced_stay(folder: Path) -> None:
    path = weights_of(folder)
    with treadle.load(folder) as model:
        assert_right(model)
        other = path.with_name("other")
        other.write_bytes(bytes(100))
        other.replace(path)
        assert_right(model)
        path.unlink()
        assert_right(model)


COPY = """
import pathlib, subprocess, sys
import numpy as np
import treadle
model, x = treadle.load(sys.argv[1]), np.ones((2, 1024), np.float32)
model(x)
subprocess.run(["cp", sys.argv[2], sys.argv[3]], check=True)
try:
    model(x)
except treadle.TreadleError as error:
    print(error)
"""


def test_cp_over_weights_does_not_end_the_process(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"1")
    command = [sys.executable, "-c", COPY, str(folder), str(tmp_path / "short"), str(weights_of(folder))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "the file was written into" in done.stdout, done.stderr
