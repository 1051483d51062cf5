"""The constant operator."""

from __future__ import annotations

from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType
from xdsl.irdl import IRDLOperation, irdl_op_definition, prop_def, result_def, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph.attributes import BlobAttr, InlineAttr
from treadle.dialects.graph.dtypes import byte_width, is_supported


@irdl_op_definition
class ConstantOp(IRDLOperation):
    """A tensor known at compile time: a few values in the text, or the name of a blob in the store.

    ```mlir
    %a = graph.constant #graph.inline<"1.0, -inf"> : tensor<2xf32>
    %w = graph.constant #graph.blob<"sha256:...", 9437184> : tensor<768x3072xf32>
    ```
    Rejected: symbolic dimensions, text or a number of bytes that does not fit the type.
    """

    name = "graph.constant"
    value = prop_def(BlobAttr | InlineAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$value attr-dict `:` type($result)"

    def __init__(self, value: BlobAttr | InlineAttr, type: TensorType):
        super().__init__(properties={"value": value}, result_types=[type])

    @property
    def type(self) -> TensorType:
        assert isinstance(self.result.type, TensorType)
        return self.result.type

    def verify_(self) -> None:
        type = self.type
        if DYNAMIC_INDEX in type.get_shape() or not is_supported(type.get_element_type()):
            raise VerifyException(f"a constant has static extents and a supported element type, not {type}")
        if isinstance(self.value, BlobAttr):
            expected = type.element_count() * byte_width(type.get_element_type())
            if self.value.nbytes.data != expected:
                raise VerifyException(f"a blob of {self.value.nbytes.data} bytes is no {type} ({expected} bytes)")
            return
        try:
            self.value.array(type)
        except (ValueError, KeyError, OverflowError) as error:
            raise VerifyException(f"{self.value.text.data!r} is no {type}: {error}") from error
