"""Whole models, compiled for GPUs: every kernel becomes a cubin that fits the target; emulated, the printed kernels
agree with their definitions, and every check holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest

import treadle
from tests.models.agreement import NAMES, QUICK_ON_GPU, Case
from tests.models.catalog import require_model
from treadle.artifact.store import store_of
from treadle.backends.cuda.compiler import Unit, compile_cubins
from treadle.backends.cuda.cubin import Resources
from treadle.backends.cuda.emulator import CHECKS
from treadle.backends.cuda.machine_code import occupancy
from treadle.environment import load_environment
from treadle.model import CompiledModel
from treadle.target import Target

Shapes = Mapping[str, tuple[int, ...]]

MINILM = ("minilm", {})
TARGETS = ("sm_80", "sm_90")
MATRIX = [
    *((*quick, "sm_80") for quick in (QUICK_ON_GPU, MINILM)),
    *(
        pytest.param(name, {}, target, marks=pytest.mark.slow)
        for target, name in product(TARGETS, NAMES)
        if (name, {}, target) != (*MINILM, "sm_80")
    ),
]
"""Every run compiles two; the rest takes minutes (`make slow-test`)."""

LARGE = ("ppocr_cls", "minilm", "ppocrv4_rec", "ppocrv4_det", "ddddocr_det", "light_resnet50")
EMULATED = [QUICK_ON_GPU, *(pytest.param(name, {}, marks=pytest.mark.slow) for name in LARGE)]
"""Every run emulates one; the rest takes minutes (`make slow-test`)."""


def resources_of(model: CompiledModel) -> dict[str, Resources]:
    """What ptxas said of each kernel; the units come from the cache, where the model's compilation put them."""
    texts = [model.folder / name for name in sorted(model.manifest.files) if name.endswith(".cu")]
    units = [Unit(path.stem, text, _code(text)) for path in texts for text in [path.read_text()]]
    cubins = compile_cubins(units, Target.parse(model.target), cache=store_of(load_environment()))
    return {name: each for cubin in cubins for name, each in cubin.resources.items()}


def _code(text: str) -> str:
    """The text without the comments above a kernel, as the compilation's key in the cache has it."""
    return "\n".join(line for line in text.split("\n") if not line.startswith("//"))


@pytest.mark.parametrize(("name", "shapes", "target"), MATRIX)
def test_every_kernel_becomes_a_cubin(name: str, shapes: Shapes, target: str) -> None:
    entry = require_model(name).with_shapes(shapes)
    model = treadle.compile(entry.path(), target, entry.input_shapes)
    files = model.manifest.files
    texts = {file.removesuffix(".cu") for file in files if file.endswith(".cu")}
    assert texts and texts == {file.removesuffix(".cubin") for file in files if file.endswith(".cubin")}
    resources = resources_of(model)
    launched = {launch.kernel for launch in model.manifest.launches}
    assert launched and launched <= resources.keys()
    assert [kernel for kernel, used in resources.items() if used.spills] == []
    for launch in model.manifest.launches:
        threads, shared = math.prod(launch.block), launch.dynamic_shared
        assert occupancy(resources[launch.kernel], Target.parse(target), threads, shared).blocks >= 1


@pytest.mark.parametrize(("name", "shapes"), EMULATED)
def test_a_model_agrees_and_every_kernel_is_clean(name: str, shapes: Shapes, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    case = Case.of(name, tmp_path, shapes=shapes)
    model = case.compile("cuda", device="emulator", checks=tuple(CHECKS))
    assert case.disagreements(model.run(case.inputs)) == []
    assert {report.kernel for report in model.reports} == {entry.kernel for entry in model.manifest.launches}
    assert [str(report) for report in model.reports if report.findings] == []
