"""The same input, the same text, byte for byte: resumed after any stage, and in any process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.models.agreement import NAMES
from tests.models.catalog import CatalogModel, require_model
from treadle.compiler import STAGE_NAMES, STAGES, passes_of
from treadle.target import Target
from treadle.tools.treadle_opt import main

PRINTED = {"cpu": "c", "sm_80": "cuda"}
"""The text target that each target's last stage is printed with."""

ANOTHER_SEED = "19"
"""Of string hashes; this process's own is random."""

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in NAMES if name != "ppocr_cls"]


@dataclass(frozen=True)
class Road:
    """A model's way from ONNX to text without a stop: the text, and the IR at each border on the way."""

    text: bytes
    borders: dict[str, Path]


Walk = Callable[[str, str], Road]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """The road of a model to a target; each is walked once."""

    @cache
    def walked(name: str, target: str) -> Road:
        folder = tmp_path_factory.mktemp(f"{name}-{target}")
        text, trace = folder / "text", folder / "trace"
        assert main([*arguments(require_model(name), target), "--trace", str(trace), "-o", str(text)]) == 0
        written = sorted(trace.iterdir())
        borders: dict[str, Path] = {}
        passes = 0
        for stage in STAGES:
            passes += len(passes_of(stage, Target.parse(target)))
            borders[stage.name] = written[passes]
        return Road(text.read_bytes(), borders)

    return walked


def arguments(model: CatalogModel, target: str) -> list[str]:
    """What treadle-opt is told to print a model's code."""
    shapes = (f"{name}={','.join(map(str, shape))}" for name, shape in model.input_shapes.items())
    given = [word for shape in shapes for word in ("--shape", shape)]
    return [str(model.path()), *given, "--pipeline", target, "-t", PRINTED[target]]


@pytest.mark.parametrize("stage", STAGE_NAMES)
@pytest.mark.parametrize("target", PRINTED)
@pytest.mark.parametrize("name", ["ppocr_cls", *SLOW])
def test_a_stage_saved_as_text_resumes(name: str, target: str, stage: str, walk: Walk, tmp_path: Path) -> None:
    road, resumed = walk(name, target), tmp_path / "text"
    told = ["--from", stage, "--pipeline", target, "-t", PRINTED[target], "--disable-verify", "-o", str(resumed)]
    assert main([str(road.borders[stage]), *told]) == 0
    assert resumed.read_bytes() == road.text


@pytest.mark.parametrize("target", PRINTED)
@pytest.mark.parametrize("name", ["ppocr_cls", *SLOW])
def test_another_process_prints_the_same(
    name: str, target: str, walk: Walk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sets of strings have another order in each process: no decision may hang on it."""
    monkeypatch.setenv("PYTHONHASHSEED", ANOTHER_SEED)
    text = tmp_path / "text"
    told = [*arguments(require_model(name), target), "--disable-verify", "-o", str(text)]
    subprocess.run([sys.executable, "-m", "treadle.tools.treadle_opt", *told], check=True)
    assert text.read_bytes() == walk(name, target).text
