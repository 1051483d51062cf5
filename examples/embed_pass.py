"""Two of Treadle's passes inside another project's xDSL pipeline, between xDSL's own passes.

    python examples/embed_pass.py

A pass of Treadle is an ordinary `ModulePass`, a dialect an ordinary `Dialect`: a project that has its own compiler on
xDSL can describe who does which work with a task mapping, and let Treadle turn it into loops. The same from the shell,
where `xdsl-opt` finds Treadle through its entry point:

    xdsl-opt -p task-lower,canonicalize,loop-hoist-invariants,cse scale.mlir
"""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.arith import Arith
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.scf import Scf
from xdsl.parser import Parser
from xdsl.passes import ModulePass, PassPipeline
from xdsl.transforms.canonicalize import CanonicalizePass
from xdsl.transforms.common_subexpression_elimination import CommonSubexpressionElimination

from treadle.dialects.loop import LOOP
from treadle.dialects.task import Task
from treadle.passes.instruments import ir_text
from treadle.passes.loop.loop_hoist_invariants import LoopHoistInvariantsPass
from treadle.passes.lower.task_lower import TaskLowerPass

SCALE = """
// Each block scales 8 rows of 64; thread t does the two tasks (t / 64, t % 64) and (t / 64 + 4, t % 64).
loop.func @scale(%x: memref<32x64xf32>, %by: memref<32xf32>, %y: memref<32x64xf32>)
    grid(%block in 4) threads(%thread in 256) {
  task.for (%i, %j) in #task.map<repeat(2, 1) * spatial(4, 64)>(%thread) {
    %eight = arith.constant 8 : index
    %first = arith.muli %block, %eight : index
    %row = arith.addi %first, %i : index
    %value = loop.load %x[%row, %j] : memref<32x64xf32>
    %again = arith.muli %block, %eight : index
    %same = arith.addi %again, %i : index
    %factor = loop.load %by[%same] : memref<32xf32>
    %scaled = arith.mulf %value, %factor : f32
    loop.store %scaled, %y[%row, %j] : memref<32x64xf32>
  }
}
"""


def foreign_pipeline() -> PassPipeline:
    """xDSL's passes and Treadle's in one list, with the module printed after each."""
    return PassPipeline(
        (
            TaskLowerPass(),
            CanonicalizePass(),
            LoopHoistInvariantsPass(),
            CommonSubexpressionElimination(),
        ),
        _show,
    )


def parse(text: str) -> ModuleOp:
    """The module of a text that may use task mappings and loops."""
    context = Context()
    for dialect in (Builtin, Arith, Scf, Task, LOOP):
        context.load_dialect(dialect)
    return Parser(context, text).parse_module()


def main() -> None:
    """Prints the module before, between and after the passes."""
    module = parse(SCALE)
    print(f"// as written\n{ir_text(module)}")
    foreign_pipeline().apply(Context(), module)
    module.verify()


def _show(previous: ModulePass | None, module: ModuleOp, following: ModulePass | None) -> None:
    del following
    if previous is not None:
        print(f"// after {previous.name}\n{ir_text(module)}")


if __name__ == "__main__":
    main()
