"""loop-flatten: the buffers of arguments become one-dimensional."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import DYNAMIC_INDEX, IndexType, IntegerAttr, MemRefType, ModuleOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.hopper import TensorMapOp
from treadle.dialects.host import BufferOp
from treadle.dialects.location import location_of
from treadle.dialects.loop import FuncOp, LoadOp, MultiplyTilesOp, StoreOp
from treadle.errors import TreadleError
from treadle.passes.loop.kernels import constant_index


@dataclass(frozen=True)
class LoopFlattenPass(ModulePass):
    """Makes the buffers of `loop.func` and `host.buffer` one-dimensional; indices become row-major offsets.

    ```mlir
    loop.func @copy(%A : memref<8x32xf32>, %C : memref<32x8xf32>) grid(%b in 8) threads(%t in 32) {
      %v = loop.load %A[%b, %t] : memref<8x32xf32>
      loop.store %v, %C[%t, %b] : memref<32x8xf32>
    }
    ```
    becomes
    ```mlir
    loop.func @copy(%A : memref<256xf32>, %C : memref<256xf32>) grid(%b in 8) threads(%t in 32) {
      %c32 = arith.constant 32 : index
      %c8 = arith.constant 8 : index
      %0 = arith.muli %b, %c32 : index
      %1 = arith.addi %0, %t : index
      %v = loop.load %A[%1] : memref<256xf32>
      ...
    ```
    Buffers that the kernel allocates keep their shape. TreadleError for an access to an argument other than
    `loop.load`, `loop.store` and the panel of a `loop.multiply_tiles`, and for symbolic extents.
    """

    name = "loop-flatten"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for inner in list(op.walk()):
            if isinstance(inner, FuncOp):
                flatten_kernel(inner)
            elif isinstance(inner, BufferOp):
                _flatten_value(inner.buffer, inner)


def flatten_kernel(kernel: FuncOp) -> None:
    """Flattens the arguments of one kernel and every access to them."""
    writer = _OffsetWriter(kernel)
    for buffer in list(kernel.buffers):
        shape = _shape(buffer, kernel)
        if len(shape) == 1:
            continue
        flat = _flatten_value(buffer, kernel)
        # An access uses the buffer once: as its buffer, not as an index or a stored value.
        for use in list(flat.uses):
            writer.rewrite(use.operation, shape)


def _shape(buffer: SSAValue[Attribute], user: Operation) -> tuple[int, ...]:
    type = buffer.type
    if not isinstance(type, MemRefType) or DYNAMIC_INDEX in type.get_shape():
        raise TreadleError(f"{user.name} has a buffer {type}", location_of(user), "a memref with static extents")
    return type.get_shape()


def _flatten_value(buffer: SSAValue[Attribute], user: Operation) -> SSAValue[Attribute]:
    """The buffer with the one-dimensional type; buffers that have one stay."""
    shape, type = _shape(buffer, user), buffer.type
    if len(shape) == 1 or not isinstance(type, MemRefType):
        return buffer
    flat = MemRefType(type.get_element_type(), (prod(shape),), memory_space=type.memory_space)
    return Rewriter.replace_value_with_new_type(buffer, flat)


class _OffsetWriter:
    """Writes offsets in front of accesses, with one constant a number for the whole kernel."""

    def __init__(self, kernel: FuncOp):
        self._kernel = kernel
        self._constants: dict[int, SSAValue] = {}

    def rewrite(self, access: Operation, shape: Sequence[int]) -> None:
        """Gives an access of a flattened buffer its one index."""
        if isinstance(access, TensorMapOp):
            return  # it has extents and strides of its own
        if isinstance(access, MultiplyTilesOp):
            self._operand(access, shape)
            return
        if not isinstance(access, LoadOp | StoreOp):
            name = self._kernel.sym_name.data
            raise TreadleError(
                f"{access.name} uses an argument of @{name}", location_of(access), "loop.load, loop.store"
            )
        offset = self._offset(access, access.indices, shape)
        if isinstance(access, LoadOp):
            new: LoadOp | StoreOp = LoadOp(access.buffer, [offset], access.predicate, access.otherwise)
            new.result.name_hint = access.result.name_hint
        else:
            new = StoreOp(access.value, access.buffer, [offset], access.predicate)
        new.location = access.location
        new.attributes |= access.attributes
        Rewriter.replace_op(access, new)

    def _operand(self, product: MultiplyTilesOp, shape: Sequence[int]) -> None:
        """Gives an operand of a product its one index, unless it lies in a buffer of the kernel's."""

        def place(buffer: SSAValue, indices: Sequence[SSAValue]) -> tuple[SSAValue, Sequence[SSAValue]]:
            is_flat = isinstance(buffer.type, MemRefType) and buffer.type.get_num_dims() != len(indices)
            return buffer, [self._offset(product, indices, shape)] if is_flat else indices

        left, right = place(product.a, product.a_indices), place(product.b, product.b_indices)
        (rows, _, depth), acc = product.extents, (product.acc, product.acc_indices)
        new = MultiplyTilesOp(acc, left, right, (rows, depth), product.left, product.ahead, product.fetched)
        new.location = product.location
        new.attributes |= product.attributes
        Rewriter.replace_op(product, new)

    def _offset(self, access: Operation, indices: Sequence[SSAValue], shape: Sequence[int]) -> SSAValue:
        """The sum of index times stride; what is known to be zero has no term."""
        builder = Builder(InsertPoint.before(access))
        total: SSAValue | None = None
        for dim, index in enumerate(indices):
            if shape[dim] == 1 or constant_index(index) == 0:
                continue
            stride = prod(shape[dim + 1 :])
            term = index
            if stride != 1:
                term = _placed(builder, arith.MuliOp(index, self._constant(stride)), access)
            total = term if total is None else _placed(builder, arith.AddiOp(total, term), access)
        return self._constant(0) if total is None else total

    def _constant(self, value: int) -> SSAValue:
        if value not in self._constants:
            first = self._kernel.body.block.first_op
            assert first is not None, "an access stands in the body"
            op = arith.ConstantOp(IntegerAttr(value, IndexType()))
            op.location = self._kernel.location
            op.result.name_hint = f"c{value}"
            Rewriter.insert_op(op, InsertPoint.before(first))
            self._constants[value] = op.result
        return self._constants[value]


def _placed(builder: Builder, op: Operation, source: Operation) -> SSAValue:
    op.location = source.location
    builder.insert(op)
    return op.results[0]


__all__ = ["LoopFlattenPass", "flatten_kernel"]
