"""graph-recognize finds every exporter's way of writing an operator, keeps values, and leaves what only looks alike."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import numpy as np
import pytest
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph, assert_same_values, operators, random
from treadle.dialects.graph import BinaryOp, ReductionOp, ReshapeOp, UnaryOp
from treadle.passes.graph.graph_recognize import GraphRecognizePass
from treadle.passes.graph.graph_simplify import GraphSimplifyPass

PASSES = [GraphSimplifyPass(), GraphRecognizePass()]


class Writer(Graph):
    """Writes operators as functions of values and numbers."""

    def value(self, x: SSAValue | float) -> SSAValue:
        return self.constant(np.float32(x)) if isinstance(x, float | int) else x

    def binary(self, kind: str, a: SSAValue | float, b: SSAValue | float) -> SSAValue:
        return self.add(BinaryOp(kind, self.value(a), self.value(b)))

    def unary(self, kind: str, x: SSAValue) -> SSAValue:
        return self.add(UnaryOp(kind, x))

    def mean(self, x: SSAValue, dims: tuple[int, ...] = (2,), keep: bool = True) -> SSAValue:
        return self.add(ReductionOp("mean", x, dims, keep))


def spread(w: Writer, variance: SSAValue) -> SSAValue:
    return w.unary("sqrt", w.binary("add", variance, 1e-3))


def paddle(w: Writer) -> SSAValue:
    """PyTorch's and Paddle's: a power, a quotient by a square root."""
    d = w.binary("sub", w[0], w.mean(w[0]))
    normal = w.binary("div", d, spread(w, w.mean(w.binary("pow", d, 2.0))))
    return w.binary("add", w.binary("mul", normal, w[1]), w[2])


def twice(w: Writer) -> SSAValue:
    """The deviation computed twice, the scale first, a mean as sum and quotient."""
    total = w.add(ReductionOp("add", w[0], [2], True))
    mean = w.binary("div", total, 24.0)
    d, again = w.binary("sub", w[0], mean), w.binary("sub", w[0], mean)
    inverse = w.unary("rsqrt", w.binary("add", 1e-3, w.mean(w.binary("mul", again, again))))
    return w.binary("add", w[2], w.binary("mul", w[1], w.binary("mul", d, inverse)))


def keras(w: Writer) -> SSAValue:
    """Keras and TensorFlow: x * s + (bias - mean * s)."""
    mean = w.mean(w[0])
    d = w.binary("sub", w[0], mean)
    inverse = w.unary("rsqrt", w.binary("add", w.mean(w.binary("mul", d, d)), 1e-3))
    factor = w.binary("mul", inverse, w[1])
    return w.binary("add", w.binary("mul", w[0], factor), w.binary("sub", w[2], w.binary("mul", mean, factor)))


def reciprocal(w: Writer) -> SSAValue:
    d = w.binary("sub", w[0], w.mean(w[0]))
    inverse = w.binary("div", 1.0, spread(w, w.mean(w.binary("mul", d, d))))
    return w.binary("add", w.binary("mul", w.binary("mul", d, inverse), w[1]), w[2])


@pytest.mark.parametrize("write", [paddle, twice, keras, reciprocal])
def test_layer_norm(write: Callable[[Writer], SSAValue]) -> None:
    w = Writer(random(2, 5, 24), random(24), random(24, seed=1))
    assert operators(assert_same_values(w, [write(w)], PASSES)) == ["layer_norm"]


def test_layer_norm_without_scale_and_bias() -> None:
    w = Writer(random(2, 5, 24))
    d = w.binary("sub", w[0], w.mean(w[0], (1, 2)))
    y = w.binary("div", d, spread(w, w.mean(w.binary("mul", d, d), (1, 2))))
    assert operators(assert_same_values(w, [y], PASSES)) == ["constant", "constant", "layer_norm"]


def test_a_scale_per_row_is_no_scale_of_layer_norm() -> None:
    w = Writer(random(2, 5, 24), random(5, 1), random(24))
    assert "binary" in operators(assert_same_values(w, [paddle(w)], PASSES))


def test_rms_norm() -> None:
    w = Writer(random(2, 5, 24), random(24))
    inverse = w.unary("rsqrt", w.binary("add", w.mean(w.binary("pow", w[0], 2.0)), 1e-3))
    y = w.binary("mul", w[1], w.binary("mul", w[0], inverse))
    assert operators(assert_same_values(w, [y], PASSES)) == ["rms_norm"]


def _over_channels(w: Writer) -> SSAValue:
    d = w.binary("sub", w[0], w.mean(w[0], (1,)))
    return w.binary("div", d, spread(w, w.mean(w.binary("mul", d, d), (1,))))


def _other_epsilon(w: Writer) -> SSAValue:
    """What is added to the variance is an input."""
    d = w.binary("sub", w[0], w.mean(w[0]))
    shifted = w.binary("add", w.mean(w.binary("mul", d, d)), w.add(ReshapeOp(w[1], [1, 1, 1])))
    return w.binary("div", d, w.unary("sqrt", shifted))


def _other_variance(w: Writer) -> SSAValue:
    """Means over different dimensions."""
    d = w.binary("sub", w[0], w.mean(w[0]))
    return w.binary("div", d, spread(w, w.mean(w.binary("mul", d, d), (1, 2))))


def _not_its_mean(w: Writer) -> SSAValue:
    d = w.binary("sub", w[0], w.mean(w.unary("exp", w[0])))
    return w.binary("div", d, spread(w, w.mean(w.binary("mul", d, d))))


@pytest.mark.parametrize("write", [_over_channels, _other_epsilon, _other_variance, _not_its_mean])
def test_what_is_no_layer_norm(write: Callable[[Writer], SSAValue]) -> None:
    w = Writer(random(2, 5, 24), np.abs(random(1)))
    assert "layer_norm" not in operators(assert_same_values(w, [write(w)], PASSES, tolerance=0))


def test_a_used_deviation_is_still_computed() -> None:
    w = Writer(random(2, 5, 24))
    d = w.binary("sub", w[0], w.mean(w[0]))
    y = w.binary("div", d, spread(w, w.mean(w.binary("mul", d, d))))
    left = operators(assert_same_values(w, [y, d], PASSES))
    assert left.count("layer_norm") == 1 and left.count("binary") == 1


@pytest.mark.parametrize("dim", [0, 1])
def test_softmax(dim: int) -> None:
    w = Writer(random(6, 7))
    e = w.unary("exp", w.binary("sub", w[0], w.add(ReductionOp("max", w[0], [dim], True))))
    total = w.add(ReductionOp("add", e, [dim], True))
    y = w.binary("mul", e, w.unary("reciprocal", total)) if dim else w.binary("div", e, total)
    assert operators(assert_same_values(w, [y], PASSES)) == ["softmax"]


@pytest.mark.parametrize(("top", "bottom"), [([0], [1]), ([0, 1], [0, 1])])
def test_what_is_no_softmax(top: list[int], bottom: list[int]) -> None:
    w = Writer(random(6, 7))
    e = w.unary("exp", w.binary("sub", w[0], w.add(ReductionOp("max", w[0], top, True))))
    y = w.binary("div", e, w.add(ReductionOp("add", e, bottom, True)))
    assert "softmax" not in operators(assert_same_values(w, [y], PASSES, tolerance=0))


def test_softmax_without_its_maximum_overflows_and_stays() -> None:
    w = Writer(random(6, 7))
    e = w.unary("exp", w[0])
    y = w.binary("div", e, w.add(ReductionOp("add", e, [1], True)))
    assert "softmax" not in operators(assert_same_values(w, [y], PASSES, tolerance=0))


def _erf(w: Writer) -> SSAValue:
    gate = w.binary("add", w.unary("erf", w.binary("div", w[0], sqrt(2))), 1.0)
    return w.binary("mul", w.binary("mul", w[0], gate), 0.5)


def _erf_by_product(w: Writer) -> SSAValue:
    gate = w.binary("add", 1.0, w.unary("erf", w.binary("mul", w[0], sqrt(0.5))))
    return w.binary("mul", w[0], w.binary("mul", 0.5, gate))


def _tanh(w: Writer) -> SSAValue:
    cube = w.binary("mul", w.binary("pow", w[0], 3.0), 0.044715)
    inner = w.binary("mul", w.binary("add", w[0], cube), sqrt(2 / pi))
    return w.binary("mul", w.binary("mul", w[0], 0.5), w.binary("add", w.unary("tanh", inner), 1.0))


def _tanh_by_square(w: Writer) -> SSAValue:
    square = w.binary("mul", w.binary("mul", w[0], 0.044715), w[0])
    inner = w.binary("mul", w.binary("mul", sqrt(2 / pi), w[0]), w.binary("add", 1.0, square))
    return w.binary("mul", 0.5, w.binary("mul", w[0], w.binary("add", 1.0, w.unary("tanh", inner))))


@pytest.mark.parametrize(
    ("write", "kind"), [(_erf, "gelu"), (_erf_by_product, "gelu"), (_tanh, "gelu_tanh"), (_tanh_by_square, "gelu_tanh")]
)
def test_gelu(write: Callable[[Writer], SSAValue], kind: str) -> None:
    w = Writer(random(6, 7))
    module = assert_same_values(w, [write(w)], PASSES)
    assert [op.kind.data for op in module.walk() if isinstance(op, UnaryOp)] == [kind]


def _wrong_scale(w: Writer) -> SSAValue:
    gate = w.binary("add", w.unary("erf", w.binary("mul", w[0], 0.7)), 1.0)
    return w.binary("mul", w.binary("mul", w[0], gate), 0.5)


def _other_gate(w: Writer) -> SSAValue:
    gate = w.binary("add", w.unary("erf", w.binary("mul", w[1], sqrt(0.5))), 1.0)
    return w.binary("mul", w.binary("mul", w[0], gate), 0.5)


def _wrong_cube(w: Writer) -> SSAValue:
    cube = w.binary("mul", w.binary("pow", w[0], 2.0), 0.044715)
    inner = w.binary("mul", w.binary("add", w[0], cube), sqrt(2 / pi))
    return w.binary("mul", w.binary("mul", w[0], 0.5), w.binary("add", w.unary("tanh", inner), 1.0))


@pytest.mark.parametrize("write", [_wrong_scale, _other_gate, _wrong_cube])
def test_what_is_no_gelu(write: Callable[[Writer], SSAValue]) -> None:
    w = Writer(random(6, 7), random(6, 7, seed=1))
    module = assert_same_values(w, [write(w)], PASSES)
    assert not [op for op in module.walk() if isinstance(op, UnaryOp) and op.kind.data.startswith("gelu")]
