"""The printed CUDA text itself, compiled for the processor: whole artifacts on a fake device against the graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

import treadle
from tests.backends.cuda.fake_driver import FakeDriver
from tests.backends.cuda.gpu_graphs import CASES
from tests.backends.cuda.host_kernels import COMPILER, host_kernels
from tests.helpers.graphs import Array, Graph, random
from treadle.backends.cuda.open_artifact import open_program
from treadle.backends.reference import evaluate_module

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", CASES)
def test_an_artifact_computes_what_its_graph_says(name: str, target: str, tmp_path: Path) -> None:
    graph = Graph(random(*CASES[name].large))
    module = graph.module(CASES[name].build(graph))
    (expected,) = evaluate_module(module, graph.inputs)
    (actual,) = run_on_host(module, graph.inputs, target, tmp_path)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5 * float(np.abs(expected).max()))


def run_on_host(module: ModuleOp, inputs: tuple[Array, ...], target: str, folder: Path) -> list[Array]:
    """Compiles, saves and loads a module, and runs its printed kernels on a fake device."""
    treadle.compile(module, target).save(folder / "saved")
    model = treadle.load(folder / "saved")
    launches = model.manifest.launches
    assert all(_starts_on_a_line(launch) for launch in launches)
    images = sorted({launch["image"] for launch in launches})
    texts = [(model.folder / image).with_suffix(".cu").read_text() for image in images]
    shapes = {launch["kernel"]: (launch["grid"][0], launch["block"][0]) for launch in launches}
    for image in images:  # the device that is played here reads names, not code
        (model.folder / image).write_text(image)
    driver = FakeDriver(host_kernels(texts, shapes, folder), capacity=1 << 20)
    with open_program(model.folder, model.manifest, driver) as program:
        return program.run(list(inputs))


def _starts_on_a_line(launch: Mapping[str, object]) -> bool:
    """Whether temporaries lie at multiples of the 256 bytes at which allocations lie."""
    buffers = launch["buffers"]
    assert isinstance(buffers, list)
    return all(offset % 256 == 0 for kind, offset in buffers if kind == "arena")
