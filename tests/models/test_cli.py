"""The command line on a real model, as a user would go: check, compile, run, compare."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.models.catalog import require_model
from treadle.tools.treadle_cli import main


def test_check_compile_run_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    entry = require_model("ppocr_cls")
    model, shape, saved = str(entry.path()), ["--shape", "x=1,3,48,192"], tmp_path / "saved"
    np.save(tmp_path / "x.npy", entry.sample_inputs()["x"])
    values = ["--input", f"x={tmp_path / 'x.npy'}", "--threads", "2"]

    assert main(["check", model, *shape]) == 0
    assert main(["compile", model, *shape, "-o", str(saved)]) == 0
    capsys.readouterr()
    assert main(["run", str(saved), *values]) == 0
    from_folder = capsys.readouterr().out.splitlines()[0]
    assert main(["run", model, *values, "--check"]) == 0
    from_model = capsys.readouterr()
    assert from_model.out.splitlines()[0] == from_folder
    assert from_model.out.rstrip().endswith("agrees") and from_model.err == ""
    assert {path.name for path in tmp_path.iterdir()} == {"saved", "x.npy"}
