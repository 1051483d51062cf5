"""loop-hoist-invariants: what a loop does not change is computed before it."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass

from treadle.dialects.effects import is_pure
from treadle.passes.loop.kernels import erase_dead, kernels_of


@dataclass(frozen=True)
class LoopHoistInvariantsPass(ModulePass):
    """Moves pure operations with operands from outside a loop in front of it, and erases dead ones.

    ```mlir
    scf.for %k = %c0 to %c64 step %c1 {
      %row = arith.divui %b, %c7 : index
      %at = arith.addi %row, %k : index
      "use"(%at) : (index) -> ()
    }
    ```
    becomes
    ```mlir
    %row = arith.divui %b, %c7 : index
    scf.for %k = %c0 to %c64 step %c1 {
      %at = arith.addi %row, %k : index
      "use"(%at) : (index) -> ()
    }
    ```
    Divisions move only where the divisor is a constant other than zero. Operations inside an `scf.if` stay there, so
    that nothing guarded is computed unconditionally. Loads stay.
    """

    name = "loop-hoist-invariants"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in kernels_of(op):
            erase_dead(kernel.body.block)
            _hoist_inside(kernel.body.block)


def _hoist_inside(block: Block) -> None:
    """Hoists out of every loop in a block; inner loops first, so that one walk moves an operation far."""
    for op in list(block.ops):
        for region in op.regions:
            for inner in region.blocks:
                _hoist_inside(inner)
        if isinstance(op, scf.ForOp):
            hoist_out_of(op)


def hoist_out_of(loop: scf.ForOp) -> None:
    """Moves the invariant operations of a loop's own block in front of the loop, in their order."""
    body, outside = loop.body.block, loop.parent
    assert outside is not None, "a loop stands in a block"
    for op in list(body.ops):
        if is_pure(op) and not _depends_on(op, body):
            op.detach()
            outside.insert_op_before(op, loop)


def _depends_on(op: Operation, body: Block) -> bool:
    """Whether an operand is defined in `body`, the operation's block."""
    owners = (operand.owner for operand in op.operands)
    return any(owner is body or (isinstance(owner, Operation) and owner.parent is body) for owner in owners)


__all__ = ["LoopHoistInvariantsPass", "hoist_out_of"]
