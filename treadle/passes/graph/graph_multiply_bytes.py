"""graph-multiply-bytes: products of bytes less zero points become products of bytes, where a GPU multiplies them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp, i32
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import MatmulOp, TransposeOp
from treadle.passes.graph.packed_tiles import ByteMatrix, byte_matrix, byte_operand, corrected, corrected_by_both
from treadle.passes.graph.rewriting import Array, constant_of, constant_op, replace_with
from treadle.target import Target


@dataclass(frozen=True)
class GraphMultiplyBytesPass(ModulePass):
    """Multiplies the bytes of products of i32, where tensor cores of `target` do that.

    ```mlir
    %d = graph.binary "sub" %x_i32, %z : (tensor<128x384xi32>, tensor<i32>) -> tensor<128x384xi32>
    %c = graph.matmul %d, %w : (tensor<128x384xi32>, tensor<384x64xi32>) -> tensor<128x64xi32>
    ```
    where `%x_i32` is a cast of bytes and `%w` a constant, becomes
    ```mlir
    %k = graph.constant #graph.blob<...> : tensor<64x384xi8>
    %t = graph.transpose %k {perm = array<i64: 1, 0>} : (tensor<64x384xi8>) -> tensor<384x64xi8>
    %s = graph.matmul %x, %t {sums = i32} : (tensor<128x384xui8>, tensor<384x64xi8>) -> tensor<128x64xi32>
    %u = graph.binary "mul" %z, %sums : (tensor<i32>, tensor<64xi32>) -> tensor<64xi32>
    %c = graph.binary "sub" %s, %u : (tensor<128x64xi32>, tensor<64xi32>) -> tensor<128x64xi32>
    ```
    Constants are stored along K, as tensor cores read bytes; the transpose fuses. So are those of products of
    floats of 8 bits. Where columns of `%w` need zero points of their own, or where the right operand is no
    constant, the sums of the rows of bytes take part, too. All of that is exact. Sources: Jacob et al.,
    "Quantization and training of neural networks for efficient integer-arithmetic-only inference", CVPR 2018,
    section 2.3; PTX ISA, "Matrix fragments for mma.m16n8k32".
    """

    name = "graph-multiply-bytes"
    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = Target.parse(self.target)
        if not target.is_cuda or not target.multiplies_bytes:
            return
        matrices = _Matrices()
        for product in [inner for inner in op.walk() if isinstance(inner, MatmulOp)]:
            if product.type.get_element_type() == i32 and product.sums is None and DYNAMIC_INDEX not in product.shape:
                _multiply_bytes(product, matrices)
            elif product.is_of_small_floats and (matrix := constant_of(product.b)) is not None:
                product.operands[1] = matrices.stored(matrix, product)


class _Matrices:
    """Constants as bytes along K, each once."""

    def __init__(self) -> None:
        self._known: dict[SSAValue, ByteMatrix | None] = {}
        self._stored: dict[SSAValue, SSAValue] = {}

    def of(self, value: SSAValue) -> ByteMatrix | None:
        """The bytes of a constant matrix, or of a batch of them; None for anything else."""
        if value not in self._known:
            self._known[value] = byte_matrix(value)
        return self._known[value]

    def stored(self, matrix: Array, product: MatmulOp) -> SSAValue:
        """The bytes of a matrix, `[batch..., K, N]`, in front of the first product that reads it."""
        if product.b not in self._stored:
            rank = matrix.ndim
            constant = constant_op(np.ascontiguousarray(np.swapaxes(matrix, -1, -2)))
            along_k = TransposeOp(constant.result, [*range(rank - 2), rank - 1, rank - 2])
            constant.result.name_hint = along_k.result.name_hint = product.b.name_hint
            for op in (constant, along_k):
                op.location = product.location
            Rewriter.insert_op([constant, along_k], InsertPoint.before(product))
            self._stored[product.b] = along_k.result
        return self._stored[product.b]


def _multiply_bytes(product: MatmulOp, matrices: _Matrices) -> None:
    """Replaces a product of two operands that are bytes less zero points."""
    matrix = matrices.of(product.b)
    right = byte_operand(product.b) if matrix is None else None
    left = None if matrix is None and right is None else byte_operand(product.a)
    if left is None:
        return
    if matrix is not None:
        total = MatmulOp(left.value, matrices.stored(matrix.bytes, product), sums=i32)
        replace_with(product, [total, *corrected(total.result, left, matrix)], name_all=True)
    elif right is not None:
        total = MatmulOp(left.value, right.value, sums=i32)
        replace_with(product, [total, *corrected_by_both(total.result, left, right)], name_all=True)


__all__ = ["GraphMultiplyBytesPass"]
