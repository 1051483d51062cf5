"""The twelve operators that MetaSchedule was measured on, as graph operators.

Source: MetaSchedule (NeurIPS 2022), appendix A.2: all of float32 and batch 1. Weights are constants, as in a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from treadle.dialects.graph import (
    BatchNormOp,
    BinaryOp,
    ConstantOp,
    ConvOp,
    ConvTransposeOp,
    MatmulOp,
    ReductionOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
)
from treadle.dialects.graph.constant import constant_attribute
from treadle.dialects.graph.dtypes import element_type

Array = NDArray[Any]
Shape = tuple[int, ...]
Build = Callable[[Sequence[SSAValue]], Sequence[Operation]]
EPSILON = 1e-5
"""Of the batch norm."""


@dataclass(frozen=True)
class PaperOperator:
    """One operator: its tensors, the first `inputs` of which are inputs and the others weights, and how it is built.

    terms: of the longest sum that is an element of the result, for `shapes`
    small: shapes of the same ranks with extents of a few digits, primes among them, for tests
    """

    title: str
    shapes: tuple[Shape, ...]
    small: tuple[Shape, ...]
    build: Build
    terms: int
    inputs: int = 1

    def arrays(self, *, small: bool = False, dtype: type[np.generic] = np.float32) -> list[Array]:
        """Values of inputs and weights: always the same, normally distributed; those of vectors, which are statistics,
        from 0.5 to 1.5."""
        generator = np.random.default_rng(0)
        shapes = self.small if small else self.shapes
        drawn = [generator.random(s) + 0.5 if len(s) == 1 else generator.standard_normal(s) for s in shapes]
        return [each.astype(np.float32).astype(dtype) for each in drawn]

    def module(self, *, small: bool = False, dtype: type[np.generic] = np.float32) -> ModuleOp:
        """@main of the inputs, with the weights as constants."""
        arrays = self.arrays(small=small, dtype=dtype)
        element = element_type(np.dtype(dtype))
        block = Block(arg_types=[TensorType(element, each.shape) for each in arrays[: self.inputs]])
        weights = [ConstantOp(constant_attribute(w), TensorType(element, w.shape)) for w in arrays[self.inputs :]]
        block.add_ops(weights)
        block.add_ops(self.build([*block.args, *(each.result for each in weights)]))
        assert block.last_op is not None
        result = block.last_op.results[0]
        block.add_op(ReturnOp(result))
        return ModuleOp([FuncOp("main", ([arg.type for arg in block.args], [result.type]), Region(block))])


def _convolution(stride: int, pad: int, dilation: int = 1) -> Build:
    """In as many groups as the weights' channels say."""

    def build(t: Sequence[SSAValue]) -> list[Operation]:
        assert isinstance(t[0].type, TensorType) and isinstance(t[1].type, TensorType)
        (_, channels, *spatial), (_, of_group, *_) = t[0].type.get_shape(), t[1].type.get_shape()
        rank = len(spatial)
        return [ConvOp(t[0], t[1], [stride] * rank, [pad] * 2 * rank, [dilation] * rank, channels // of_group)]

    return build


def _convolution_norm_relu(t: Sequence[SSAValue]) -> list[Operation]:
    convolution = ConvOp(t[0], t[1], [2, 2], [3] * 4, [1, 1], 1)
    norm = BatchNormOp(convolution.result, t[2], t[3], t[4], t[5], EPSILON)
    return [convolution, norm, UnaryOp("relu", norm.result)]


def _transposed_product(t: Sequence[SSAValue]) -> list[Operation]:
    query, key = TransposeOp(t[0], [0, 2, 1, 3]), TransposeOp(t[1], [0, 2, 3, 1])
    return [query, key, MatmulOp(query.result, key.result)]


def _norm(t: Sequence[SSAValue]) -> list[Operation]:
    square = BinaryOp("mul", t[0], t[0])
    total = ReductionOp("add", square.result, [1, 2], keep=False)
    return [square, total, UnaryOp("sqrt", total.result)]


OPERATORS: Mapping[str, PaperOperator] = {
    "C1D": PaperOperator(
        "convolution of 1 dimension", ((1, 64, 256), (128, 64, 3)), ((1, 5, 17), (12, 5, 3)), _convolution(2, 1), 64 * 3
    ),
    "C2D": PaperOperator(
        "convolution of 2 dimensions",
        ((1, 3, 224, 224), (64, 3, 7, 7)), ((1, 3, 13, 13), (9, 3, 7, 7)), _convolution(2, 3),
        3 * 7**2,
    ),
    "C3D": PaperOperator(
        "convolution of 3 dimensions",
        ((1, 3, 16, 224, 224), (64, 3, 7, 7, 7)), ((1, 2, 5, 7, 6), (6, 2, 3, 3, 3)), _convolution(2, 3),
        3 * 7**3,
    ),
    "DEP": PaperOperator(
        "depthwise convolution",
        ((1, 32, 112, 112), (32, 1, 3, 3)), ((1, 6, 11, 11), (6, 1, 3, 3)), _convolution(1, 1), 3**2,
    ),
    "DIL": PaperOperator(
        "dilated convolution",
        ((1, 3, 224, 224), (64, 3, 7, 7)), ((1, 3, 17, 17), (9, 3, 5, 5)), _convolution(2, 3, 2),
        3 * 7**2,
    ),
    "GMM": PaperOperator(
        "matrix product", ((128, 128), (128, 128)), ((19, 23), (23, 37)), lambda t: [MatmulOp(t[0], t[1])],
        128, inputs=2
    ),
    "GRP": PaperOperator(
        "grouped convolution",
        ((1, 64, 56, 56), (128, 16, 3, 3)), ((1, 8, 9, 9), (12, 2, 3, 3)), _convolution(2, 1),
        16 * 3**2,
    ),
    "T2D": PaperOperator(
        "transposed convolution",
        ((1, 512, 4, 4), (512, 256, 4, 4)), ((1, 7, 4, 4), (7, 5, 4, 4)),
        lambda t: [ConvTransposeOp(t[0], t[1], [2, 2], [1] * 4, [1, 1], 1, [0, 0])],
        512 * 2**2,
    ),
    "CBR": PaperOperator(
        "convolution, batch norm, relu",
        ((1, 3, 224, 224), (64, 3, 7, 7), *((64,),) * 4), ((1, 3, 13, 13), (9, 3, 7, 7), *((9,),) * 4),
        _convolution_norm_relu, 3 * 7**2,
    ),
    "TBG": PaperOperator(
        "transposes and a batch of products",
        ((1, 128, 12, 64), (1, 128, 12, 64)), ((1, 13, 3, 8), (1, 13, 3, 8)), _transposed_product, 64, inputs=2,
    ),
    "NRM": PaperOperator("norm", ((1, 256, 256),), ((1, 17, 23),), _norm, 256**2),
    "SFM": PaperOperator("softmax", ((1, 256, 256),), ((1, 17, 23),), lambda t: [SoftmaxOp(t[0], 2)], 256),
}  # fmt: skip
"""By the paper's names. What it leaves open is taken from its workloads: the product of TBG is of queries and keys,
NRM takes the root of one sum of squares for each matrix of the batch."""

__all__ = ["OPERATORS", "PaperOperator"]
