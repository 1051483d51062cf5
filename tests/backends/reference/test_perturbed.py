"""Samples of what rounding errors do: where limits of the worst case say nothing, and a wrong result is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp, f32, i32

from tests.frontends.onnx.models import model, node
from tests.helpers.graphs import Graph, random
from treadle.backends.reference import evaluate_module
from treadle.backends.reference.bound_module import bound_module
from treadle.backends.reference.bounded import Bounded
from treadle.backends.reference.perturbed import limited_by_samples, perturbed_module
from treadle.dialects.graph import BinaryOp, CastOp, MaskOp, MatmulOp, ReductionOp, UnaryOp
from treadle.frontends.onnx import import_model

Array = NDArray[Any]
LAYERS = 8


def quantised_layers(rows: int, off: float = 1.0) -> ModuleOp:
    """Layers whose inputs are quantised by their ranges, as ONNX Runtime writes them; the second one's scale
    is off by a factor."""
    rng, weights, nodes, last = np.random.default_rng(0), dict[str, Array](), list[Any](), "x"
    for n in range(LAYERS):
        weights[f"w{n}"] = rng.integers(-128, 128, (64, 64)).astype(np.int8)
        weights[f"f{n}"] = np.array(0.004 * (off if n == 1 else 1.0), np.float32)
        nodes += [
            node("DynamicQuantizeLinear", last, f"q{n} s{n} z{n}"),
            node("MatMulInteger", f"q{n} w{n} z{n}", f"i{n}"),
            node("Cast", f"i{n}", f"c{n}", to=1),
            node("Mul", f"s{n} f{n}", f"t{n}"),
            node("Mul", f"c{n} t{n}", f"y{n}"),
            node("Tanh", f"y{n}", f"h{n}"),
        ]
        last = f"h{n}"
    return import_model(model(nodes, {"x": (rows, 64)}, [last], weights, 21).SerializeToString())


def part(actual: Array, expected: Bounded) -> float:
    return float(np.max(np.abs(actual - expected.value) / expected.full_error))


def test_samples_limit_what_rounding_to_steps_decides() -> None:
    inputs = [random(8, 64)]
    module = quantised_layers(8)
    (worst,) = bound_module(module, inputs)
    assert worst.full_error.min() > np.abs(worst.value).max(), "limits say nothing"
    (limited,) = limited_by_samples(module, inputs, [worst])
    assert np.array_equal(limited.value, worst.value) and limited.full_error.max() < 0.5 * np.abs(worst.value).max()
    (declared,) = evaluate_module(module, inputs)
    assert part(declared, limited) <= 1
    (wrong,) = evaluate_module(quantised_layers(8, 1.2), inputs)
    assert part(wrong, limited) > 1 > part(wrong, worst)


def test_a_few_elements_keep_their_limits() -> None:
    """A decision may have the same outcome in all samples."""
    inputs = [random(8, 64)]
    module = quantised_layers(8)
    (worst,) = bound_module(module, inputs)
    few = Bounded(worst.value[:1, :31], worst.full_error[:1, :31])
    assert limited_by_samples(module, inputs, [few]) == (few,)


def test_limits_that_say_something_stay() -> None:
    graph = Graph(random(8, 64), random(64, 8, seed=1))
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    results = bound_module(module, graph.inputs)
    assert limited_by_samples(module, graph.inputs, results) == results
    (wide,) = (each.off_by(100.0) for each in results)
    assert limited_by_samples(module, graph.inputs, [wide]) == (wide,), "nothing rounds to steps"


def test_a_change_that_no_sample_would_show_by_chance_is_allowed() -> None:
    """A declared evaluation may change no decision at all; a sample changes the likeliest of every layer."""
    inputs = [random(8, 64)]
    module = quantised_layers(8)
    (worst,) = bound_module(module, inputs)
    (declared,) = evaluate_module(module, inputs)
    for seed in range(3):
        (sample,) = perturbed_module(module, inputs, seed)
        assert np.abs(sample - worst.value).max() > 1000 * np.abs(declared - worst.value).max()


@pytest.mark.parametrize("terms", [1, 4, 256])
def test_errors_of_sums_are_within_their_limits(terms: int) -> None:
    """They are drawn from what the limits allow for, and are not far below it."""
    graph = Graph(random(64, terms), random(terms, 64, seed=1))
    product = graph.add(MatmulOp(graph[0], graph[1]))
    total = graph.add(ReductionOp("add", graph.add(UnaryOp("exp", product)), [1], False))
    module = graph.module(product, total)
    bounds = bound_module(module, graph.inputs)
    for seed in range(3):
        for sample, bound in zip(perturbed_module(module, graph.inputs, seed), bounds, strict=True):
            assert 0.01 < part(sample, bound) < 1
    first, again, other = (perturbed_module(module, graph.inputs, seed)[0] for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_what_is_exact_has_no_error() -> None:
    """Whole numbers in floats, integers, comparisons of these, and masks."""
    graph = Graph(random(8, 8) * 100, np.arange(64, dtype=np.int32).reshape(8, 8), np.array(3, np.int64))
    whole = graph.add(UnaryOp("floor", graph[0]))
    shifted = graph.add(BinaryOp("add", whole, graph.constant(np.float32(128))))
    floats = graph.add(BinaryOp("mul", graph.add(CastOp(graph[1], f32)), graph.constant(np.float32(0.5))))
    results = [
        graph.add(CastOp(shifted, i32)),
        graph.add(BinaryOp("add", graph[1], graph[1])),
        graph.add(BinaryOp("lt", floats, shifted)),
        graph.add(MaskOp(shifted, graph[2], 1, -np.inf)),
    ]
    module = graph.module(*results)
    for sample, exact in zip(
        perturbed_module(module, graph.inputs, 0), evaluate_module(module, graph.inputs), strict=True
    ):
        np.testing.assert_array_equal(sample, exact)


def test_loops_and_branches() -> None:
    """A recurrent layer is a loop over its steps."""
    rng = np.random.default_rng(1)
    weights = {name: rng.standard_normal((1, 32, 8)).astype(np.float32) for name in ("w", "r")}
    lstm = model([node("LSTM", "x w r", "y", hidden_size=8)], {"x": (12, 1, 8)}, ["y"], weights, 21)
    module = import_model(lstm.SerializeToString())
    inputs = [random(12, 1, 8)]
    (bound,), (sample,) = bound_module(module, inputs), perturbed_module(module, inputs, 0)
    assert 0 < part(sample, bound) < 1
