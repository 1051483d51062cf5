"""`treadle run --profile`: tables of what the emulator counted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import treadle
from tests.helpers.onnx_models import WEIGHTS, linear_model
from treadle.backends.cuda.emulator import Counters, LineCounters, Report
from treadle.errors import TreadleError
from treadle.tools.profile_table import print_profile, profile_table
from treadle.tools.treadle_cli import main

SOURCE = "first;\n    second(line);\n"
LINES = (
    LineCounters(1, global_requests=4, global_sectors=18, global_ideal=16, global_read=512),
    LineCounters(2, shared_requests=2, shared_phases=2, shared_wavefronts=34, operations=1234567, special=3),
)
COUNTERS = Counters(SOURCE, (2, 3, 1), (64, 1, 1), LINES)


def _printed(counters: Counters, width: int) -> list[str]:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(profile_table(counters, width))
    return [line.rstrip() for line in captured.get().splitlines()]


def _rows(counters: Counters) -> list[list[str]]:
    return [line.split() for line in _printed(counters, 118)]


def test_a_row_for_the_total_and_each_line() -> None:
    groups, headings, _, total, first, second = _rows(COUNTERS)
    assert groups == ["global", "sectors", "ideal", "bytes", "shared", "bank"]
    assert headings == ["line", "accesses", "each", "each", "read", "accesses", "conflicts", "flop", "special", "text"]
    assert total == ["total", "4", "4.50", "4.00", "512", "2", "32", "1.235M", "3"]
    assert first == ["1", "4", "4.50", "4.00", "512", "first;"]
    assert second == ["2", "2", "32", "1.235M", "3", "second(line);"]


def test_what_is_not_known_is_a_question_mark() -> None:
    unknown = tuple(dataclasses.replace(line, operations=None, special=None) for line in LINES)
    assert _rows(dataclasses.replace(COUNTERS, lines=unknown))[3][-2:] == ["?", "?"]
    nowhere = (dataclasses.replace(LINES[0], line=0),)
    assert _rows(dataclasses.replace(COUNTERS, lines=nowhere))[4] == ["?", "4", "4.50", "4.00", "512"]


@pytest.mark.parametrize("width", [100, 118, 200])
def test_long_lines_are_shortened(width: int) -> None:
    rows = _printed(dataclasses.replace(COUNTERS, source="a" * 300), width)
    assert max(map(len, rows)) == width and rows[4].endswith("a…")


def test_equal_launches_share_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    other = dataclasses.replace(COUNTERS, grid=(1, 1, 1))
    kernels = [("k", COUNTERS), ("k", other), ("k", COUNTERS), ("l", COUNTERS), ("m", None)]
    print_profile([Report(kernel, (), (), counters) for kernel, counters in kernels])
    titles = [line for line in capsys.readouterr().out.splitlines() if " blocks of " in line]
    assert titles == [
        "k: 2 launches, each of 2 x 3 x 1 blocks of 64 x 1 x 1 threads",
        "k: 1 launch of 1 x 1 x 1 blocks of 64 x 1 x 1 threads",
        "l: 1 launch of 2 x 3 x 1 blocks of 64 x 1 x 1 threads",
    ]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return linear_model(tmp_path / "m.onnx")


@pytest.mark.parametrize("sanitize", [[], ["--sanitize"]])
def test_run_and_profile(sanitize: list[str], model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(model), "--device", "emulator", "--profile", *sanitize]) == 0
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= 120
    total = next(line.split() for line in output.splitlines() if line.startswith("total"))
    # 2 x 4 elements are written, each a sum of 8 products.
    assert "32" in total and "matmul_relu: 1 launch of " in output
    assert output.rstrip().endswith("findings: 0; launches: 1; kernels: 1") == bool(sanitize)


def test_a_saved_model_is_counted(model: Path, tmp_path: Path) -> None:
    treadle.compile(model, "sm_80").save(tmp_path / "saved")
    loaded = treadle.load(tmp_path / "saved", device="emulator", counters=True)
    x = np.ones((2, 8), np.float32)
    np.testing.assert_allclose(loaded(x)[0], np.maximum(x @ WEIGHTS, 0), rtol=1e-5, atol=1e-6)
    (counters,) = (report.counters for report in loaded.reports)
    assert counters is not None and counters.total.global_written == 32
    assert "matmul_relu" in counters.source


def test_counting_needs_the_emulator(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(model), "--profile"]) == 2
    assert "--device: --profile needs the emulator; accepted: emulator" in capsys.readouterr().err
    with pytest.raises(TreadleError, match="counters without the emulator; accepted: emulator"):
        treadle.compile(model, counters=True)
