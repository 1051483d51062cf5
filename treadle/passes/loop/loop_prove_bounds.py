"""loop-prove-bounds: every access of every kernel is proved to stay inside its buffer, or says why it cannot be
proved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import MemRefType, ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from treadle.dialects.effects import accesses as effects_of
from treadle.dialects.location import location_of
from treadle.dialects.loop import FuncOp, KernelOp, LaneMaskOp
from treadle.dialects.loop.accesses import Access, accesses, name_of
from treadle.errors import TreadleError
from treadle.index.algebra import Comparison
from treadle.index.expr import Expr, Range, is_inside, var
from treadle.index.reader import Bounds, IndexReader, comparisons_around, comparisons_in
from treadle.passes.loop.kernels import kernels_of

UNPROVED = "unproved"
"""The attribute by which an access gives the reason why its bounds cannot be proved."""


@dataclass(frozen=True)
class LoopProveBoundsPass(ModulePass):
    """Proves that each index of each access lies inside its dimension; changes nothing.

    ```mlir
    %inside = arith.cmpi slt, %i, %c100 : index         // %i in 0 to 127
    %a = loop.load %A[%i] where %inside else %zero : memref<100xf32>
    ```
    is proved, and stays as it is; without the predicate it is rejected: `loop.load reads elements 0 to 127 of %A`.

    What is known: the ranges of blocks, threads and loops, minima and maxima, the branches around an access, its
    predicate or the mask of its lanes. An access whose index is data, which no range bounds, carries the attribute
    `unproved = "the reason"`. TreadleError for any other access that is not proved, and for an operation on buffers
    whose accesses nobody describes.
    """

    name = "loop-prove-bounds"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in kernels_of(op):
            for inner in kernel.body.walk():
                _check_known(inner, kernel)
            for failure in failures(kernel):
                raise failure.error()


def _check_known(op: Operation, kernel: KernelOp | FuncOp) -> None:
    """TreadleError for an operation that accesses buffers, by its effects, in a way that `accesses` does not
    describe."""
    if op.regions or accesses(op) or not any(isinstance(operand.type, MemRefType) for operand in op.operands):
        return
    effects = effects_of(op)
    if effects is None or any(buffer is not None for _, buffer in effects):
        where = location_of(op) or f"@{kernel.sym_name.data}"
        accepted = "an operation that treadle/dialects/loop/accesses.py describes"
        raise TreadleError(f"nothing is known of the elements that {op.name} accesses", where, accepted)


@dataclass(frozen=True)
class Failure:
    """An access that is not proved, in one dimension."""

    kernel: KernelOp | FuncOp
    op: Operation
    access: Access
    dimension: int
    extent: int
    range: Range

    def error(self) -> TreadleError:
        """What the pass raises."""
        low, high = ("unknown" if bound is None else bound for bound in self.range)
        done, buffer = "writes" if self.access.is_store else "reads", name_of(self.access.buffer)
        message = f"{self.op.name} {done} elements {low} to {high} of dimension "
        message += f"{self.dimension} of %{buffer} : {self.access.type}"
        accepted = (
            f'0 to {self.extent - 1}, as far as loops, branches and predicates show, or {UNPROVED} = "the reason"'
        )
        return TreadleError(message, location_of(self.op) or f"@{self.kernel.sym_name.data}", accepted)


def failures(kernel: KernelOp | FuncOp) -> Iterator[Failure]:
    """The accesses of a kernel that are neither proved nor explained."""
    prover = _Prover()
    for op in kernel.body.walk():
        reason = op.attributes.get(UNPROVED)
        if isinstance(reason, StringAttr) and reason.data:
            continue
        for access in accesses(op):
            found = prover.failure(op, access)
            if found is not None:
                yield Failure(kernel, op, access, *found)


class _Prover:
    """Bounds the indices of accesses; shares what is read of a kernel."""

    def __init__(self) -> None:
        self._reader = IndexReader()
        self._bounds = Bounds(self._reader)

    def failure(self, op: Operation, access: Access) -> tuple[int, int, Range] | None:
        """The first dimension in which an access is not proved, its extent, and what is known of the index."""
        comparisons: list[Comparison] | None = None
        lane = var("lane", 0, access.elements - 1)
        for dimension, (index, extent) in enumerate(self._indices(access, lane)):
            inside = (0, extent - 1)
            if is_inside(index.range(), inside):
                continue
            if comparisons is None:
                comparisons = [*comparisons_around(self._reader, op), *self._own(access, lane)]
            known = self._bounds.range(index, comparisons, inside)
            if not is_inside(known, inside):
                return dimension, extent, known
        return None

    def _indices(self, access: Access, lane: Expr) -> list[tuple[Expr, int]]:
        """Each index with the extent of its dimension. The last dimensions are one if a vector is longer than a row."""
        shape = list(access.type.get_shape())
        indices = [self._reader.read(index) for index in access.indices]
        if access.elements == 1:
            return list(zip(indices, shape, strict=True))
        last, extent = indices.pop(), shape.pop()
        while access.stride == 1 and extent < access.elements and shape:
            last, extent = indices.pop() * extent + last, shape.pop() * extent
        return [*zip(indices, shape, strict=True), (last + lane * access.stride, extent)]

    def _own(self, access: Access, lane: Expr) -> Iterator[Comparison]:
        """What an access's own predicate or mask says of the elements that it touches."""
        if access.predicate is not None:
            yield from comparisons_in(self._reader, access.predicate)
        mask = None if access.mask is None else access.mask.owner
        if isinstance(mask, LaneMaskOp):
            yield Comparison("sge", lane - self._reader.read(mask.lo))
            yield from self._below(lane, mask.hi)

    def _below(self, lane: Expr, limit: SSAValue) -> Iterator[Comparison]:
        """`lane < limit`; of a minimum, below either; where it is `select(condition, limit, 0)`, the condition too."""
        op = limit.owner
        if isinstance(op, arith.SelectOp) and self._reader.read(op.rhs) == 0:
            yield from comparisons_in(self._reader, op.cond)
            yield from self._below(lane, op.lhs)
        elif isinstance(op, arith.MinSIOp):
            for operand in op.operands:
                yield from self._below(lane, operand)
        else:
            yield Comparison("slt", lane - self._reader.read(limit))


__all__ = ["UNPROVED", "LoopProveBoundsPass", "failures"]
