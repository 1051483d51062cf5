"""graph-pack-weights: constant right operands of products are stored as panels of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import ConstantOp, MatmulOp, WinogradConvOp
from treadle.dialects.graph.compute import ComputeOp
from treadle.dialects.graph.constant import constant_array
from treadle.dialects.graph.definition import DefinitionBuilder, Scalar, compute_of
from treadle.passes.graph.layout.layout import Layout
from treadle.passes.graph.rewriting import Array, constant_op
from treadle.schedules.register_tile import default_vectors, panel_columns
from treadle.target import Target


@dataclass(frozen=True)
class GraphPackWeightsPass(ModulePass):
    """Stores a constant `B[batch..., K, N]` as `[batch..., ceil(N / width), K, width]`, zero-padded, read through a
    compute.

    ```mlir
    %c = graph.matmul %a, %b : (tensor<128x768xf32>, tensor<768x3072xf32>) -> tensor<128x3072xf32>
    ```
    becomes
    ```mlir
    %panels = graph.constant #graph.blob<...> : tensor<64x768x48xf32>
    %b = graph.compute "unpack" (%k, %n) {
      %0 = arith.divui %n, %c48 : index
      %1 = arith.remui %n, %c48 : index
      %2 = graph.at %panels[%0, %k, %1] : tensor<64x768x48xf32>
      graph.yield %2 : f32
    } : tensor<768x3072xf32>
    %c = graph.matmul %a, %b : (tensor<128x768xf32>, tensor<768x3072xf32>) -> tensor<128x3072xf32>
    ```
    A register tile of a CPU kernel then reads consecutive vectors. So do those of `graph.winograd_conv`, whose filters
    are a batch of matrices. A constant that several operators read is packed once. Source: Goto and van de Geijn,
    "Anatomy of high-performance matrix multiplication", TOMS 2008, section 4.
    """

    name = "graph-pack-weights"

    target: str = "cpu"
    width: int | None = None
    """Columns of a panel; by default those of the target's register tile for a matrix of as many."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = Target.parse(self.target)
        unpacked: dict[SSAValue, ComputeOp] = {}
        for product in [inner for inner in op.walk() if isinstance(inner, MatmulOp | WinogradConvOp)]:
            matrix = product.operands[1]
            owner = matrix.owner
            if isinstance(owner, ConstantOp):
                if matrix not in unpacked:
                    *_, rows, columns = owner.type.get_shape()
                    default = panel_columns(target, default_vectors(target, columns, rows))
                    unpacked[matrix] = _unpack(owner, default if self.width is None else self.width)
                product.operands[1] = unpacked[matrix].result
                if not owner.result.uses:
                    Rewriter.erase_op(owner)


def packed(matrix: Array, width: int) -> Array:
    """The panels of matrices `[..., K, N]` as `[..., ceil(N / width), K, width]`; columns beyond N are zeros."""
    *batch, row, column = range(matrix.ndim)
    return Layout((*batch, column, row, column), width).array(matrix)


def _unpack(constant: ConstantOp, width: int) -> ComputeOp:
    """Inserts the panels and a compute that reads them as the matrix, after the constant."""
    panels = constant_op(packed(constant_array(constant), width))

    def element(b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        *batch, k, n = index
        return b.at(panels.result, [*batch, b.div(n, width), k, b.mod(n, width)])

    compute = compute_of(constant.type, element, "unpack")
    panels.location = compute.location = constant.location
    panels.result.name_hint = compute.result.name_hint = constant.result.name_hint
    Rewriter.insert_op([panels, compute], InsertPoint.after(constant))
    return compute


__all__ = ["GraphPackWeightsPass", "packed"]
