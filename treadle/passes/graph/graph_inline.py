"""graph-inline: injective definitions move into their readers, so that a cluster becomes one expression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import TypeAlias

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, ModuleOp, i8
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from treadle.dialects.graph import AtOp, ComputeOp, PackedMatmulOp, WholeOp, YieldOp
from treadle.dialects.graph.compute import yielded
from treadle.dialects.graph.dtypes import ui8
from treadle.passes.graph.definition_analysis import (
    has_only_users,
    is_bijective_in,
    is_injective,
    is_too_large,
    moves_data,
    narrows_data,
    reads_by_user,
    shape_of,
    size,
    users_of,
    widens_data,
    worth_storing,
)
from treadle.passes.graph.inline_compute import GrowingBodies, reads_of

# Results of products that are quantised: bytes, of which four take the place of one sum.


def makes_bytes(compute: ComputeOp) -> bool:
    """Whether the elements of a definition are floats made bytes."""
    is_rounded = isinstance(yielded(compute.body).owner, arith.FPToUIOp | arith.FPToSIOp)
    return is_rounded and compute.type.get_element_type() in (i8, ui8)


def is_narrow_result(compute: ComputeOp) -> bool:
    """Whether a definition makes bytes of floats that are computed, element by element, from one product's result,
    which nothing else reads."""
    if not makes_bytes(compute):
        return False
    reader = compute
    while True:
        source = _only_large(reader)
        if source is None or not has_only_users(source, (reader,)):
            return False
        if not isinstance(source.owner, ComputeOp):
            return isinstance(source.owner, PackedMatmulOp | WholeOp)
        reader = source.owner


def _only_large(compute: ComputeOp) -> SSAValue | None:
    """The one tensor of as many elements as the result that a definition reads."""
    volume = prod(compute.shape)
    found = [tensor for tensor in compute.tensors() if prod(shape_of(tensor)) == volume]
    return found[0] if len(found) == 1 else None


_Reads: TypeAlias = dict[Operation, list[AtOp]]
"""The reads of one tensor by their tensor-level operation."""

_CHEAP = (
    arith.CmpfOp, arith.CmpiOp, arith.SelectOp, arith.AddfOp, arith.SubfOp, arith.MulfOp, arith.NegfOp,
    arith.AddiOp, arith.SubiOp, arith.MuliOp, arith.AndIOp, arith.OrIOp, arith.XOrIOp, arith.ExtFOp, arith.TruncFOp,
    arith.ExtSIOp, arith.ExtUIOp, arith.TruncIOp, arith.SIToFPOp, arith.UIToFPOp, arith.BitcastOp,
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

    - a compute whose only user is the reader, unless its arithmetic would be repeated (a broadcast) and is more than
      one cheap operation (a comparison of a mask), or would go into a compute that only moves data (which must stay
      cheap, as `graph-fuse` repeats it), or stores the result of a product in bytes where its reader has other
      operands beside it, so that the product would be stored for it, or makes bytes that its reader only widens, or
      rounds what it can be the epilogue of, which stores less then, for a reader that can not, such as a concat, or
      that widens it again for what computes,
    - a compute that only moves data, into each of its injective readers, unless it can be the epilogue of
      what it reads; and one that only widens floats.
    """

    name = "graph-inline"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in [f for f in op.body.block.ops if isinstance(f, FuncOp) and f.body.blocks]:
            _Inliner([c for c in function.body.block.ops if isinstance(c, ComputeOp)]).run()


