"""Root-mean-square normalisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, TensorType, f64, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, traits_def
from xdsl.traits import Pure

from treadle.dialects.graph.definition import DefinitionBuilder, Operator, Scalar, integer, require, widened
from treadle.dialects.graph.dtypes import is_float
from treadle.dialects.graph.elementwise import convert


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
        super().__init__([x, scale], {"dim": IntegerAttr(dim, i64), "epsilon": FloatAttr(epsilon, f64)})

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
