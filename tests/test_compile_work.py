"""That compilation takes work in proportion to the model's size: calls of Python functions are counted, not seconds."""

from __future__ import annotations

import cProfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array

import treadle
from benchmarks.growing_models import GROWING
from tests.helpers.sampling import every
from treadle.backends.c.printer import print_kernels
from treadle.compiler.request import CompileRequest, lowered_module
from treadle.frontends.onnx import import_model
from treadle.ir import lower
from treadle.passes.graph import definition_analysis
from treadle.target import Target

GROWTH = 2.2
"""How much more the nodes from 2n to 4n may take than those from n to 2n: twice as much, and a little more, since the
sizes of what is merged differ. A quadratic step takes four times as much."""
NODES = {"chain": 16, "wide": 16, "diamonds": 18, "tree": 30, "softmax": 6, "blocks": 7}
"""Of the smallest model: enough for several definitions of the largest size, which the tests bound by less."""
WORK = 40


def calls(name: str, nodes: int, target: str, folder: Path) -> int:
    """Calls of Python functions while a model is lowered, and printed as C."""
    path = folder / f"{name}-{nodes}.onnx"
    onnx.save(GROWING[name](nodes).proto(), path)
    profile = cProfile.Profile(builtins=False)
    profile.enable()
    try:
        module = lowered_module(CompileRequest(path, Target.parse(target)))
        if target == "cpu":
            print_kernels(module)
    finally:
        profile.disable()
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize(
    ("name", "target"), [*every(2, [(name, "cpu") for name in GROWING], names=2), ("blocks", "sm_80")]
)
def test_work_grows_with_the_number_of_nodes(
    name: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definition_analysis, "MOST_WORK", WORK)
    calls(name, 8, target, tmp_path)  # what is imported or kept when something is first used
    one, two, four = (calls(name, NODES[name] * times, target, tmp_path) for times in (1, 2, 4))
    assert four - two < GROWTH * (two - one), (one, two, four)


def fusion_calls(parts: int) -> int:
    """Calls of Python functions up to stage fuse, of a concat of a chain of products, each transposed."""
    nodes, weights = list[NodeProto](), list[TensorProto]()
    for n in range(parts):
        last = f"y{n - 1}" if n else "x"
        nodes += [make_node("MatMul", [last, f"w{n}"], [f"y{n}"]), make_node("Transpose", [f"y{n}"], [f"t{n}"])]
        weights.append(from_array(np.full((4, 4), 0.1, np.float32), f"w{n}"))
    nodes.append(make_node("Concat", [f"t{n}" for n in range(parts)], ["y"], axis=0))
    x, y = (make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", (3, 4)), ("y", None)))
    graph = make_graph(nodes, "concat", [x], [y], weights)
    module = import_model(make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8).SerializeToString())
    profile = cProfile.Profile(builtins=False)
    profile.runcall(lower, module, "avx2", to="fuse")
    return sum(entry.callcount for entry in profile.getstats())


def test_work_on_a_concat_grows_with_its_operands() -> None:
    """As in a dense block, whose layers read all that is before them."""
    fusion_calls(2)
    one, two, four = (fusion_calls(12 * times) for times in (1, 2, 4))
    assert four - two < GROWTH * (two - one), (one, two, four)


@pytest.mark.parametrize(("name", "nodes"), [("chain", 300), ("wide", 100), ("diamonds", 300), ("softmax", 25)])
def test_values_of_long_models(name: str, nodes: int, tmp_path: Path) -> None:
    model = GROWING[name](nodes)
    onnx.save(model.proto(), tmp_path / "m.onnx")
    found = treadle.compile(tmp_path / "m.onnx")(model.x)
    for given, wanted in zip(found, model.outputs.values(), strict=True):
        np.testing.assert_allclose(given, wanted, rtol=2e-5, atol=1e-6)
