"""Whole models: the kernels that are printed for a GPU agree with their definitions, and every check holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.models.agreement import Case
from treadle.backends.cuda.emulator import CHECKS

QUICK = ("ppocr_cls", {"x": (1, 3, 48, 96)})
"""What every run of the tests emulates, at half its width; the rest takes minutes (`make slow-test`)."""
SLOW = ("ppocr_cls", "minilm", "ppocrv4_rec", "ppocrv4_det", "ddddocr_det", "light_resnet50")

NAMES = [QUICK, *(pytest.param(name, {}, marks=pytest.mark.slow) for name in SLOW)]


@pytest.mark.parametrize(("name", "shapes"), NAMES)
def test_a_model_agrees_and_every_kernel_is_clean(
    name: str, shapes: Mapping[str, tuple[int, ...]], tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    case = Case.of(name, tmp_path, shapes=shapes)
    model = case.compile("cuda", device="emulator", checks=tuple(CHECKS))
    assert case.disagreements(model.run(case.inputs)) == []
    assert {report.kernel for report in model.reports} == {entry.kernel for entry in model.manifest.launches}
    assert [str(report) for report in model.reports if report.findings] == []
