"""graph-inline-control: branches and loops are written out, where a program cannot choose among launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, cast

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import BinaryOp, ConcatOp, ConstantOp, IfOp, LoopOp, ReshapeOp, WhereOp
from treadle.dialects.graph.constant import constant_attribute
from treadle.dialects.graph.control import COUNTER, ControlOp, called, called_names
from treadle.dialects.graph.dtypes import MAX_WRITTEN_OUT
from treadle.dialects.graph.evaluate import run_control
from treadle.dialects.location import location_of
from treadle.errors import TreadleError


@dataclass(frozen=True)
class GraphInlineControlPass(ModulePass):
    """Puts the operators of both branches in the place of `graph.if`, and chooses each element; those of all iterations
    in the place of `graph.loop`.

    ```mlir
    %y = graph.if %c @then @else (%x) : (tensor<i1>, tensor<4xf32>) -> tensor<4xf32>
    %z = graph.loop @step times 2 carries (%y) reads () : (tensor<4xf32>) -> tensor<4xf32>
    ```
    becomes, where `@then` is `tanh`, `@else` is `exp`, and `@step` is `sin`,
    ```mlir
    %a = graph.unary "tanh" %x : (tensor<4xf32>) -> tensor<4xf32>
    %b = graph.unary "exp" %x : (tensor<4xf32>) -> tensor<4xf32>
    %y = graph.where %c, %a, %b : (tensor<i1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %d = graph.unary "sin" %y : (tensor<4xf32>) -> tensor<4xf32>
    %z = graph.unary "sin" %d : (tensor<4xf32>) -> tensor<4xf32>
    ```
    Beyond a loop's limit, an iteration gives the state as it was. For a GPU, whose launcher decides before the first
    launch which kernels run. Functions that nothing calls any more are dropped. Rejected: a loop that ends by data,
    which would need to know in between whether to go on, and loops of more than 20000 operators together.
    """

    name = "graph-inline-control"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """TreadleError for what is rejected."""
        room = MAX_WRITTEN_OUT
        while (each := next((e for e in op.walk() if isinstance(e, ControlOp)), None)) is not None:
            room -= _size(each)
            if room < 0:
                _refuse(each, f"loops of more than {MAX_WRITTEN_OUT} operators are not written out")
            if isinstance(each, IfOp):
                _select(each)
            else:
                _write_out(each)
        names = {name for each in op.walk() for name in called_names(each)}
        for function in list(op.body.block.ops):
            if isinstance(function, FuncOp) and function.sym_name.data != "main" and _is_private(function, names):
                Rewriter.erase_op(function)


def _size(op: ControlOp) -> int:
    times = op.times.value.data if isinstance(op, LoopOp) and op.times is not None else 1
    return times * sum(len(function.body.block.ops) for function in called(op))


def _is_private(function: FuncOp, names: set[str]) -> bool:
    visibility = function.sym_visibility
    return visibility is not None and visibility.data == "private" and function.sym_name.data not in names


def _select(op: IfOp) -> None:
    then, other = (_inlined(op, function, op.read) for function in called(op))
    chosen = [WhereOp(op.condition, a, b) for a, b in zip(then, other, strict=True)]
    for each, old in zip(chosen, op.outputs, strict=True):
        each.location = op.location
        each.result.name_hint = old.name_hint
    Rewriter.replace_op(op, chosen, [each.result for each in chosen])


def _write_out(op: LoopOp) -> None:
    if op.times is None:
        _refuse(op, "a loop that ends by data has no form on a cuda target")
    times = op.times.value.data

    def inserted(new: Operation) -> SSAValue:
        new.location = op.location
        Rewriter.insert_op(new, InsertPoint.before(op))
        return new.results[0]

    def counter(number: int) -> SSAValue:
        return inserted(ConstantOp(constant_attribute(np.array(number, np.int64)), COUNTER))

    def stacked(rows: Sequence[SSAValue]) -> SSAValue:
        flat = [inserted(ReshapeOp(row, (1, *cast("TensorType[Attribute]", row.type).get_shape()))) for row in rows]
        return flat[0] if len(flat) == 1 else inserted(ConcatOp(flat, 0))

    def iteration(function: FuncOp, given: Sequence[SSAValue]) -> list[SSAValue]:
        """Its results; beyond the limit the state stays as it is."""
        results, states = _inlined(op, function, given), len(op.carried)
        if not op.tests:
            return results
        runs = inserted(BinaryOp("lt", given[0], op.tests[0]))
        kept = [
            inserted(WhereOp(runs, new, old)) for new, old in zip(results[:states], given[1 : 1 + states], strict=True)
        ]
        return [*kept, *results[states:]]

    def number(_: SSAValue) -> int:
        return times

    def blank(type: TensorType) -> NoReturn:
        raise AssertionError(f"all iterations are written out, and a row of {type} is missing")

    values = run_control(op, list(op.operands), iteration, number, counter, stacked, blank)
    Rewriter.replace_op(op, [], values)


def _refuse(op: ControlOp, message: str) -> NoReturn:
    raise TreadleError(message, location_of(op) or op.name, "the cpu target, or fewer iterations")


def _inlined(op: ControlOp, function: FuncOp, given: Sequence[SSAValue]) -> list[SSAValue]:
    """A copy of a function's operators in front of an operation; what it gives."""
    block = function.body.block
    values: dict[SSAValue, SSAValue] = dict(zip(block.args, given, strict=True))
    for inner in block.ops:
        if isinstance(inner, ReturnOp):
            break
        copy = inner.clone(values)
        copy.location = inner.location
        Rewriter.insert_op(copy, InsertPoint.before(op))
    assert block.last_op is not None
    return [values.get(value, value) for value in block.last_op.operands]


__all__ = ["GraphInlineControlPass"]