class _Inliner:
    """Inlines backwards: a producer, itself still unchanged, is inlined into readers that are complete."""

    def __init__(self, computes: Sequence[ComputeOp]):
        self._computes = computes
        self._injective = {compute for compute in computes if is_injective(compute)}
        self._bodies = GrowingBodies()
        self._sizes: dict[ComputeOp, int] = {}
        """Upper bounds of the sizes of bodies; simplifying makes them smaller."""
        self._ends = self._ends_of_trees()

    def _ends_of_trees(self) -> set[ComputeOp]:
        """The definitions that only one other reads, and that do not fit into it together with all that they are
        computed from.

        Such definitions form a tree. Where it is too large for one definition, its largest branches become definitions
        of their own, so that few tensors are stored. If inlining stopped wherever a definition happened to be full, a
        tree would lose all of its branches at one level.
        """
        ends: set[ComputeOp] = set()
        trees: dict[ComputeOp, int] = {}
        for compute in self._computes:
            trees[compute] = size(compute)
            owners = [t.owner for t in compute.tensors() if has_only_users(t, (compute,))]
            branches = [b for b in owners if isinstance(b, ComputeOp) and b in self._injective]
            for branch in sorted(branches, key=trees.__getitem__):
                grown = trees[compute] + trees[branch] - 2
                if trees[branch] > 2 and is_too_large(grown):
                    ends.add(branch)
                else:
                    trees[compute] = grown
        return ends

    def run(self) -> None:
        """Inlines what may be inlined, and erases what is no longer read."""
        for producer in reversed(self._computes):
            if producer in self._injective:
                self._inline_into_readers(producer)
        self._bodies.simplify_all()

    def _inline_into_readers(self, producer: ComputeOp) -> None:
        reads = reads_by_user(producer.result)
        if widens_data(producer):
            pass
        elif moves_data(producer):
            reads = {} if len(reads) > 1 and _is_epilogue(producer) else reads
        elif len(reads) != 1 or producer in self._ends or not self._worth_inlining(producer, reads):
            return
        for reader in list(reads):
            if isinstance(reader, ComputeOp) and reader in self._injective:
                self._inline(producer, reader, reads)
        if reads and not producer.result.uses:
            Rewriter.erase_op(producer)

    def _worth_inlining(self, producer: ComputeOp, reads: _Reads) -> bool:
        reader = next(iter(reads))
        if not isinstance(reader, ComputeOp) or reader not in self._injective or moves_data(reader):
            return False
        if makes_bytes(producer) and widens_data(reader):
            return False
        if is_narrow_result(producer) and len(reader.tensors()) > 1:
            return False
        if narrows_data(producer) and _stays_narrow(producer, reader):
            return False
        return self._times(producer, reader, reads) <= 1 or _is_cheap(producer)

    def _inline(self, producer: ComputeOp, reader: ComputeOp, reads: _Reads) -> None:
        if worth_storing(producer, self._times(producer, reader, reads)):
            return
        if not self._has_room(producer, reader, reads):
            return
        self._bodies.inline(producer, reader, reads[reader])
        read = yielded(reader.body).owner
        if isinstance(read, AtOp) and not (read.otherwise and isinstance(read.otherwise.owner, AtOp)):
            self._simplify(reader)  # a body that only moves data is recognised once it is simplified; a concat is none

    def _times(self, producer: ComputeOp, reader: ComputeOp, reads: _Reads) -> Fraction:
        """How often an element of the producer is read on average."""
        volume = prod(producer.shape)
        # Simplifying joins equal reads, of which one has none.
        may_be_fewer = len(reads[reader]) > 1 and len(reads[reader]) * prod(reader.shape) > volume
        if may_be_fewer and self._simplify(reader):
            reads[reader] = reads_of(producer, reader)
        return Fraction(len(reads[reader]) * prod(reader.shape), volume) if volume else Fraction(0)

    def _has_room(self, producer: ComputeOp, reader: ComputeOp, reads: _Reads) -> bool:
        """Whether the reader stays small enough with the producer inlined; if so, its recorded size grows."""
        each = size(producer) - 2  # less the store, and the read that it replaces
        if reader not in self._sizes:
            self._sizes[reader] = size(reader)
        grown = self._sizes[reader] + len(reads[reader]) * each
        if each > 0 and is_too_large(grown) and self._simplify(reader):
            reads[reader] = reads_of(producer, reader)
            grown = self._sizes[reader] + len(reads[reader]) * each
        if each > 0 and is_too_large(grown):
            return False
        self._sizes[reader] = grown
        return True

    def _simplify(self, reader: ComputeOp) -> bool:
        """Simplifies a body that has grown; True if it had, since its reads are then other operations."""
        if not self._bodies.simplify(reader):
            return False
        self._sizes[reader] = size(reader)
        return True


def _is_cheap(producer: ComputeOp) -> bool:
    """Whether an element costs hardly more than a read: one read and one simple operation."""
    work = [
        op
        for op in producer.body.walk()
        if not isinstance(op, AtOp | YieldOp | arith.ConstantOp) and not isinstance(op.results[0].type, IndexType)
    ]
    return len(producer.reads()) == 1 and len(work) <= 1 and all(isinstance(op, _CHEAP) for op in work)


def _stays_narrow(producer: ComputeOp, reader: ComputeOp) -> bool:
    """Whether what rounds is to be stored: its reader only widens it, as a prologue of what computes, or cannot be the
    epilogue that it can be."""
    if widens_data(reader):
        return all(isinstance(user, ComputeOp | WholeOp) for user in users_of(reader.result))
    if not _is_epilogue(producer) or is_bijective_in(reader, producer.result):
        return False
    return _ends_a_kernel(producer)


def _ends_a_kernel(compute: ComputeOp) -> bool:
    """Whether something other than elementwise definitions, such as a product, leads to a definition by tensors that
    nothing else reads: its kernel stores what the definition rounds."""
    volume = prod(compute.shape)
    for tensor in compute.tensors():
        owner = tensor.owner
        if prod(shape_of(tensor)) != volume or not has_only_users(tensor, (compute,)):
            continue
        if isinstance(owner, WholeOp | PackedMatmulOp):
            return True
        if isinstance(owner, ComputeOp) and (not is_injective(owner) or _ends_a_kernel(owner)):
            return True
    return False


def _is_epilogue(mover: ComputeOp) -> bool:
    """Whether a mover is the only reader of a computed tensor that would be stored otherwise."""
    source = mover.tensors()[0]
    producer = source.owner
    if isinstance(producer, ComputeOp) and moves_data(producer):
        return False
    if not isinstance(producer, ComputeOp | WholeOp) or not has_only_users(source, (mover,)):
        return False
    return is_bijective_in(mover, source)
