"""Whole models, compiled for GPUs: every kernel becomes a cubin that fits the target."""

from __future__ import annotations

import math

import pytest

import treadle
from tests.models.agreement import NAMES
from tests.models.catalog import require_model
from treadle.backends.cuda.compiler import Unit, compile_cubins
from treadle.backends.cuda.resources import Resources, occupancy
from treadle.environment import load_environment
from treadle.model import CompiledModel
from treadle.store import store_of
from treadle.target import Target

QUICK = {("ppocr_cls", "sm_80"), ("minilm", "sm_80")}
"""What every run of the tests compiles; the rest takes minutes (`make slow-test`)."""

MATRIX = [
    pytest.param(name, target, marks=() if (name, target) in QUICK else pytest.mark.slow)
    for target in ("sm_80", "sm_90")
    for name in NAMES
]


def resources_of(model: CompiledModel) -> dict[str, Resources]:
    """What ptxas said of each kernel; the units come from the cache, where the model's compilation put them."""
    texts = [model.folder / name for name in sorted(model.manifest.files) if name.endswith(".cu")]
    units = [Unit(path.stem, text, _code(text)) for path in texts for text in [path.read_text()]]
    cubins = compile_cubins(units, Target.parse(model.target), cache=store_of(load_environment()))
    return {name: each for cubin in cubins for name, each in cubin.resources.items()}


def _code(text: str) -> str:
    """The text without the comments above a kernel, as the compilation's key in the cache has it."""
    return "\n".join(line for line in text.split("\n") if not line.startswith("//"))


@pytest.mark.parametrize(("name", "target"), MATRIX)
def test_every_kernel_becomes_a_cubin(name: str, target: str) -> None:
    entry = require_model(name)
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
