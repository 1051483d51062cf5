"""Kernels of a range on the emulator with all checks: each kind for twenty shapes, ones, primes, multiples and bounds.

The whole is slow; `make test` has three shapes of some.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np
import pytest
from onnx import NodeProto
from onnx.helper import make_attribute, make_node

import treadle
from tests.helpers.ranged_model import Call, Case, weights, whole_weights
from treadle import Dim
from treadle.tools.certify_command import certify

SHAPES = 20
_STEP = 7
"""By how many of its extents the next symbol's are shifted; no divisor of twenty, so that extents are mixed."""


@dataclass(frozen=True)
class Kernels:
    """A model of one kind of kernel, and how it is compiled."""

    case: Case
    precision: str = "f32"
    target: str = "sm_80"

    def check(self, calls: Sequence[Call]) -> None:
        self.case.check_emulated(calls, self.target, self.precision)


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, n))


def _some(values: Sequence[int], count: int) -> list[int]:
    """So many of some values, evenly."""
    step = max(1.0, len(values) / count)
    return [values[int(n * step)] for n in range(min(count, len(values)))]


def extents_of(dim: Dim) -> list[int]:
    """Twenty extents of a range: both bounds first, then primes, multiples of powers of two, and others; again from the
    first where there are fewer."""
    whole = list(range(dim.least, dim.greatest + 1, dim.multiple))
    primes = _some([n for n in whole if _is_prime(n // dim.multiple)], 8)
    multiples = _some([n for n in whole if n // dim.multiple % 8 == 0], 6)
    found = list(dict.fromkeys([dim.least, dim.greatest, *whole[-2:], *primes, *multiples, *_some(whole, SHAPES)]))
    return list(islice(cycle(found), SHAPES))


def calls_of(dims: Sequence[Dim]) -> list[Call]:
    """Twenty calls, of which the first two have all bounds."""
    columns = [(dim.name, extents_of(dim), _STEP * n) for n, dim in enumerate(dims)]
    mixed = [{name: found[(n + shift) % SHAPES] for name, found, shift in columns} for n in range(2, SHAPES)]
    return [{dim.name: dim.least for dim in dims}, {dim.name: dim.greatest for dim in dims}, *mixed]


def _windows(kind: str, y: str, *, step: int = 1, groups: int = 1) -> NodeProto:
    """A convolution or a pool over 3 x 3, with a border of 1."""
    node = make_node(
        kind, ["x", "k"] if kind == "Conv" else ["x"], [y], kernel_shape=[3, 3], pads=[1] * 4, strides=[step] * 2
    )
    if groups > 1:
        node.attribute.append(make_attribute("group", groups))
    return node


_ATTENTION = [
    make_node("MatMul", ["q", "k"], ["s"]), make_node("Mul", ["s", "half"], ["t"]),
    make_node("Softmax", ["t"], ["p"], axis=-1), make_node("MatMul", ["p", "v"], ["y"]),
]  # fmt: skip
_OPERANDS = {"q": [2, "s", 16], "k": [2, 16, "s"], "v": [2, "s", 16]}
_NT = [make_node("Transpose", ["w"], ["t"], perm=[0, 2, 1]), make_node("MatMul", ["x", "t"], ["y"])]
_DENSE = [make_node("MatMul", ["x", "w"], ["a"]), make_node("Add", ["a", "b"], ["c"]), make_node("Relu", ["c"], ["y"])]
_IMAGES, _SIZES = {"x": [1, 8, "h", "w"]}, ["h:1..20", "w:1..36"]

KERNELS: dict[str, Kernels] = {
    "product NT": Kernels(Case(_NT, {"x": [2, "t", 64], "w": [2, "t", 64]}, ["t:1..96"], whole=True)),
    "product NT of f16": Kernels(
        Case(_NT, {"x": [2, "t", 64], "w": [2, "t", 64]}, ["t:1..96"], whole=True), precision="f16"
    ),
    "product NN": Kernels(
        Case([make_node("MatMul", ["x", "w"], ["y"])], {"x": [2, "t", "t"], "w": [2, "t", 48]}, ["t:1..96"], whole=True)
    ),
    "product NN of f16": Kernels(
        Case(
            [make_node("MatMul", ["x", "w"], ["y"])], {"x": [2, "t", "t"], "w": [2, "t", 48]}, ["t:1..96"], whole=True
        ),
        precision="f16",
    ),
    "dense": Kernels(
        Case(_DENSE, {"x": ["n", "s", 64]}, ["n:1..3", "s:1..96"], constants={"w": weights(64, 72), "b": weights(72)})
    ),
    "dense of multiples": Kernels(
        Case(_DENSE, {"x": ["r", 64]}, ["r:16..320:16"], constants={"w": weights(64, 72), "b": weights(72)})
    ),
    "two kernels": Kernels(
        Case(
            _ATTENTION, {"q": [2, "s", 64], "k": [2, 64, "s"], "v": [2, "s", 64]}, ["s:1..256"],
            constants={"half": weights()},
        ),
        target="sm_80{multiprocessors=16}",
    ),
    "convolution": Kernels(
        Case([_windows("Conv", "y")], _IMAGES, _SIZES, constants={"k": weights(12, 8, 3, 3)})
    ),
    "convolution of f16": Kernels(
        Case([_windows("Conv", "y")], _IMAGES, _SIZES, constants={"k": whole_weights(12, 8, 3, 3)}, whole=True),
        precision="f16",
    ),
    "convolution of steps": Kernels(
        Case(
            [_windows("Conv", "a", step=2), make_node("Relu", ["a"], ["y"])],
            _IMAGES, _SIZES, constants={"k": weights(12, 8, 3, 3)},
        )
    ),
    "depthwise convolution": Kernels(
        Case(
            [_windows("Conv", "y", groups=8)], _IMAGES, _SIZES,
            constants={"k": weights(8, 1, 3, 3)},
        )
    ),
    "softmax": Kernels(
        Case([make_node("Softmax", ["x"], ["y"], axis=-1)], {"x": ["n", 5, "s"]}, ["n:1..3", "s:1..160"])
    ),
    "layer norm": Kernels(
        Case(
            [make_node("LayerNormalization", ["x", "g", "b"], ["y"])], {"x": ["n", "s", 40]}, ["n:1..3", "s:1..64"],
            constants={"g": weights(40), "b": weights(40)},
        )
    ),
    "attention": Kernels(Case(_ATTENTION, _OPERANDS, ["s:1..96"], constants={"half": weights()})),
    "attention of f16": Kernels(
        # Whole numbers are exact; a weight of at most 1, and the result of at most 3, are rounded once.
        Case(_ATTENTION, _OPERANDS, ["s:1..96"], constants={"half": weights()}, whole=True, limit=2 * 3 * 2.0**-11),
        precision="f16",
    ),
    "pointwise": Kernels(
        Case(
            [make_node("Mul", ["x", "b"], ["a"]), make_node("Erf", ["a"], ["c"]), make_node("Add", ["c", "x"], ["y"])],
            {"x": ["n", "s", 7], "b": ["s", 1]}, ["n:1..5", "s:1..96"],
        )
    ),
    "transpose": Kernels(
        Case(
            [make_node("Transpose", ["x"], ["a"], perm=[1, 2, 0]), make_node("Neg", ["a"], ["y"])],
            {"x": ["n", "s", 12]}, ["n:1..20", "s:1..64"],
        )
    ),
    "largest of windows": Kernels(
        Case([_windows("MaxPool", "y", step=2)], _IMAGES, _SIZES)
    ),
    "mean of windows": Kernels(
        Case([make_node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2])], _IMAGES, ["h:2..20", "w:2..36"])
    ),
    "concat and pad": Kernels(
        Case(
            [make_node("Concat", ["t", "x"], ["a"], axis=1), make_node("Pad", ["a", "pads", "v"], ["y"])],
            {"x": [2, "s", 5], "t": [2, 3, 5]}, ["s:1..96"],
            constants={"pads": np.array([0, 0, 2, 0, 0, 1]), "v": np.array(2.5, np.float32)},
        )
    ),
    "sum": Kernels(
        Case([make_node("ReduceSum", ["x", "c2"], ["y"], keepdims=0)], {"x": ["n", 3, "s"]}, ["n:1..5", "s:1..160"],
             constants={"c2": np.array([2])})
    ),
    "mean of rows and columns": Kernels(
        Case([make_node("ReduceMean", ["x"], ["y"], axes=[2, 3])], _IMAGES, _SIZES)
    ),
    "largest of columns": Kernels(
        Case([make_node("ReduceMax", ["x"], ["y"], axes=[0])], {"x": ["s", 40]}, ["s:1..160"])
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ["product NN", "convolution", "softmax", "concat and pad"])
def test_bounds_and_a_prime(name: str) -> None:
    kernels = KERNELS[name]
    bounds, prime = calls_of(kernels.case.dims)[:2], {dim.name: min(7, dim.greatest) for dim in kernels.case.dims}
    kernels.check([*bounds, prime])


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_twenty_shapes(name: str) -> None:
    kernels = KERNELS[name]
    kernels.check(calls_of(kernels.case.dims))


def test_one_of_them_takes_two_kernels() -> None:
    """And each of the two is run."""
    kernels = KERNELS["two kernels"]
    case = kernels.case
    with treadle.compile(case.model(), kernels.target, case.shapes, device="emulator") as compiled:
        (dispatch,) = certify(compiled.artifact)
    assert len(dispatch.kernels) == 2
    for leaf in dispatch.leaves:
        assert any(leaf.serves([call["s"]]) for call in calls_of(case.dims))
    ((_, border),) = dispatch.leaves[0].extents
    kernels.check([{"s": border}, {"s": border + 1}])


def test_the_twenty_shapes() -> None:
    """Ones, primes, multiples and bounds are among them, of each symbol."""
    dims = [Dim("t", 1, 96), Dim("r", 16, 320, 16)]
    calls = calls_of(dims)
    assert len({tuple(call.values()) for call in calls}) == SHAPES
    assert calls[:2] == [{"t": 1, "r": 16}, {"t": 96, "r": 320}]
    assert {1, 2, 95, 96} <= {call["t"] for call in calls} and {16, 304, 320} <= {call["r"] for call in calls}
    assert sum(_is_prime(call["t"]) for call in calls) >= 8 and sum(call["t"] % 8 == 0 for call in calls) >= 6
    assert all(call["r"] % 16 == 0 for call in calls)
