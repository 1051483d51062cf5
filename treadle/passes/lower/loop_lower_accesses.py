"""loop-lower-accesses: predicated loads and stores become branches around plain ones."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import memref, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.loop import LoadOp, StoreOp


@dataclass(frozen=True)
class LoopLowerAccessesPass(ModulePass):
    """Turns `loop.load` and `loop.store` into upstream's operations; memory is touched only where the predicate holds.

    ```mlir
    %a = loop.load %A[%i] where %in else %zero : memref<64xf32>
    loop.store %a, %C[%i] where %in : memref<64xf32>
    ```
    becomes
    ```mlir
    %a = scf.if %in -> (f32) {
      %0 = memref.load %A[%i] : memref<64xf32>
      scf.yield %0 : f32
    } else {
      scf.yield %zero : f32
    }
    scf.if %in {
      memref.store %a, %C[%i] : memref<64xf32>
    }
    ```
    """

    name = "loop-lower-accesses"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for access in list(op.walk()):
            if isinstance(access, LoadOp):
                _lower_load(access)
            elif isinstance(access, StoreOp):
                _lower_store(access)


def _lower_load(op: LoadOp) -> None:
    load = memref.LoadOp.get(op.buffer, op.indices)
    new: Operation = load
    if op.predicate is not None and op.otherwise is not None:
        taken, skipped = scf.YieldOp(load.res), scf.YieldOp(op.otherwise)
        taken.location = skipped.location = op.location
        new = scf.IfOp(op.predicate, [load.res.type], [load, taken], [skipped])
    load.location = new.location = op.location
    new.results[0].name_hint = op.result.name_hint
    Rewriter.replace_op(op, new)


def _lower_store(op: StoreOp) -> None:
    store = memref.StoreOp.get(op.value, op.buffer, op.indices)
    new: Operation = store
    if op.predicate is not None:
        end = scf.YieldOp()
        end.location = op.location
        new = scf.IfOp(op.predicate, [], [store, end])
    store.location = new.location = op.location
    Rewriter.insert_op(new, InsertPoint.before(op))
    Rewriter.erase_op(op)
