"""graph-split-k: products of few tiles and many terms share their terms out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp, f32
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import BinaryOp, MatmulOp, PadOp, ReductionOp, ReshapeOp, SliceOp, TransposeOp
from treadle.passes.graph.rewriting import constant_op, shape_of
from treadle.target import Target

TILE = 64
"""Rows and columns of the smallest tile whose arithmetic, not its shared memory, bounds a CUDA-core product."""
SMALLEST = 16
"""Rows and columns below which a product is better a reduction, a block an element or two."""
TERMS = 128
"""Terms that a slice has at least: an element then takes 256 operations for the 8 bytes of its partial sum that are
written and read, more than any target's operations a byte."""
ELEMENTWISE = 8
"""Slices that are added as single operands; more of them are a reduction."""
_GRAIN = 8
"""Terms of which a slice's number is a multiple: a tile's extent along K, and a sector."""


@dataclass(frozen=True)
class GraphSplitKPass(ModulePass):
    """Splits the terms of a product into slices, a batched product, and adds the slices up.

    ```mlir
    %c = graph.matmul %a, %b : (tensor<64x4096xf32>, tensor<4096x64xf32>) -> tensor<64x64xf32>
    ```
    becomes, for four slices,
    ```mlir
    %0 = graph.reshape %a {shape = array<i64: 64, 4, 1024>} : ...
    %1 = graph.transpose %0 {perm = array<i64: 1, 0, 2>} : ...
    %2 = graph.reshape %b {shape = array<i64: 4, 1024, 64>} : ...
    %3 = graph.matmul %1, %2 : (tensor<4x64x1024xf32>, tensor<4x1024x64xf32>) -> tensor<4x64x64xf32>
    %c = graph.reduction "add" %3 {dims = array<i64: 0>, keep = 0 : i64} : ... -> tensor<64x64xf32>
    ```
    Reshapes and transposes only move indices and become prologues; epilogues follow the sum. Up to eight slices are
    added elementwise, as operands of one another, and the sum may itself become a prologue. Where no slicing divides
    the terms, both operands are padded with zeros, which becomes a predicate of the loads.

    A product is split if its 64 x 64 tiles give at most half of the multiprocessors a block, into as many slices as
    give every one a block, with at least 128 terms each. Only f32: partial sums of shorter floats would be rounded.
    Source: NVIDIA, CUTLASS documentation, "Efficient GEMM in CUDA", parallelized reductions.
    """

    name = "graph-split-k"
    target: str = "sm_80"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = Target.parse(self.target)
        for product in [inner for inner in op.walk() if isinstance(inner, MatmulOp)]:
            slices = slices_of(product, target)
            if slices > 1:
                split(product, slices)


def slices_of(op: MatmulOp, target: Target) -> int:
    """Into how many slices a product is split; 1 where it is left whole."""
    *batch, m, n = op.shape
    shapes = shape_of(op.a), shape_of(op.b)
    if op.type.get_element_type() != f32 or any(DYNAMIC_INDEX in shape for shape in shapes):
        return 1
    if min(m, n) < SMALLEST or any(shape[:-2] != tuple(batch) for shape in shapes):
        return 1
    blocks = prod(batch) * ceil(m / TILE) * ceil(n / TILE)
    if blocks > target.multiprocessors // 2:
        return 1
    return _number_of_slices(op.reduction_extent, ceil(target.multiprocessors / blocks))


def _number_of_slices(terms: int, wanted: int) -> int:
    """At least `wanted` slices, up to twice as many if they then divide the terms, as long as none is too short."""
    most = terms // TERMS
    even = (s for s in range(wanted, min(2 * wanted, most) + 1) if terms % (s * _GRAIN) == 0)
    return next(even, max(1, min(wanted, most)))


def split(op: MatmulOp, slices: int) -> None:
    """Replaces a product by the sum of the products of `slices` slices of its terms."""
    *batch, m, n = op.shape
    terms = op.reduction_extent
    each = ceil(terms / slices / _GRAIN) * _GRAIN if terms % slices else terms // slices
    slices, rank = ceil(terms / each), len(batch)
    new: list[Operation] = []
    a, b = op.a, op.b
    if slices * each != terms:
        zero = constant_op(np.zeros((), np.float32))
        new += [zero, pad_a := _padded(a, zero.result, -1, slices * each - terms)]
        new += [pad_b := _padded(b, zero.result, -2, slices * each - terms)]
        a, b = pad_a.result, pad_b.result
    left = ReshapeOp(a, [*batch, m, slices, each])
    turned = TransposeOp(left.result, [*range(rank), rank + 1, rank, rank + 2])
    right = ReshapeOp(b, [*batch, slices, each, n])
    product = MatmulOp(turned.result, right.result)
    _replace(op, [*new, left, turned, right, product, *_total(product)])


def _total(product: MatmulOp) -> list[Operation]:
    """The sum of the slices: of a few of them elementwise, so that a normalisation can take it as a prologue."""
    *batch, slices, m, n = product.shape
    rank = len(batch)
    if slices > ELEMENTWISE:
        return [ReductionOp("add", product.result, [rank], keep=False)]
    new: list[Operation] = []
    total: SSAValue | None = None
    for number in range(slices):
        sizes = [*batch, 1, m, n]
        part = SliceOp(product.result, [*(0 for _ in batch), number, 0, 0], sizes, [1] * len(sizes))
        flat = ReshapeOp(part.result, [*batch, m, n])
        new += [part, flat]
        if total is not None:
            new.append(BinaryOp("add", total, flat.result))
        total = new[-1].results[0]
    return new


def _padded(value: SSAValue, zero: SSAValue, dim: int, after: int) -> PadOp:
    rank = len(shape_of(value))
    pads = [0] * (2 * rank)
    pads[2 * rank + dim] = after
    return PadOp("constant", value, zero, pads)


def _replace(old: MatmulOp, new: Sequence[Operation]) -> None:
    for op in new:
        op.location = old.location
        Rewriter.insert_op(op, InsertPoint.before(old))
    new[-1].results[0].name_hint = old.result.name_hint
    Rewriter.replace_op(old, [], [new[-1].results[0]])


__all__ = ["GraphSplitKPass", "slices_of", "split"]
