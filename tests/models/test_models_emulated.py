"""A BERT, MobileNet-V2, quantised and recurrent models: CUDA kernels on the emulator, with every check, and C."""

from __future__ import annotations

from pathlib import Path

import pytest

import treadle
from tests.models.derived import MAKERS
from treadle.backends.cuda.emulator import CHECKS
from treadle.tools.oracle import check_model

THREADS = 2


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_a_model_is_clean_on_the_emulator(name: str, tmp_path: Path) -> None:
    path, inputs = MAKERS[name](tmp_path)
    shapes = {key: array.shape for key, array in inputs.items()}
    model = treadle.compile(path, "cuda", shapes, device="emulator", checks=tuple(CHECKS))
    check = check_model(path, inputs, model.run(inputs))
    print(*check.own, *check.reference, sep="\n")
    assert check.agrees and check.reference, [str(each) for each in (*check.own, *check.reference)]
    assert {report.kernel for report in model.reports} == {entry.kernel for entry in model.manifest.launches}
    assert [str(report) for report in model.reports if report.findings] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_a_model_on_the_cpu(name: str, tmp_path: Path) -> None:
    path, inputs = MAKERS[name](tmp_path)
    shapes = {key: array.shape for key, array in inputs.items()}
    with treadle.compile(path, "cpu", shapes, threads=THREADS) as model:
        check = check_model(path, inputs, model.run(inputs))
    print(*check.own, *check.reference, sep="\n")
    assert check.agrees and check.reference, [str(each) for each in (*check.own, *check.reference)]
