"""Elements beyond an extent that is data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr, TensorType, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, traits_def
from xdsl.traits import Pure

from treadle.dialects.graph.definition import DefinitionBuilder, MovesElements, Operator, Scalar, integer, require
from treadle.dialects.scalar import number_op


@irdl_op_definition
class MaskOp(Operator):
    """Elements at the first `n` positions along dimension `dim`, and `fill` at the others.

    ```mlir
    %y = graph.mask %x below %n {dim = 1 : i64, fill = 0xFF800000 : f32}
        : (tensor<8x512xf32>, tensor<i64>) -> tensor<8x512xf32>
    ```
    `n` is data: below 0 it counts as 0, beyond the extent as the extent. The other elements of `x` are not read, so
    that nothing of them comes through, not even NaN. Rejected: a dimension out of range, an `n` that is no scalar of
    i64, a `fill` that is no number of the element type.
    """

    name = "graph.mask"
    x = operand_def(TensorType)
    n = operand_def(TensorType)
    dim = prop_def(IntegerAttr)
    fill = prop_def(FloatAttr | IntegerAttr)
    traits = traits_def(Pure(), MovesElements())
    assembly_format = "$x `below` $n attr-dict `:` `(` type($x) `,` type($n) `)` `->` type($result)"

    def __init__(self, x: SSAValue, n: SSAValue, dim: int, fill: float):
        assert isinstance(x.type, TensorType)
        number = number_op(fill, x.type.get_element_type()).value
        super().__init__([x, n], {"dim": IntegerAttr(dim, i64), "fill": number})

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        x, dim, fill = types[0], integer(properties, "dim"), properties["fill"]
        assert isinstance(fill, FloatAttr | IntegerAttr)
        require(0 <= dim < len(x.get_shape()), f"dimension {dim} of {x}")
        require(types[1] == TensorType(i64, []), f"n is a {types[1]}: expected tensor<i64>")
        require(fill.type == x.get_element_type(), f"fill is {fill}: expected a number of {x.get_element_type()}")
        return x

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        dim = self.dim.value.data
        n = extent(b, b.at(self.n, []), self.shape[dim])
        fill = b.constant(self.fill.value.data, self.type.get_element_type())
        return b.at(self.x, index, b.binary("lt", index[dim], n), fill)


def extent(b: DefinitionBuilder, n: Scalar, bound: int) -> Scalar:
    """A number of type i64 as an index from 0 to `bound`: below 0 it counts as 0, beyond the bound as the bound."""
    # A GPU's index may have 32 bits: `n` is brought into range before it is truncated.
    given = b.binary("max", b.binary("min", n, b.constant(bound, i64)), b.constant(0, i64))
    return b.insert(arith.IndexCastOp(given, IndexType()))


__all__ = ["MaskOp", "extent"]
