"""The same input, the same text, byte for byte: resumed after any stage, and in any process."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path

import onnx
import pytest

from benchmarks.growing_models import GROWING
from tests.models.agreement import NAMES
from tests.models.catalog import CatalogModel, require_model
from tests.models.shortened import shortened
from treadle.compiler.pipeline import STAGE_NAMES, lower, record_stage
from treadle.dialects.registry import treadle_context
from treadle.frontends.onnx import import_model
from treadle.passes.instruments import Verify, ir_text, verify
from treadle.target import Target
from treadle.tools.treadle_opt import main
from treadle.tools.universe import TREADLE_UNIVERSE

PRINTED = {"cpu": "c", "sm_80": "cuda"}
"""The text target that each target's last stage is printed with."""
ONE = [pytest.param("cpu", marks=pytest.mark.slow), "sm_80"]
"""Small models resume on both targets (tests/test_compiler.py)."""

ANOTHER_SEED = "19"
"""Of string hashes; this process's own is random."""

QUICK = "ppocr_cls"
"""The model of every run, without its repeated layers (`tests/models/shortened.py`)."""
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in NAMES if name != QUICK]
PAIRS = [
    pytest.param(*pair, marks=pytest.mark.slow if pair[0] in ("schedule", "kernels", "plan") else ())
    for pair in itertools.pairwise(STAGE_NAMES)
]
"""Behind kernels a model's text is the longest, and what resumes at `schedule` passes there, too: it goes to the end,
and small models' IR is compared from there (tests/test_compiler.py)."""
TO_THE_END = [
    pytest.param(name, stage, marks=() if (name, stage) == (QUICK, "schedule") else pytest.mark.slow)
    for name in NAMES
    for stage in STAGE_NAMES
]
"""Every run resumes where decisions are edited. From the other borders it resumes up to the next one, which implies the
rest but for what the text does not show (`make slow-test`)."""


@dataclass(frozen=True)
class Road:
    """A model's way from ONNX to text without a stop: its file, the text, and the IR at each border on the way."""

    model: Path
    text: bytes
    borders: dict[str, Path]


Walk = Callable[[str, str], Road]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """The road of a model to a target, valid at every border; each is walked once."""

    @cache
    def walked(name: str, target: str) -> Road:
        folder = tmp_path_factory.mktemp(f"{name}-{target}")
        model = require_model(name)
        path = shortened(name, folder) if name == QUICK else model.path()
        module = import_model(path, model.input_shapes)
        borders: dict[str, Path] = {}
        previous: str | None = None
        for stage in STAGE_NAMES:
            lower(treadle_context(), module, Target.parse(target), after=previous, to=stage)
            record_stage(module, stage)
            verify(module, f"after stage '{stage}'")
            previous, borders[stage] = stage, folder / f"{stage}.mlir"
            borders[stage].write_text(ir_text(module))
        text = StringIO()
        TREADLE_UNIVERSE.all_targets[PRINTED[target]]()().emit(treadle_context(), module, text)
        return Road(path, text.getvalue().encode(), borders)

    return walked


@pytest.mark.parametrize("target", PRINTED)
def test_every_pass_leaves_a_small_model_valid(target: str, tmp_path: Path) -> None:
    onnx.save(GROWING["blocks"](7).proto(), tmp_path / "m.onnx")
    lower(treadle_context(), import_model(tmp_path / "m.onnx"), Target.parse(target), instruments=[Verify()])


@pytest.mark.slow
@pytest.mark.parametrize("target", PRINTED)
@pytest.mark.parametrize("name", NAMES)
def test_every_pass_leaves_a_model_valid(name: str, target: str) -> None:
    model = require_model(name)
    module = import_model(model.path(), model.input_shapes)
    lower(treadle_context(), module, Target.parse(target), instruments=[Verify()])


def arguments(path: Path, model: CatalogModel, target: str) -> list[str]:
    """What treadle-opt is told to print the code of a model, or of one made of it, in a file."""
    shapes = (f"{name}={','.join(map(str, shape))}" for name, shape in model.input_shapes.items())
    given = [word for shape in shapes for word in ("--shape", shape)]
    return [str(path), *given, "--pipeline", target, "-t", PRINTED[target]]


def resume(road: Road, stage: str, target: str, wanted: list[str], folder: Path) -> bytes:
    """What treadle-opt makes of the text at the end of a stage."""
    resumed = folder / "resumed"
    told = ["--from", stage, "--pipeline", target, *wanted, "--disable-verify", "-o", str(resumed)]
    assert main([str(road.borders[stage]), *told]) == 0
    return resumed.read_bytes()


@pytest.mark.parametrize(("stage", "following"), PAIRS)
@pytest.mark.parametrize("target", ONE)
@pytest.mark.parametrize("name", [QUICK, *SLOW])
def test_a_stage_saved_as_text_becomes_the_next(
    name: str, target: str, stage: str, following: str, walk: Walk, tmp_path: Path
) -> None:
    road = walk(name, target)
    text = resume(road, stage, target, ["--to", following], tmp_path)
    assert text.rstrip() == road.borders[following].read_bytes().rstrip()


@pytest.mark.parametrize("target", ONE)
@pytest.mark.parametrize(("name", "stage"), TO_THE_END)
def test_a_stage_saved_as_text_resumes(name: str, target: str, stage: str, walk: Walk, tmp_path: Path) -> None:
    road = walk(name, target)
    assert resume(road, stage, target, ["-t", PRINTED[target]], tmp_path) == road.text


@pytest.mark.slow
@pytest.mark.parametrize("target", ONE)
@pytest.mark.parametrize("name", NAMES)
def test_another_process_prints_the_same(
    name: str, target: str, walk: Walk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sets of strings have another order in each process: no decision may hang on it."""
    road = walk(name, target)
    told = arguments(road.model, require_model(name), target)
    assert of_another_process(told, tmp_path, monkeypatch) == road.text


@pytest.mark.parametrize("target", ONE)
def test_another_process_prints_the_same_of_small_models(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(GROWING["blocks"](7).proto(), tmp_path / "m.onnx")
    told = [str(tmp_path / "m.onnx"), "--pipeline", target, "-t", PRINTED[target]]
    assert main([*told, "--disable-verify", "-o", str(tmp_path / "here")]) == 0
    assert of_another_process(told, tmp_path, monkeypatch) == (tmp_path / "here").read_bytes()


def of_another_process(told: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """What treadle-opt prints where strings have other hashes."""
    monkeypatch.setenv("PYTHONHASHSEED", ANOTHER_SEED)
    text = folder / "text"
    told = [*told, "--disable-verify", "-o", str(text)]
    subprocess.run([sys.executable, "-m", "treadle.tools.treadle_opt", *told], check=True)
    return text.read_bytes()
