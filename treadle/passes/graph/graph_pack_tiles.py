"""graph-pack-tiles: products by constants of bf16 are laid out for a CPU core's matrix unit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, bf16
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import CastOp, ConstantOp, MatmulOp, PackedMatmulOp, ReshapeOp, TransposeOp
from treadle.dialects.graph.definition import int_list
from treadle.dialects.graph.packed_matmul import PANEL_COLUMNS
from treadle.dialects.graph.store import constant_array
from treadle.passes.graph.rewriting import Array, constant_op
from treadle.target import Target


@dataclass(frozen=True)
class GraphPackTilesPass(ModulePass):
    """Stores constant right operands in panels, as the matrix unit of `target` reads them; without a unit, nothing.

    ```mlir
    %c = graph.matmul %a, %b : (tensor<128x768xbf16>, tensor<768x3072xbf16>) -> tensor<128x3072xbf16>
    ```
    becomes
    ```mlir
    %panels = graph.constant #graph.blob<...> : tensor<96x384x32x2xbf16>
    %s = graph.packed_matmul %a, %panels {columns = 3072 : i64} : (...) -> tensor<128x3072xf32>
    %c = graph.cast %s to bf16 : (tensor<128x3072xf32>) -> tensor<128x3072xbf16>
    ```
    which is what a product of bf16 means: its sums run in f32, and are rounded once. A reader that widens the result to
    f32 takes the sum itself, which nothing rounds. A constant that several products read is packed once. Batches of
    constant matrices stay as they are.
    """

    name = "graph-pack-tiles"
    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if not Target.parse(self.target).has_unit:
            return
        packed: dict[SSAValue, ConstantOp] = {}
        for product in [inner for inner in op.walk() if isinstance(inner, MatmulOp)]:
            matrix = product.b.owner
            fits = product.type.get_element_type() == bf16 and isinstance(matrix, ConstantOp)
            if not fits or not isinstance(matrix, ConstantOp) or matrix.type.get_num_dims() != 2:
                continue
            if product.b not in packed:
                packed[product.b] = _packed(matrix)
            _pack(product, packed[product.b])
            if not matrix.result.uses:
                Rewriter.erase_op(matrix)


def panels_of(matrix: Array, side: int) -> Array:
    """A matrix `[K, N]` as `[ceil(N / 32), K' / side, 32, side]`, K' being K with zeros up to 16 rows of panels."""
    rows, columns = matrix.shape
    deep, wide = -(-rows // (16 * side)) * 16 * side, -(-columns // PANEL_COLUMNS)
    padded = np.zeros((deep, wide * PANEL_COLUMNS), matrix.dtype)
    padded[:rows, :columns] = matrix
    # Of integers, since NumPy moves elements of other libraries' types one by one.
    bits = padded.view(f"u{matrix.itemsize}").reshape(deep // side, side, wide, PANEL_COLUMNS)
    return np.ascontiguousarray(bits.transpose(2, 0, 3, 1)).view(matrix.dtype)


def _packed(matrix: ConstantOp) -> ConstantOp:
    """The panels of a constant, behind it."""
    panels = constant_op(panels_of(constant_array(matrix), 2))
    panels.location = matrix.location
    panels.result.name_hint = matrix.result.name_hint
    Rewriter.insert_op(panels, InsertPoint.after(matrix))
    return panels


def _pack(product: MatmulOp, panels: ConstantOp) -> None:
    total = PackedMatmulOp(product.a, panels.result, product.shape[-1])
    result = CastOp(total.result, bf16)
    for op in (total, result):
        op.location = product.location
        op.result.name_hint = product.result.name_hint
    Rewriter.replace_op(product, [total, result], [result.result])
    _read_wide(result.result, total.result)
    if not result.result.uses:
        Rewriter.erase_op(result)


def _read_wide(rounded: SSAValue, exact: SSAValue) -> None:
    """Has readers that widen a rounded tensor read the exact one instead, also behind operators that only move it."""
    for reader in list(dict.fromkeys(use.operation for use in rounded.uses)):
        if isinstance(reader, CastOp) and reader.type == exact.type:
            Rewriter.replace_op(reader, [], [exact])
        elif isinstance(reader, ReshapeOp | TransposeOp):
            moved = _moved(reader, exact)
            moved.location, moved.result.name_hint = reader.location, reader.result.name_hint
            Rewriter.insert_op(moved, InsertPoint.after(reader))
            _read_wide(reader.result, moved.result)
            for op in (reader, moved):
                if not op.result.uses:
                    Rewriter.erase_op(op)


def _moved(op: ReshapeOp | TransposeOp, value: SSAValue) -> ReshapeOp | TransposeOp:
    """The operator on another tensor of the same shape."""
    if isinstance(op, ReshapeOp):
        return ReshapeOp(value, op.shape)
    return TransposeOp(value, int_list(op.properties, "perm"))


__all__ = ["GraphPackTilesPass", "panels_of"]
