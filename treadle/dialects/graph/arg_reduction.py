"""The position of the largest or smallest element along a dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, IntegerType, StringAttr, TensorType, i32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, traits_def
from xdsl.traits import Pure

from treadle.dialects.graph.definition import DefinitionBuilder, Operator, Scalar, integer, require, word
from treadle.dialects.graph.dtypes import is_float


@irdl_op_definition
class ArgReductionOp(Operator):
    """The position of the largest (`max`) or smallest (`min`) element along a dimension, as i64.

    ```mlir
    %y = graph.arg_reduction "max" %x {dim = 1 : i64, keep = 1 : i64, last = 0 : i64}
        : (tensor<4x8xf32>) -> tensor<4x1xi64>
    ```
    Of equal elements, the first counts, or with `last` the last; a NaN counts as larger, and as smaller, than any
    number. With `keep`, the dimension stays with extent 1. Rejected: an unknown kind, a dimension out of range or of
    extent 0, elements other than floats and integers of more than one bit.
    """

    name = "graph.arg_reduction"
    kind = prop_def(StringAttr)
    x = operand_def(TensorType)
    dim = prop_def(IntegerAttr)
    keep = prop_def(IntegerAttr)
    last = prop_def(IntegerAttr)
    traits = traits_def(Pure())
    assembly_format = "$kind $x attr-dict `:` `(` type($x) `)` `->` type($result)"

    def __init__(self, kind: str, x: SSAValue, dim: int, keep: bool, last: bool = False):
        numbers = {"dim": dim, "keep": int(keep), "last": int(last)}
        properties = {name: IntegerAttr(value, i64) for name, value in numbers.items()}
        super().__init__([x], {"kind": StringAttr(kind), **properties})

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        kind, dim, shape = word(properties, "kind"), integer(properties, "dim"), types[0].get_shape()
        element = types[0].get_element_type()
        require(kind in ("max", "min"), f"unknown arg_reduction {kind!r}: expected max or min")
        require(0 <= dim < len(shape), f"dimension {dim} of a tensor of rank {len(shape)}")
        require(shape[dim] != 0, f"the {kind} of no elements, along dimension {dim} of {types[0]}")
        ordered = is_float(element) or (isinstance(element, IntegerType) and element.width.data > 1)
        require(ordered, f"arg_reduction of {element}: floats or integers are needed")
        kept = [1] if integer(properties, "keep") else []
        return TensorType(i64, [*shape[:dim], *kept, *shape[dim + 1 :]])

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        assert isinstance(self.x.type, TensorType)
        dim, extent = self.dim.value.data, self.x.type.get_shape()[self.dim.value.data]
        outer = [*index[:dim], *index[dim + 1 :]] if self.keep.value.data else list(index)
        last = bool(self.last.value.data)

        def read(inner: DefinitionBuilder, k: Sequence[Scalar]) -> Scalar:
            return inner.at(self.x, [*outer[:dim], k[0], *outer[dim:]])

        extremum = b.reduce(self.kind.data, [extent], read)

        def candidate(inner: DefinitionBuilder, k: Sequence[Scalar]) -> Scalar:
            value = read(inner, k)
            found = inner.binary("eq", value, extremum)
            if is_float(value.type):
                # A NaN makes the extremum NaN, which is equal to nothing.
                found = inner.binary("or", found, inner.binary("ne", value, value))
            position = inner.insert(arith.IndexCastOp(k[0], i32))
            return inner.select(found, position, inner.constant(-1 if last else extent, i32))

        return b.insert(arith.ExtSIOp(b.reduce("max" if last else "min", [extent], candidate), i64))
