"""A dialect: operators that the graph dialect lacks, each with a definition of its elements."""

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import Float32Type, TensorType
from xdsl.ir import Attribute, Dialect
from xdsl.irdl import irdl_op_definition, operand_def, traits_def
from xdsl.traits import Pure
from xdsl.universe import Universe
from xdsl.utils.exceptions import VerifyException

from treadle.plugins import DefinitionBuilder, Operator, Scalar


@irdl_op_definition
class SquaredReluOp(Operator):
    """`max(x, 0) ** 2`.

    ```mlir
    %y = example.squared_relu %x : (tensor<2x8xf32>) -> tensor<2x8xf32>
    ```
    Rejected: elements that are not f32.
    """

    name = "example.squared_relu"
    x = operand_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$x attr-dict `:` functional-type(operands, results)"

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        """The type of the operand."""
        if not isinstance(types[0].get_element_type(), Float32Type):
            raise VerifyException(f"elements of type {types[0].get_element_type()}, where f32 is accepted")
        return types[0]

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        """Of the element at the same index."""
        x = b.at(self.x, index)
        y = b.binary("max", x, b.constant(0.0, x.type))
        return b.binary("mul", y, y)


EXAMPLE = Dialect("example", [SquaredReluOp])
UNIVERSE = Universe(all_dialects={"example": lambda: EXAMPLE})
