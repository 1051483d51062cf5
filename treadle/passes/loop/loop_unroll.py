"""loop-unroll: marks the loops that the target's compiler is to unroll."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, ModuleOp, UnitAttr, VectorType
from xdsl.ir import Block, SSAValue
from xdsl.passes import ModulePass

from treadle.dialects.effects import is_pure
from treadle.dialects.hopper import WgmmaOp
from treadle.dialects.loop import AllocOp, FuncOp, KernelOp, MultiplyTilesOp, Space, SpaceAttr
from treadle.passes.loop.kernels import kernels_of, loops_in, trip_count
from treadle.schedules.work.gpu_work import UNROLLED_ELEMENTS
from treadle.schedules.work.rules import MOST_OF_REGISTERS, MOST_UNROLLED
from treadle.target import Target


@dataclass(frozen=True)
class LoopUnrollPass(ModulePass):
    """Writes `loop.unroll` on loops; the printers turn it into a pragma.

    ```mlir
    %acc = loop.alloc : memref<8x2xf32, #loop.space<register>>
    scf.for %r = %c0 to %c8 step %c1 {
      loop.store %zero, %acc[%r, %v] : memref<8x2xf32, #loop.space<register>>
    }
    ```
    becomes the same with `{loop.unroll}` after the loop.  Two kinds of loops are marked: those of at most
    `register_limit` iterations whose variable reaches an index of a register buffer (which stays in registers only if
    every index is a constant), if the target has enough registers for the buffer, and no matrix unit reads or writes
    it; and innermost loops of at most `small_limit` iterations.  What says how many iterations it wants stays so.
    """

    name = "loop-unroll"
    target: str = "cpu"
    register_limit: int = MOST_OF_REGISTERS
    small_limit: int = MOST_UNROLLED

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = Target.parse(self.target)
        elements = UNROLLED_ELEMENTS if target.is_cuda else target.vector_registers * target.lanes
        for kernel in kernels_of(op):
            self._mark(kernel, elements)

    def _mark(self, kernel: KernelOp | FuncOp, elements: int) -> None:
        indexing = _loops_that_index_registers(kernel.body.block, elements)
        for loop in loops_in(kernel.body.block):
            trips = trip_count(loop)
            if trips is None or isinstance(loop.attributes.get("loop.unroll"), IntegerAttr):
                continue
            if trips <= (self.register_limit if loop in indexing else self._plain_limit(loop)):
                loop.attributes["loop.unroll"] = UnitAttr()

    def _plain_limit(self, loop: scf.ForOp) -> int:
        """The largest trip count at which a loop that indexes no registers is marked."""
        innermost = next(loops_in(loop.body.block), None) is None
        return self.small_limit if innermost else 0


def _loops_that_index_registers(block: Block, elements: int) -> set[scf.ForOp]:
    """The loops from whose variables indices into register buffers of at most `elements` elements are computed."""
    seen: set[SSAValue] = set()
    found: set[scf.ForOp] = set()
    for op in block.walk():
        if not isinstance(op, AllocOp) or not _fits_registers(op, elements) or _is_of_unit(op):
            continue
        for use in op.buffer.uses:
            user = use.operation
            # A product of warpgroups has indices of tiles in shared memory, too.
            for operand in user.acc_indices if isinstance(user, WgmmaOp) else user.operands:
                if isinstance(operand.type, IndexType):
                    _collect_loops(operand, seen, found)
    return found


def _fits_registers(alloc: AllocOp, elements: int) -> bool:
    type = alloc.buffer.type
    if type.memory_space != SpaceAttr(Space.REGISTER):
        return False
    element = type.get_element_type()
    lanes = prod(element.get_shape()) if isinstance(element, VectorType) else 1
    return prod(type.get_shape()) * lanes <= elements


def _is_of_unit(alloc: AllocOp) -> bool:
    """Whether a buffer is an operand of a product on a matrix unit, which is memory."""
    return any(isinstance(use.operation, MultiplyTilesOp) for use in alloc.buffer.uses)


def _collect_loops(index: SSAValue, seen: set[SSAValue], found: set[scf.ForOp]) -> None:
    """Adds the loops whose variables `index` is computed from to `found`."""
    waiting = [index]
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        owner = value.owner
        if not isinstance(owner, Block):
            waiting.extend(owner.operands if is_pure(owner) else ())
            continue
        loop = owner.parent_op()
        if isinstance(loop, scf.ForOp) and value is owner.args[0]:
            found.add(loop)


__all__ = ["LoopUnrollPass"]
