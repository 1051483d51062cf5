"""The printed CUDA text itself, compiled for the processor: whole artifacts on a fake device against the graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

import treadle
from tests.backends.cuda.fake_driver import FakeDriver
from tests.backends.cuda.host_kernels import COMPILER, host_kernels
from tests.helpers.graphs import Array, Graph, random
from treadle.backends.cuda.open_artifact import open_program
from treadle.backends.reference import evaluate_module
from treadle.dialects.graph import (
    BinaryOp,
    ConcatOp,
    ConvOp,
    MatmulOp,
    PoolOp,
    ReductionOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
)

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))


def product(graph: Graph) -> SSAValue:
    """Tiles that overhang on every side, more steps than one, an epilogue."""
    scores = graph.add(MatmulOp(graph[0], graph.constant(random(37, 130))))
    return graph.add(UnaryOp("relu", graph.add(BinaryOp("add", scores, graph.constant(random(130))))))


def convolution(graph: Graph) -> SSAValue:
    """im2col as a prologue whose border is a predicate."""
    return graph.add(
        UnaryOp("tanh", graph.add(ConvOp(graph[0], graph.constant(random(5, 3, 3, 3)), [2, 2], [1] * 4, [1, 1], 1)))
    )


def depthwise(graph: Graph) -> SSAValue:
    filtered = graph.add(ConvOp(graph[0], graph.constant(random(3, 1, 3, 3)), [1, 1], [1] * 4, [1, 1], 3))
    return graph.add(PoolOp("max", filtered, [2, 2], [2, 2], [0] * 4, [1, 1]))


def attention(graph: Graph) -> SSAValue:
    """A transposed right operand, a softmax as reductions, a batch."""
    keys = graph.add(TransposeOp(graph[0], [0, 2, 1]))
    weights = graph.add(SoftmaxOp(graph.add(MatmulOp(graph[0], keys)), 2))
    return graph.add(MatmulOp(weights, graph[0]))


def squeeze(graph: Graph) -> SSAValue:
    """A mean over pixels, and a product of one row that is reduced by whole blocks."""
    mean = graph.add(ReductionOp("mean", graph[0], [0], keep=True))
    return graph.add(UnaryOp("sigmoid", graph.add(MatmulOp(mean, graph.constant(random(70, 21))))))


def joined(graph: Graph) -> SSAValue:
    return graph.add(ConcatOp([graph[0], graph.add(UnaryOp("exp", graph[0]))], 1))


CASES = {
    "product": (product, (67, 37)),
    "convolution": (convolution, (1, 3, 19, 23)),
    "depthwise": (depthwise, (1, 3, 14, 10)),
    "attention": (attention, (2, 33, 20)),
    "squeeze": (squeeze, (45, 70)),
    "joined": (joined, (3, 5, 7)),
}


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", CASES)
def test_an_artifact_computes_what_its_graph_says(name: str, target: str, tmp_path: Path) -> None:
    build, shape = CASES[name]
    graph = Graph(random(*shape))
    module = graph.module(build(graph))
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
