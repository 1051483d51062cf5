"""Written IR names the stage that left it, and is resumed there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import treadle
from tests.helpers.onnx_models import WEIGHTS, linear_model
from treadle import ir
from treadle.errors import TreadleError
from treadle.target import Target
from treadle.tools.treadle_cli import main as treadle_main
from treadle.tools.treadle_opt import main

TARGET = "cpu{vector_bytes=32 vector_registers=16}"


@pytest.fixture
def schedule(tmp_path: Path) -> Path:
    path = tmp_path / "schedule.mlir"
    model = str(linear_model(tmp_path / "m.onnx"))
    assert main([model, "--pipeline", TARGET, "--to", "schedule", "-o", str(path)]) == 0
    return path


def test_every_way_to_resume(schedule: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 'builtin.module attributes {treadle.stage = "schedule"} {' in schedule.read_text()
    printed: list[str] = []
    for options in ([], ["--from", "schedule"]):
        assert main([str(schedule), "--pipeline", TARGET, *options, "-t", "c"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != ""
    assert main([str(schedule), "--pipeline", TARGET, "--to", "loops"]) == 0
    assert 'treadle.stage = "loops"' in capsys.readouterr().out
    x = np.random.default_rng(0).standard_normal((2, WEIGHTS.shape[0])).astype(np.float32)
    (y,) = treadle.compile(schedule, Target.parse(TARGET))(x)
    np.testing.assert_allclose(y, np.maximum(x @ WEIGHTS, 0), rtol=1e-5, atol=1e-5)
    assert treadle_main(["compile", str(schedule), "--target", TARGET, "--to", "plan", "-o", "-"]) == 0
    text = capsys.readouterr().out
    module = ir.parse(text)
    ir.lower(module, TARGET)
    assert 'treadle.stage = "plan"' in text and "treadle.stage" not in ir.print_text(module)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--from", "fuse"], "stage 'schedule' left the module, not 'fuse'; accepted: 'schedule', or no stage"),
        (["--to", "graph"], "stage 'graph' comes before 'schedule'"),
    ],
)
def test_another_stage(options: list[str], says: str, schedule: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(schedule), *options]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("value", ['"fused"', "3"])
def test_no_stage(value: str, schedule: Path) -> None:
    text = re.sub(r'treadle.stage = "schedule"', f"treadle.stage = {value}", schedule.read_text())
    with pytest.raises(TreadleError, match=r"unknown stage '(fused|3 : i64)'; accepted:"):
        ir.lower(ir.parse(text))
