"""Products that are too small for their type, added to a zero: a fused multiply-add gives a zero of the product's sign,
a product that is rounded by itself may leave the other one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.fuzz.case import Array, Case
from tests.fuzz.check import Checker
from tests.fuzz.definition import expected_outputs
from tests.fuzz.draw import Draw

LEAST = float(np.finfo(np.float64).smallest_subnormal)
ROW = np.array([[[-0.3, 0.1, 0.2]]])
SIGNS = np.array([[-0.3, 0.2], [0.3, -0.1], [0.3, 0.1]])


@dataclass(frozen=True)
class Sum:
    """An operator on operands of float64, and what reads its result. `undecided`: which elements of that are zeros of
    either sign."""

    operator: str
    operands: dict[str, Any]
    undecided: list[bool]
    then: tuple[str, list[str]] | None = None
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])
    dtype: type = np.float64

    def case(self) -> Case:
        draw = Draw(0)
        draw.opset = 21
        for name, array in self.operands.items():
            draw.values[name] = draw.inputs[name] = np.asarray(array, self.dtype)
        own = [name for name in self.operands if self.then is None or name not in self.then[1]]
        draw.node(self.operator, own, **self.attributes)
        if self.then is not None:
            draw.node(self.then[0], self.then[1])
        draw.node("Reciprocal", [draw.nodes[-1].output[0]])
        return draw.case([draw.nodes[-1].output[0]])


def normal(scale: float, bias: float, channels: int = 1) -> dict[str, Array]:
    return {"x": ROW * [[[1]], [[-1]]], "s": np.full(channels, scale), "b": np.full(channels, bias)}


# None of the normalised elements is a half: times the smallest number, all of them vanish.
ROWS = [True, False, False, False, True, True]
SUMS = {
    "group norm": Sum("GroupNormalization", normal(LEAST, 0), ROWS, attributes={"num_groups": 1, "epsilon": 0.5}),
    "instance norm": Sum("InstanceNormalization", normal(LEAST, 0), ROWS, attributes={"epsilon": 0.5}),
    "layer norm": Sum("LayerNormalization", normal(LEAST, 0, 3), ROWS, attributes={"epsilon": 0.5}),
    "layer norm, then a sum": Sum(
        "LayerNormalization", {"x": normal(0, 0)["x"], "s": np.full(3, LEAST), "z": np.zeros(1)}, ROWS,
        ("Add", ["t0_0", "z"]), {"epsilon": 0.5},
    ),
    "a norm by 0": Sum("InstanceNormalization", normal(0, 0), [False] * 6, attributes={"epsilon": 0.5}),
    "a norm with a bias": Sum("InstanceNormalization", normal(LEAST, 1), [False] * 6, attributes={"epsilon": 0.5}),
    "a product and a sum": Sum(
        "Mul", {"x": ROW, "s": np.array(LEAST), "b": np.zeros(1)}, [True, False, False], ("Add", ["t0_0", "b"])
    ),
    "a product and a difference": Sum(
        "Mul", {"x": ROW, "s": np.array(LEAST), "b": np.zeros(1)}, [False, True, True], ("Sub", ["b", "t0_0"])
    ),
    "a product by itself": Sum("Mul", {"x": ROW, "s": np.array(LEAST)}, [False] * 3),
    "a matrix product": Sum("MatMul", {"x": SIGNS, "s": np.full((2, 1), LEAST)}, [True, True, False]),
    "a matrix product with zeros": Sum("MatMul", {"x": SIGNS, "s": np.zeros((2, 1))}, [False] * 3),
    "a matrix product of one term": Sum(
        "MatMul", {"x": [[-1e-30], [1e-30], [1.0]], "s": [[1e-30]]}, [True, True, False], dtype=np.float32
    ),
    "celu of -0": Sum("Celu", {"x": [-0.0, 0.0, 1.0]}, [True, False, False]),
    "elu of -0": Sum("Elu", {"x": [-0.0, 0.0, 1.0]}, [False, False, False]),
    "a convolution": Sum("Conv", {"x": ROW, "s": np.full((1, 1, 1), LEAST)}, [True, False, False]),
}  # fmt: skip


@pytest.fixture(scope="module")
def sums() -> Checker:
    return Checker({name: each.case() for name, each in SUMS.items()}, list(SUMS))


@pytest.mark.parametrize("name", SUMS)
def test_sign_of_a_zero(name: str, sums: Checker) -> None:
    """What is decided, every compiled form gives; no form is wrong where nothing is."""
    (expected,) = expected_outputs(sums.cases[name]).values()
    assert expected.undecided.reshape(-1).tolist() == SUMS[name].undecided
    assert not sums.check(name).findings


def test_any_phase_of_a_large_angle() -> None:
    """A sum whose error is larger than a turn: its cosine may be any number from -1 to 1."""
    draw = Draw(0)
    draw.opset = 21
    for name, array in {"x": np.linspace(1, 2, 70), "y": np.full(1, 1e38)}.items():
        draw.values[name] = draw.inputs[name] = array.astype(np.float32)
    draw.node("Mul", ["x", "y"])
    draw.node("Cos", [draw.nodes[-1].output[0]])
    (expected,) = expected_outputs(draw.case([draw.nodes[-1].output[0]])).values()
    assert (expected.value + expected.limit >= 1).all()
    assert (expected.value - expected.limit <= -1).all()
