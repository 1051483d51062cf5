"""Types of the `hopper` dialect, and what its verifiers ask of buffers."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Attribute, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.utils.exceptions import VerifyException

AnyMemRef = MemRefType[Any]

MBARRIER_BYTES, TENSOR_MAP_BYTES = 8, 128


@irdl_attr_definition
class MbarrierType(ParametrizedAttribute, TypeAttribute):
    """A barrier in shared memory that counts arrivals of threads, and bytes that copies bring.

    ```mlir
    memref<4x!hopper.mbarrier, #loop.space<shared>>
    ```
    """

    name = "hopper.mbarrier"


@irdl_attr_definition
class TensorMapType(ParametrizedAttribute, TypeAttribute):
    """Where a tensor lies, and the box of it that one copy moves: made by the host for each launch."""

    name = "hopper.tensor_map"


def is_shared(type: AnyMemRef) -> bool:
    """Whether a buffer is in shared memory, by the loop dialect's space or, later, the cuda dialect's."""
    return str(getattr(type.memory_space, "data", "")) == "shared"


def is_private(type: AnyMemRef) -> bool:
    """Whether a buffer is a thread's own, in registers where its indices are constant."""
    return str(getattr(type.memory_space, "data", "")) in ("register", "local")


def memref_type(buffer: SSAValue) -> AnyMemRef:
    """The type of a verified operand."""
    assert isinstance(buffer.type, MemRefType)
    return buffer.type


def check_indices(buffer: SSAValue, indices: int) -> AnyMemRef:
    """The type of a buffer that has so many indices. VerifyException for another number."""
    type = memref_type(buffer)
    if indices != type.get_num_dims():
        raise VerifyException(f"'{type}' needs {type.get_num_dims()} indices, got {indices}")
    return type


def check_shared(buffer: SSAValue, indices: int) -> AnyMemRef:
    """The same of a buffer in shared memory."""
    type = check_indices(buffer, indices)
    if not is_shared(type):
        raise VerifyException(f"'{type}' is not in shared memory")
    return type


def check_mbarrier(buffer: SSAValue) -> None:
    """VerifyException for anything but barriers in shared memory, in one dimension."""
    type = check_shared(buffer, 1)
    if type.element_type != MbarrierType():
        raise VerifyException(f"'{type}' has no elements of type {MbarrierType()}")


def element_of(type: AnyMemRef) -> Attribute:
    """The type of a buffer's elements."""
    return type.get_element_type()
