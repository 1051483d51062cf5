"""Row computations of many shapes: what the templates' tests and the emulator's share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Block, SSAValue

from treadle.dialects.graph import ComputeOp, LayerNormOp, SoftmaxOp, definition
from treadle.dialects.graph.definition import DefinitionBuilder, Scalar, compute_of
from treadle.dialects.graph.dtypes import element_type, numpy_dtype

Array = NDArray[Any]
Shape = tuple[int, ...]
Case = tuple[str, Shape, int]
"""A family of `FAMILIES`, the shape of its input, and the dimension (the first one) that it normalises."""


def tensor(*shape: int, dtype: str = "float32") -> SSAValue:
    """A value of a tensor type, which belongs to no program."""
    return Block(arg_types=[TensorType(element_type(np.dtype(dtype)), shape)]).args[0]


def softmax(shape: Shape, dim: int, dtype: str) -> ComputeOp:
    """Along one dimension."""
    return definition(SoftmaxOp(tensor(*shape, dtype=dtype), dim))


def layer_norm(shape: Shape, dim: int, dtype: str) -> ComputeOp:
    """Over all dimensions from `dim` on."""
    scale, bias = (tensor(*shape[dim:], dtype=dtype) for _ in range(2))
    return definition(LayerNormOp(tensor(*shape, dtype=dtype), scale, bias, dim, 1e-5))


Along = Callable[[DefinitionBuilder, Sequence[Scalar]], Scalar]


def _reduced(b: DefinitionBuilder, kind: str, shape: Shape, dim: int, index: Sequence[Scalar], term: Along) -> Scalar:
    """A reduction of `term` along `dim`, whose argument is the index of an element."""
    return b.reduce(kind, [shape[dim]], lambda inner, k: term(inner, [*index[:dim], k[0], *index[dim + 1 :]]))


def log_softmax(shape: Shape, dim: int, dtype: str) -> ComputeOp:
    """`x - max - log(sum(exp(x - max)))`."""
    x = tensor(*shape, dtype=dtype)

    def element(b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        largest = _reduced(b, "max", shape, dim, index, lambda inner, where: inner.at(x, where))

        def shifted(inner: DefinitionBuilder, where: Sequence[Scalar]) -> Scalar:
            return inner.binary("sub", inner.at(x, where), largest)

        total = _reduced(b, "add", shape, dim, index, lambda inner, where: inner.math("exp", shifted(inner, where)))
        return b.binary("sub", shifted(b, index), b.math("log", total))

    return compute_of(TensorType(element_type(np.dtype(dtype)), shape), element, "log_softmax")


def rms_norm(shape: Shape, dim: int, dtype: str) -> ComputeOp:
    """`x / sqrt(mean(x^2) + epsilon) * scale`, whose one reduction reads what the result reads again."""
    x, scale = tensor(*shape, dtype=dtype), tensor(shape[dim], dtype=dtype)
    type = TensorType(element_type(np.dtype(dtype)), shape)

    def element(b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        def square(inner: DefinitionBuilder, where: Sequence[Scalar]) -> Scalar:
            value = inner.at(x, where)
            return inner.mul(value, value)

        total = _reduced(b, "add", shape, dim, index, square)
        mean = b.binary("div", total, b.constant(shape[dim], type.get_element_type()))
        spread = b.math("rsqrt", b.add(mean, b.constant(1e-5, type.get_element_type())))
        return b.mul(b.mul(b.at(x, index), spread), b.at(scale, [index[dim]]))

    return compute_of(type, element, "rms_norm")


def variance(shape: Shape, dim: int, dtype: str) -> ComputeOp:
    """Two reductions, and one element a row."""
    x = tensor(*shape, dtype=dtype)
    type = TensorType(element_type(np.dtype(dtype)), [e for d, e in enumerate(shape) if d != dim])

    def element(b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        def along(k: Sequence[Scalar]) -> list[Scalar]:
            return [*index[:dim], k[0], *index[dim:]]

        count = b.constant(shape[dim], type.get_element_type())
        total = b.reduce("add", [shape[dim]], lambda inner, k: inner.at(x, along(k)))
        mean = b.binary("div", total, count)

        def square(inner: DefinitionBuilder, k: Sequence[Scalar]) -> Scalar:
            difference = inner.binary("sub", inner.at(x, along(k)), mean)
            return inner.mul(difference, difference)

        return b.binary("div", b.reduce("add", [shape[dim]], square), count)

    return compute_of(type, element, "variance")


FAMILIES: dict[str, Callable[[Shape, int, str], ComputeOp]] = {
    "softmax": softmax,
    "layer_norm": layer_norm,
    "log_softmax": log_softmax,
    "rms_norm": rms_norm,
    "variance": variance,
}

SOFTMAX_SHAPES: list[tuple[Shape, int]] = [
    ((1,), 0), ((7,), 0), ((257,), 0), ((1, 1), 1), ((5, 1), 1), ((1, 5), 1), ((3, 2), 1), ((4, 8), 1), ((4, 16), 1),
    ((33, 17), 1), ((2, 31), 1), ((2, 32), 1), ((2, 33), 1), ((9, 63), 1), ((3, 64), 1), ((2, 97), 1), ((1, 127), 1),
    ((2, 128), 1), ((2, 131), 1), ((1, 1000), 1), ((1, 1031), 1), ((2, 3, 4, 5), 3), ((130, 3), 1), ((2, 8, 7), 1),
    ((1, 3, 64), 1), ((2, 19, 33), 1), ((3, 5, 16), 1), ((2, 1, 9), 1), ((7, 4), 0), ((31, 2), 0), ((2, 3, 4, 5), 1),
    ((2, 3, 4, 5), 2), ((2, 40, 2), 1), ((300, 4), 0),
]  # fmt: skip
LAYER_NORM_SHAPES: list[tuple[Shape, int]] = [
    ((1, 1), 1), ((3, 5), 1), ((2, 48), 1), ((2, 120), 1), ((1, 384), 1), ((5, 67), 1), ((2, 3, 4), 1), ((2, 3, 35), 1),
    ((2, 7, 11), 2), ((2, 2, 3, 5), 2), ((2, 1, 3, 1), 1), ((129,), 0), ((1, 769), 1), ((3, 4, 1), 1), ((40, 4), 1),
]  # fmt: skip
OTHER_SHAPES: list[tuple[Shape, int]] = [((3, 40), 1), ((2, 100), 1), ((2, 9, 20), 1), ((1, 333), 1)]

CASES: list[Case] = [
    *(("softmax", *each) for each in SOFTMAX_SHAPES),
    *(("layer_norm", *each) for each in LAYER_NORM_SHAPES),
    *((name, *each) for name in ("log_softmax", "rms_norm", "variance") for each in OTHER_SHAPES),
    ("log_softmax", (5, 1), 1),
    ("variance", (5, 1), 1),
]


def build(case: Case, dtype: str = "float32") -> ComputeOp:
    """The definition of a case."""
    name, shape, dim = case
    return FAMILIES[name](shape, dim, dtype)


def inputs_of(compute: ComputeOp) -> dict[SSAValue, Array]:
    """Normally distributed inputs of a definition."""
    env: dict[SSAValue, Array] = {}
    for n, operand in enumerate(compute.tensors()):
        assert isinstance(operand.type, TensorType)
        shape = operand.type.get_shape()
        values = np.random.default_rng([n, *shape]).standard_normal(shape)
        env[operand] = np.asarray(values).astype(numpy_dtype(operand.type.get_element_type()))
    return env
