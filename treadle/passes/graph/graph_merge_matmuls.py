"""graph-merge-matmuls: parallel products of one tensor with constants become one product."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, SSAValue
from xdsl.passes import ModulePass

from treadle.dialects.graph import ConstantOp, MatmulOp
from treadle.passes.graph.branches import merge
from treadle.passes.graph.rewriting import shape_of, tensor


@dataclass(frozen=True)
class GraphMergeMatmulsPass(ModulePass):
    """Merges products that share their left (or right) operand and whose other operands are constant matrices.

    ```mlir
    %q = graph.matmul %x, %wq : (tensor<128x768xf32>, tensor<768x768xf32>) -> tensor<128x768xf32>
    %a = graph.binary "add" %q, %bq : (tensor<128x768xf32>, tensor<768xf32>) -> tensor<128x768xf32>
    %k = graph.matmul %x, %wk : (tensor<128x768xf32>, tensor<768x768xf32>) -> tensor<128x768xf32>
    %b = graph.binary "add" %k, %bk : (tensor<128x768xf32>, tensor<768xf32>) -> tensor<128x768xf32>
    ```
    becomes
    ```mlir
    %m = graph.matmul %x, %w : (tensor<128x768xf32>, tensor<768x1536xf32>) -> tensor<128x1536xf32>
    %s = graph.binary "add" %m, %bias : (tensor<128x1536xf32>, tensor<1536xf32>) -> tensor<128x1536xf32>
    %a = graph.slice %s {starts = array<i64: 0, 0>, ...} : (...) -> tensor<128x768xf32>
    %b = graph.slice %s {starts = array<i64: 0, 768>, ...} : (...) -> tensor<128x768xf32>
    ```
    Constants that are added or multiplied afterwards are joined, too (0 or 1 where a branch has none), and equal
    functions, reshapes and transposes are applied once. The slices only move data: they become prologues of their
    readers. Products stay apart where a branch ends in an elementwise operator that would have been its epilogue, or
    leaves the function. Source: Jia et al., "TASO", SOSP 2019, figure 2.
    """

    name = "graph-merge-matmuls"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and function.body.blocks:
                for shared in (0, 1):
                    for members in _candidates(function.body.block, shared):
                        merge(members, shared)


def _candidates(block: Block, shared: int) -> list[list[MatmulOp]]:
    """Products by their operand number `shared`, where the other is a constant matrix of one type; two or more each."""
    found: dict[tuple[SSAValue, Attribute, Attribute | None], list[MatmulOp]] = {}
    for op in block.ops:
        if not isinstance(op, MatmulOp) or DYNAMIC_INDEX in op.shape:
            continue
        other = op.operands[1 - shared]
        if isinstance(other.owner, ConstantOp) and len(shape_of(other)) == 2:
            found.setdefault((op.operands[shared], tensor(other).get_element_type(), op.precision), []).append(op)
    return [members for members in found.values() if len(members) > 1]


__all__ = ["GraphMergeMatmulsPass"]
