"""Whole models on a real GPU agree with their definitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.agreement import NAMES, Case

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", NAMES)
def test_a_model_agrees(name: str, tmp_path: Path) -> None:
    case = Case.of(name, tmp_path)
    model = case.compile("cuda")
    outputs = model.run(case.inputs)
    model.close()
    assert case.disagreements(outputs) == []
