"""graph-select-branches: both branches are computed, where a program cannot choose among launches."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import IfOp, LoopOp, WhereOp
from treadle.dialects.graph.control import called, called_names
from treadle.dialects.location import location_of
from treadle.errors import TreadleError


@dataclass(frozen=True)
class GraphSelectBranchesPass(ModulePass):
    """Puts the operators of both branches in the place of `graph.if`; each element is chosen.

    ```mlir
    %y = graph.if %c @then @else (%x) : (tensor<i1>, tensor<4xf32>) -> tensor<4xf32>
    ```
    becomes, where `@then` is `tanh` and `@else` is `exp`,
    ```mlir
    %a = graph.unary "tanh" %x : (tensor<4xf32>) -> tensor<4xf32>
    %b = graph.unary "exp" %x : (tensor<4xf32>) -> tensor<4xf32>
    %y = graph.where %c, %a, %b : (tensor<i1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    ```
    For a GPU, whose launcher decides before the first launch which kernels run. Functions that nothing calls any more
    are dropped. Rejected: a loop, which would need to know in between whether to go on.
    """

    name = "graph-select-branches"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """TreadleError for a `graph.loop`."""
        for loop in op.walk():
            if isinstance(loop, LoopOp):
                message = "a loop that is not written out has no form on a cuda target"
                raise TreadleError(message, location_of(loop) or self.name, "the cpu target, or fewer iterations")
        while (branch := next((each for each in op.walk() if isinstance(each, IfOp)), None)) is not None:
            _select(branch)
        names = {name for each in op.walk() for name in called_names(each)}
        for function in list(op.body.block.ops):
            if isinstance(function, FuncOp) and function.sym_name.data != "main" and _is_private(function, names):
                Rewriter.erase_op(function)


def _is_private(function: FuncOp, names: set[str]) -> bool:
    visibility = function.sym_visibility
    return visibility is not None and visibility.data == "private" and function.sym_name.data not in names


def _select(op: IfOp) -> None:
    then, other = (_inlined(op, function) for function in called(op))
    chosen = [WhereOp(op.condition, a, b) for a, b in zip(then, other, strict=True)]
    for each, old in zip(chosen, op.outputs, strict=True):
        each.location = op.location
        each.result.name_hint = old.name_hint
    Rewriter.replace_op(op, chosen, [each.result for each in chosen])


def _inlined(op: IfOp, function: FuncOp) -> list[SSAValue]:
    """A copy of a function's operators in front of an operation; what it gives."""
    block = function.body.block
    values: dict[SSAValue, SSAValue] = dict(zip(block.args, op.read, strict=True))
    for inner in block.ops:
        if isinstance(inner, ReturnOp):
            break
        copy = inner.clone(values)
        copy.location = inner.location
        Rewriter.insert_op(copy, InsertPoint.before(op))
    assert block.last_op is not None
    return [values.get(value, value) for value in block.last_op.operands]


__all__ = ["GraphSelectBranchesPass"]
