"""Operators over rows: softmax, layer_norm, batch_norm. `graph-decompose` writes the first two as simpler ones.

Rows of 16-bit floats are computed in float32, and rounded once: a sum of squares or of exponentials may be beyond them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, TensorType, f64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, traits_def
from xdsl.traits import Pure

from treadle.dialects.graph.definition import DefinitionBuilder, Operator, Scalar, integer, require, widened
from treadle.dialects.graph.dtypes import accumulator, is_float
from treadle.dialects.graph.elementwise import convert


@irdl_op_definition
class SoftmaxOp(Operator):
    """`exp(x - max) * (1 / sum(exp(x - max)))` along a dimension.

    ```mlir
    %y = graph.softmax %x {dim = 3 : i64} : (tensor<1x12x128x128xf32>) -> tensor<1x12x128x128xf32>
    ```
    Rejected: a dimension out of range, integers.
    """

    name = "graph.softmax"
    x = operand_def(TensorType)
    dim = prop_def(IntegerAttr)
    traits = traits_def(Pure())
    assembly_format = "$x attr-dict `:` `(` type($x) `)` `->` type($result)"

    def __init__(self, x: SSAValue, dim: int):
        super().__init__([x], dim=dim)

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        require(is_float(types[0].get_element_type()), f"softmax of {types[0]}: floats are needed")
        dim = integer(properties, "dim")
        require(0 <= dim < types[0].get_num_dims(), f"dimension {dim} is out of range for {types[0]}")
        return types[0]

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        dim = self.dim.value.data
        extents = [self.shape[dim]]

        def along(k: Sequence[Scalar]) -> list[Scalar]:
            return [*index[:dim], k[0], *index[dim + 1 :]]

        def read(inner: DefinitionBuilder, where: Sequence[Scalar]) -> Scalar:
            return widened(inner, inner.at(self.x, where))

        largest = b.reduce("max", extents, lambda inner, k: read(inner, along(k)))

        def exponential(inner: DefinitionBuilder, where: Sequence[Scalar]) -> Scalar:
            return inner.math("exp", inner.binary("sub", read(inner, where), largest))

        total = b.reduce("add", extents, lambda inner, k: exponential(inner, along(k)))
        share = b.mul(exponential(b, index), b.binary("div", b.constant(1.0, total.type), total))
        return convert(b, share, self.type.get_element_type())


@irdl_op_definition
class LayerNormOp(Operator):
    """`(x - mean) / sqrt(variance + epsilon) * scale + bias` over the dimensions from `dim` on.

    ```mlir
    %y = graph.layer_norm %x, %scale, %bias {dim = 2 : i64, epsilon = 1.0e-05 : f64}
        : (tensor<1x128x384xf32>, tensor<384xf32>, tensor<384xf32>) -> tensor<1x128x384xf32>
    ```
    Rejected: a scale or a bias whose shape is not that of the normalised dimensions.
    """

    name = "graph.layer_norm"
    x = operand_def(TensorType)
    scale = operand_def(TensorType)
    bias = operand_def(TensorType)
    dim = prop_def(IntegerAttr)
    epsilon = prop_def(FloatAttr)
    traits = traits_def(Pure())
    assembly_format = (
        "$x `,` $scale `,` $bias attr-dict `:` `(` type($x) `,` type($scale) `,` type($bias) `)` `->` type($result)"
    )

    def __init__(self, x: SSAValue, scale: SSAValue, bias: SSAValue, dim: int, epsilon: float):
        super().__init__([x, scale, bias], dim=dim, epsilon=FloatAttr(epsilon, f64))

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        x, dim = types[0], integer(properties, "dim")
        require(is_float(x.get_element_type()), f"layer_norm of {x}: floats are needed")
        require(0 <= dim < x.get_num_dims(), f"dimension {dim} of {x}")
        rows = TensorType(x.get_element_type(), x.get_shape()[dim:])
        for type in types[1:]:
            require(type == rows, f"scale and bias are {rows}, not {type}")
        return x

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        dim, element = self.dim.value.data, self.type.get_element_type()
        extents, wide = self.shape[dim:], accumulator(element)
        count = b.constant(float(prod(extents)), wide)

        def read(inner: DefinitionBuilder, source: SSAValue, where: Sequence[Scalar]) -> Scalar:
            return widened(inner, inner.at(source, where))

        def deviation(inner: DefinitionBuilder, where: Sequence[Scalar]) -> Scalar:
            return inner.binary("sub", read(inner, self.x, where), mean)

        def square(inner: DefinitionBuilder, k: Sequence[Scalar]) -> Scalar:
            difference = deviation(inner, [*index[:dim], *k])
            return inner.mul(difference, difference)

        total = b.reduce("add", extents, lambda inner, k: read(inner, self.x, [*index[:dim], *k]))
        mean = b.binary("div", total, count)
        variance = b.binary("div", b.reduce("add", extents, square), count)
        spread = b.math("rsqrt", b.add(variance, b.constant(self.epsilon.value.data, wide)))
        normal = b.mul(deviation(b, index), spread)
        scale, bias = (read(b, source, index[dim:]) for source in (self.scale, self.bias))
        return convert(b, b.add(b.mul(normal, scale), bias), element)


@irdl_op_definition
class BatchNormOp(Operator):
    """Inference batch normalisation of `[N, C, ...]` by per-channel statistics.

    ```mlir
    %y = graph.batch_norm %x, %scale, %bias, %mean, %variance {epsilon = 1.0e-05 : f64} : (...) -> tensor<1x64x8x8xf32>
    ```
    Rejected: parameters that are not one value a channel, integers.
    """

    name = "graph.batch_norm"
    x = operand_def(TensorType)
    scale = operand_def(TensorType)
    bias = operand_def(TensorType)
    mean = operand_def(TensorType)
    variance = operand_def(TensorType)
    epsilon = prop_def(FloatAttr)
    traits = traits_def(Pure())
    assembly_format = (
        "$x `,` $scale `,` $bias `,` $mean `,` $variance attr-dict `:` "
        "`(` type($x) `,` type($scale) `,` type($bias) `,` type($mean) `,` type($variance) `)` `->` type($result)"
    )

    def __init__(
        self, x: SSAValue, scale: SSAValue, bias: SSAValue, mean: SSAValue, variance: SSAValue, epsilon: float
    ):
        super().__init__([x, scale, bias, mean, variance], epsilon=FloatAttr(epsilon, f64))

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        x = types[0]
        require(is_float(x.get_element_type()), f"batch_norm of {x}: floats are needed")
        require(x.get_num_dims() >= 2, f"batch_norm of {x}: rank is at least 2")
        channels = TensorType(x.get_element_type(), [x.get_shape()[1]])
        for type in types[1:]:
            require(type == channels, f"parameters are {channels}, not {type}")
        return x

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        scale, bias, mean, variance = (b.at(p, [index[1]]) for p in (self.scale, self.bias, self.mean, self.variance))
        epsilon = b.constant(self.epsilon.value.data, self.type.get_element_type())
        normal = b.binary("div", b.binary("sub", b.at(self.x, index), mean), b.math("sqrt", b.add(variance, epsilon)))
        return b.add(b.mul(normal, scale), bias)


# Root-mean-square normalisation.


@irdl_op_definition
class RmsNormOp(Operator):
    """`x / sqrt(mean(x * x) + epsilon) * scale` over the dimensions from `dim` on.

    ```mlir
    %y = graph.rms_norm %x, %scale {dim = 2 : i64, epsilon = 1.0e-06 : f64}
        : (tensor<1x128x768xf32>, tensor<768xf32>) -> tensor<1x128x768xf32>
    ```
    Rows of 16-bit floats are computed in float32, and rounded once. Source: Zhang and Sennrich, "Root mean square
    layer normalization", NeurIPS 2019. Rejected: integers, a dimension out of range, a scale whose shape is not that
    of the normalised dimensions.
    """

    name = "graph.rms_norm"
    x = operand_def(TensorType)
    scale = operand_def(TensorType)
    dim = prop_def(IntegerAttr)
    epsilon = prop_def(FloatAttr)
    traits = traits_def(Pure())
    assembly_format = "$x `,` $scale attr-dict `:` `(` type($x) `,` type($scale) `)` `->` type($result)"

    def __init__(self, x: SSAValue, scale: SSAValue, dim: int, epsilon: float):
        super().__init__([x, scale], dim=dim, epsilon=FloatAttr(epsilon, f64))

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        x, dim = types[0], integer(properties, "dim")
        require(is_float(x.get_element_type()), f"rms_norm of {x}: floats are needed")
        require(0 <= dim < x.get_num_dims(), f"dimension {dim} of {x}")
        rows = TensorType(x.get_element_type(), x.get_shape()[dim:])
        require(types[1] == rows, f"the scale is {rows}, not {types[1]}")
        return x

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        dim, element = self.dim.value.data, self.type.get_element_type()
        extents = self.shape[dim:]

        def square(inner: DefinitionBuilder, k: Sequence[Scalar]) -> Scalar:
            value = widened(inner, inner.at(self.x, [*index[:dim], *k]))
            return inner.mul(value, value)

        total = b.reduce("add", extents, square)
        mean = b.binary("div", total, b.constant(float(prod(extents)), total.type))
        spread = b.math("sqrt", b.add(mean, b.constant(self.epsilon.value.data, total.type)))
        normal = b.binary("div", widened(b, b.at(self.x, index)), spread)
        return convert(b, b.mul(normal, widened(b, b.at(self.scale, index[dim:]))), element)
