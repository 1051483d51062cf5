"""Whole models, compiled for the CPU, agree with their definitions; wrong ones do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tests.helpers.onnx_models import save_model, value
from tests.models import wrong_models
from tests.models.agreement import NAMES, SMALLER, Case
from tests.models.catalog import MODELS, text_page
from treadle.tools.oracle import Definition, reference_outputs

THREADS = 2
SLOW = ("ddddocr_det",)
"""The largest, whose kernels are those of the other detector."""
QUICK = [name for name in NAMES if name not in SLOW]
OTHERS = [name for name in MODELS if name not in NAMES]
"""Of the catalog: a recogniser whose LSTM takes 20 steps, and the light models of which every run knows a like one."""
UNMOVED = ("light_densenet121", "light_inception_v2")
"""Models whose weights are all alike, and which give nearly the same whatever the picture."""
SIZED = [
    *((name, SMALLER.get(name, {})) for name in QUICK),
    *(pytest.param(name, {}, marks=pytest.mark.slow) for name in (*SMALLER, *SLOW, *OTHERS)),
]

Cases = Callable[[str], Case]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """The case of a name, at the sizes of every run; each is evaluated once."""
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("models")
    known: dict[str, Case] = {}

    def case(name: str) -> Case:
        if name not in known:
            known[name] = Case.of(name, folder, shapes=SMALLER.get(name))
        return known[name]

    return case


@pytest.mark.parametrize(("name", "shapes"), SIZED)
def test_a_model_agrees(name: str, shapes: Mapping[str, tuple[int, ...]], cases: Cases, tmp_path: Path) -> None:
    case = cases(name) if shapes == SMALLER.get(name, {}) else Case.of(name, tmp_path)
    model = case.compile("cpu", threads=THREADS)
    outputs = model.run(case.inputs)
    assert case.disagreements(outputs) == []
    unnoticed = case.unnoticed(model)
    assert [each for each in unnoticed if not (name in UNMOVED and each.startswith("of zeros"))] == []
    model.close()


@pytest.mark.parametrize(("name", "change"), wrong_models.CASES, ids=lambda x: getattr(x, "__name__", x))
def test_a_wrong_model_does_not_agree(name: str, change: wrong_models.Change, cases: Cases, tmp_path: Path) -> None:
    case = cases(name)
    wrong = wrong_models.changed(case.path, tmp_path / "wrong.onnx", change)
    results = case.compare(reference_outputs(wrong, case.inputs, list(case.expected)))
    assert not all(result.agrees for result in results), "; ".join(map(str, results))


def test_f16_agrees_and_bf16_does_not_pass_for_it(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = small_network(tmp_path / "small.onnx")
    inputs = {"x": text_page(np.random.default_rng(0), (1, 3, 24, 24))}
    definition = Definition.of_file(path, inputs, "f16")
    case = Case(path, inputs, definition, definition.outputs())
    assert case.disagreements(case.compile("cpu", threads=THREADS).run(inputs)) == []
    coarse = wrong_models.changed(path, tmp_path / "coarse.onnx", wrong_models.weights_in_bf16)
    results = case.compare(reference_outputs(coarse, inputs, list(case.expected)))
    assert not all(result.agrees for result in results), "; ".join(map(str, results))


def small_network(path: Path) -> Path:
    """Two convolutions, their mean and a product, with random weights."""
    shapes = {"a": (16, 3, 3, 3), "b": (32, 16, 3, 3), "d": (32, 100)}
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.normal(0, (2 / np.prod(shape[1:])) ** 0.5, shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [helper.make_node("Flatten", ["mean"], ["flat"]), helper.make_node("MatMul", ["flat", "d"], ["y"])]
    nodes.insert(0, helper.make_node("GlobalAveragePool", ["rb"], ["mean"]))
    for before, name in reversed([("x", "a"), ("ra", "b")]):
        nodes.insert(0, helper.make_node("Relu", [f"c{name}"], [f"r{name}"]))
        nodes.insert(0, helper.make_node("Conv", [before, name], [f"c{name}"], pads=[1] * 4, strides=[2, 2]))
    return save_model(path, nodes, [value("x", (1, 3, 24, 24))], [value("y", (1, 100))], weights)
