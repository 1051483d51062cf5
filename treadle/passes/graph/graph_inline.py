"""graph-inline: injective definitions move into their readers, so that a cluster becomes one expression."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from treadle.dialects.graph import AtOp, ComputeOp, WholeOp, YieldOp
from treadle.passes.graph.inline_compute import inline_compute
from treadle.passes.graph.properties import (
    is_bijective_in,
    is_injective,
    moves_data,
    multiplicity,
    users_of,
    widens_data,
    worth_storing,
)

_CHEAP = (
    arith.CmpfOp, arith.CmpiOp, arith.SelectOp, arith.AddfOp, arith.SubfOp, arith.MulfOp, arith.NegfOp,
    arith.AddiOp, arith.SubiOp, arith.MuliOp, arith.AndIOp, arith.OrIOp, arith.XOrIOp, arith.ExtFOp, arith.TruncFOp,
    arith.ExtSIOp, arith.ExtUIOp, arith.TruncIOp, arith.SIToFPOp, arith.UIToFPOp,
)  # fmt: skip
"""Operations of which one is worth no kernel of its own."""


@dataclass(frozen=True)
class GraphInlinePass(ModulePass):
    """Inlines injective computes into injective computes.

    ```mlir
    %s = graph.compute "sigmoid" (%i) { ... %x[%i] ... } : tensor<8xf32>
    %y = graph.compute "mul" (%i) { ... %x[%i] ... %s[%i] ... } : tensor<8xf32>
    ```
    becomes one compute that reads `%x[%i]` once.  Inlined are

    - a compute whose only user is the reader, unless its arithmetic would be repeated (a broadcast) and is more
      than one cheap operation (a comparison of a mask), or would go into a compute that only moves data (which must
      stay free to be repeated by `graph-fuse`),
    - a compute that only moves data, into each of its injective readers, unless it can be the epilogue of
      what it reads; and one that only widens floats.
    """

    name = "graph-inline"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in [f for f in op.body.block.ops if isinstance(f, FuncOp) and f.body.blocks]:
            for compute in reversed([c for c in function.body.block.ops if isinstance(c, ComputeOp)]):
                _inline_into_readers(compute)


def _inline_into_readers(producer: ComputeOp) -> None:
    if not is_injective(producer):
        return
    readers = users_of(producer.result)
    if widens_data(producer):
        pass
    elif moves_data(producer):
        readers = [] if len(readers) > 1 and _is_epilogue(producer) else readers
    elif len(readers) != 1 or not _worth_inlining(producer, readers[0]):
        return
    for reader in readers:
        if isinstance(reader, ComputeOp) and is_injective(reader) and not _is_worth_storing(producer, reader):
            inline_compute(producer, reader)
    if not producer.result.uses and readers:
        Rewriter.erase_op(producer)


def _worth_inlining(producer: ComputeOp, reader: Operation) -> bool:
    if not isinstance(reader, ComputeOp) or not is_injective(reader) or moves_data(reader):
        return False
    return multiplicity(reader, producer.result) <= 1 or _is_cheap(producer)


def _is_cheap(producer: ComputeOp) -> bool:
    """Whether an element costs hardly more than reading it: one read and one simple operation."""
    work = [
        op
        for op in producer.body.walk()
        if not isinstance(op, AtOp | YieldOp | arith.ConstantOp) and not isinstance(op.results[0].type, IndexType)
    ]
    return len(producer.reads()) == 1 and len(work) <= 1 and all(isinstance(op, _CHEAP) for op in work)


def _is_worth_storing(mover: ComputeOp, reader: ComputeOp) -> bool:
    return worth_storing(mover, multiplicity(reader, mover.result))


def _is_epilogue(mover: ComputeOp) -> bool:
    """Whether a mover is the only reader of a computed tensor that would be stored otherwise."""
    source = mover.tensors()[0]
    producer = source.owner
    if isinstance(producer, ComputeOp) and moves_data(producer):
        return False
    if not isinstance(producer, ComputeOp | WholeOp) or users_of(source) != [mover]:
        return False
    return is_bijective_in(mover, source)
