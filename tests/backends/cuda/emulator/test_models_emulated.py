"""Whole models: the kernels that are printed for a GPU agree with their definitions, and every check holds."""

from __future__ import annotations

from pathlib import Path

import pytest

import treadle
from tests.helpers.random_weights import with_random_weights
from tests.models.agreement import Case
from tests.models.catalog import require_model
from treadle.backends.cuda.emulator import CHECKS

QUICK = ("ppocr_cls", "minilm")
"""What every run of the tests emulates; the rest takes minutes (`make slow-test`)."""
SLOW = ("ppocrv4_rec", "ppocrv4_det", "ddddocr_det", "light_resnet50")

NAMES = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_agrees(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    case = Case.of(name, tmp_path)
    assert case.disagreements(case.compile("cuda", device="emulator").run(case.inputs)) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_of_a_model_is_clean(name: str, tmp_path: Path) -> None:
    path = _path(name, tmp_path)
    inputs = require_model(name).sample_inputs()
    shapes = {input: array.shape for input, array in inputs.items()}
    model = treadle.compile(path, "cuda", shapes, device="emulator", checks=tuple(CHECKS))
    model.run(inputs)
    assert {report.kernel for report in model.reports} == {entry.kernel for entry in model.manifest.launches}
    assert [str(report) for report in model.reports if report.findings] == []


def _path(name: str, folder: Path) -> Path:
    """The model's file; with random weights where its own are constant."""
    path = require_model(name).path()
    return with_random_weights(path, folder / f"{name}.onnx") if name.startswith("light_") else path
