"""Mixtures of experts that ONNX Runtime has no kernel for on CPUs, against NumPy, and over ranges of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

import treadle
from tests.frontends.onnx.microsoft_cases import Case, microsoft
from treadle.dialects.graph import GatherOp, MatmulOp
from treadle.frontends.onnx.importer import import_model

Array = NDArray[Any]
EXPERTS, SIZE, INNER, K = 6, 24, 16, 2
RANDOM = np.random.default_rng(17)


def floats(*shape: int) -> Array:
    return RANDOM.uniform(-1, 1, shape).astype(np.float32)


WEIGHTS = {
    "a": floats(EXPERTS, INNER, SIZE), "b": floats(EXPERTS, INNER), "c": floats(EXPERTS, SIZE, INNER),
    "d": floats(EXPERTS, SIZE), "e": floats(EXPERTS, INNER, SIZE), "f": floats(EXPERTS, INNER),
}  # fmt: skip
ROUTED = np.array([[0.5, 1.0, 0.25, 2.0, 0.125, 0.75]] * 2, np.float32)


def by_numpy(x: Array, scores: Array, hidden: Callable[[int, Array], Array], shares: Array | None = None) -> Array:
    wide, y = scores.astype(np.float64), np.zeros(x.shape)
    weighed = np.exp(wide) / np.exp(wide).sum(1, keepdims=True) if shares is None else shares
    for n, row in enumerate(x.astype(np.float64)):
        for e in np.argsort(-wide[n], kind="stable")[:K]:
            y[n] += weighed[n, e] * (WEIGHTS["c"][e] @ hidden(int(e), row) + WEIGHTS["d"][e])
    return y


def gate(e: int, row: Array, alpha: float = 1.0, limit: float = np.inf) -> Array:
    g = np.minimum(WEIGHTS["a"][e] @ row + WEIGHTS["b"][e], limit)
    return g / (1 + np.exp(-alpha * g))


def other(e: int, row: Array) -> Array:
    return WEIGHTS["e"][e] @ row + WEIGHTS["f"][e]


@pytest.mark.parametrize("rows", [2, 5])
@pytest.mark.parametrize("form", ["silu", "swiglu", "concatenated"])
def test_gates_of_a_third_layer_or_behind_the_first(form: str, rows: int) -> None:
    inputs = {"x": floats(rows, SIZE), "r": floats(rows, EXPERTS)}
    limits: dict[str, Any] = {"activation_alpha": 1.5, "activation_beta": 0.5, "swiglu_limit": 1.25}
    if form == "silu":
        case = Case(microsoft("MoE", "x r a b c d e f", k=K, activation_type="silu"), inputs, WEIGHTS)
        wanted = by_numpy(**_named(inputs), hidden=lambda e, row: gate(e, row) * other(e, row))
    else:
        weights, names = WEIGHTS, "x r a b c d e f"
        if form == "concatenated":
            weights = {**WEIGHTS, **{m: np.concatenate([WEIGHTS[m], WEIGHTS[n]], 1) for m, n in ("ae", "bf")}}
            names, limits = "x r a b c d", {**limits, "swiglu_fusion": 2}
        node = microsoft("MoE", names, k=K, activation_type="swiglu", **limits)
        case = Case(node, inputs, {name: weights[name] for name in names.split()[2:]})
        wanted = by_numpy(
            **_named(inputs),
            hidden=lambda e, row: gate(e, row, 1.5, 1.25) * (np.clip(other(e, row), -1.25, 1.25) + 0.5),
        )
    with treadle.compile(case.model(), threads=2) as model:
        np.testing.assert_allclose(model(**inputs)[0], wanted, rtol=0, atol=2e-5)


def _named(inputs: dict[str, Array]) -> dict[str, Any]:
    return {"x": inputs["x"], "scores": inputs["r"]}


@pytest.mark.parametrize("normal", [0, 1])
def test_rows_of_bytes_that_are_weighed_by_another_tensor(normal: int) -> None:
    """Weights of whole numbers, with a scale of 1 and zero points of 128."""
    inputs = {"x": floats(2, SIZE), "r": floats(2, EXPERTS), "w": ROUTED}
    numbers = {name: RANDOM.integers(-3, 4, WEIGHTS[name].shape) for name in "ac"}
    weights = {name: (x + 128).astype(np.uint8) for name, x in numbers.items()}
    weights |= {"s": np.ones((EXPERTS, INNER), np.float32), "t": np.ones((EXPERTS, SIZE), np.float32)}
    node = microsoft(
        "QMoE", "x r a s _ c t _ _ _ _ _ _ _ w", k=K, expert_weight_bits=8, normalize_routing_weights=normal
    )
    wanted = np.zeros((2, SIZE))
    for n, row in enumerate(inputs["x"].astype(np.float64)):
        chosen = np.argsort(-inputs["r"][n], kind="stable")[:K]
        total = ROUTED[n, chosen].sum() if normal else 1.0
        for e in chosen:
            wanted[n] += ROUTED[n, e] / total * (numbers["c"][e] @ np.maximum(numbers["a"][e] @ row, 0))
    with treadle.compile(Case(node, inputs, weights).model(), threads=2) as model:
        np.testing.assert_allclose(model(**inputs)[0], wanted, rtol=1e-5, atol=2e-4)


def ranged(weights: dict[str, Array]) -> tuple[Case, ModelProto]:
    inputs = {"x": floats(1, 2, SIZE), "r": floats(2, EXPERTS)}
    case = Case(microsoft("MoE", "x r a b c d", k=K, activation_type="gelu"), inputs, weights)
    model = case.model()
    for entry, axis in zip(model.graph.input, (1, 0), strict=True):
        assert entry.type.tensor_type.elem_type == TensorProto.FLOAT
        entry.type.tensor_type.shape.dim[axis].dim_param = "s"
    return case, model


@pytest.mark.parametrize("most", [2, 7])
def test_rows_that_change(most: int) -> None:
    case, file = ranged({name: WEIGHTS[name] for name in "abcd"})
    with treadle.compile(file, shapes={"s": treadle.Dim("s", 1, most)}, threads=2) as model:
        for rows in {1, 2, most}:
            inputs = {"x": floats(1, rows, SIZE), "r": floats(rows, EXPERTS)}
            (wanted,) = Case(case.node, inputs, case.weights).expected()
            np.testing.assert_allclose(model(**inputs)[0], wanted, rtol=0, atol=1e-5)


def test_few_rows_read_the_weights_of_chosen_experts_only() -> None:
    _, file = ranged({name: WEIGHTS[name] for name in "abcd"})
    for most, read in ((2, [2 * K] * 2), (7, [EXPERTS] * 2)):
        module = import_model(file.SerializeToString(), {"s": treadle.Dim("s", 1, most)})
        products = [op for op in module.walk() if isinstance(op, MatmulOp)]
        assert [op.shape[0] for op in products] == read
        assert sum(isinstance(op, GatherOp) for op in module.walk()) == (4 if most == 2 else 0)
