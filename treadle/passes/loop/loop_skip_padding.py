"""loop-skip-padding: tiles of which nobody needs an element are not computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph.extents import Extents, enclosing_function, extents_of
from treadle.dialects.loop import AllocOp, KernelOp
from treadle.index.algebra import always_less
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Div, Expr, Var, floordiv, var
from treadle.index.reader import IndexReader
from treadle.passes.loop.inline_body import KernelArguments
from treadle.passes.loop.loop_iterations import Iterations
from treadle.passes.loop.required_levels import Condition, Levels, RequiredLevel, read_extent


@dataclass(frozen=True)
class LoopSkipPaddingPass(ModulePass):
    """Skips blocks of kernels and iterations of their loops that store nothing that is required.

    ```mlir
    %y = loop.kernel @k ins(...) outs(%C : tensor<8x512x64xf32>) requires [#graph.required<d0 < 0, d1 < 1>]
        grid(%block in 8) threads(%thread in 1) {
      scf.for %m = %c0 to %c512 step %c8 {
        ... loop.store %v, %C[%block, %m + %r, %n] ...
      }
    }
    ```
    becomes
    ```mlir
    %y = loop.kernel @k ins(..., %batch_1 = %batch : tensor<i64>, %seq_1 = %seq : tensor<i64>) outs(...) ... {
      %b = loop.load %batch_1[] ... %s = loop.load %seq_1[] ...  // clamped to 0..8 and 0..512
      %runs = arith.cmpi slt, %block, %b : index
      scf.if %runs {
        %end = arith.minsi %c512, %s : index
        scf.for %m = %c0 to %end step %c8 {
          ...
        }
      }
    }
    ```
    What is tested is the least value, over everything inside, of the expression that a required region compares: tiles
    at the border are computed whole, and loops inside them stay as they are, but for those that store the sums of a
    matrix unit. Where it grows with a loop, the loop ends earlier; else the body gets a branch. All threads of a block
    take it, or none. Of a kernel that computes everything the required regions are dropped. Source of the idea:
    DietCode (MLSys 2022), section 4.2, "local padding".
    """

    name = "loop-skip-padding"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in [inner for inner in op.walk() if isinstance(inner, KernelOp)]:
            if kernel.required_regions is None:
                continue
            main = enclosing_function(kernel)
            extents: Extents = {} if main is None else extents_of(main)
            levels = Levels(kernel, extents).levels()
            if any(level.conditions for level in levels):
                _Trimming(kernel, extents).trim(levels)
            else:
                kernel.required_regions = None


class _Trimming:
    """A kernel while it gets branches and ends of loops."""

    def __init__(self, kernel: KernelOp, extents: Extents):
        self._kernel = kernel
        self._block = kernel.body.block
        self._arguments = KernelArguments(kernel)
        self._tensors = {number: tensor for tensor, number in extents.items()}
        self._values: dict[int, Expr] = {}
        self._iterations = Iterations(kernel)
        self._reader = IndexReader()

    def trim(self, levels: Sequence[RequiredLevel]) -> None:
        """Puts a kernel that has the extents that it needs as inputs in place of the old one."""
        bounds: dict[int, int] = {}
        for condition in (condition for level in levels for condition in level.conditions):
            bounds[condition.extent] = max(condition.bound, bounds.get(condition.extent, 0))
        read = [op for number, bound in bounds.items() for op in self._read(number, bound)]
        # What is inside first: a branch around the kernel's body takes the rest with it.
        for level in reversed(levels):
            self._trim(level)
        first = self._block.first_op
        assert first is not None
        Rewriter.insert_op(read, InsertPoint.before(first))
        self._arguments.rebuild()

    def _read(self, number: int, bound: int) -> list[Operation]:
        """Operations that read an extent, no further from the indices that are compared with it than it matters."""
        self._values[number], operations = read_extent(self._arguments.buffer_of(self._tensors[number]), bound)
        return operations

    def _trim(self, level: RequiredLevel) -> None:
        remaining = list(level.conditions)
        if level.loop is not None:
            remaining = [condition for condition in remaining if not self._ends_earlier(level.loop, condition)]
        if remaining:
            self._branch(level, remaining)

    def _ends_earlier(self, loop: scf.ForOp, condition: Condition) -> bool:
        """Whether a condition holds just for the first iterations; then the loop ends after them."""
        side, limit = self._compared(condition)
        end = self._iterations.end(loop, side, limit)
        if end is None:
            return False
        point = InsertPoint.before(loop)
        earlier = IndexEmitter(point, location=loop.location).emit(end)
        if always_less(end - 1, self._reader.read(loop.ub)) is not True:
            least = arith.MinSIOp(loop.ub, earlier)
            least.location = loop.location
            Rewriter.insert_op(least, point)
            earlier = least.result
        loop.operands[1] = earlier
        return True

    def _compared(self, condition: Condition) -> tuple[Expr, Expr]:
        return condition.sides(self._values[condition.extent])

    def _first_blocks(self, sides: tuple[Expr, Expr]) -> tuple[Expr, Expr]:
        """Where a condition holds for the first blocks of a kernel of single threads, `number of the block < limit`, of
        which loop-to-c deals all workers as many."""
        side, limit = sides
        number = self._reader.read(self._kernel.block_id)
        while self._kernel.threads.value.data == 1 and side != number and len(side.terms) == 1:
            (monomial, k), *_ = side.terms
            atom = monomial[0]
            if k < 1 or len(monomial) > 1 or not isinstance(atom, Var | Div):
                break
            limit = floordiv(limit - side.constant + (k - 1), k)
            side = var(atom.key, *atom.range) if isinstance(atom, Var) else atom.arg
            limit = limit * atom.divisor if isinstance(atom, Div) else limit
            if isinstance(atom, Var):
                break
        return (side, limit) if side == number else sides

    def _branch(self, level: RequiredLevel, conditions: Sequence[Condition]) -> None:
        """Moves what is in a block, but its buffers, into a branch."""
        moved = [op for op in level.block.ops if not isinstance(op, AllocOp | scf.YieldOp)]
        location = moved[0].location
        last = level.block.last_op
        point = InsertPoint.before(last) if isinstance(last, scf.YieldOp) else InsertPoint.at_end(level.block)
        emitter = IndexEmitter(point, location=location)
        runs: SSAValue | None = None
        for side, limit in map(self._first_blocks, map(self._compared, conditions)):
            test = arith.CmpiOp(emitter.emit(self._iterations.in_values(side)), emitter.emit(limit), "slt")
            added: list[Operation] = [test]
            if runs is not None:
                added.append(arith.AndIOp(runs, test.result))
            for op in added:
                op.location = location
                Rewriter.insert_op(op, point)
            runs = added[-1].results[0]
        assert runs is not None
        end = scf.YieldOp()
        inside = Block([end])
        branch = scf.IfOp(runs, [], [inside])
        branch.location = end.location = location
        Rewriter.insert_op(branch, point)
        for op in moved:
            op.detach()
            inside.insert_op_before(op, end)


__all__ = ["LoopSkipPaddingPass"]
