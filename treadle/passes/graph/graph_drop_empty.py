"""graph-drop-empty: tensors without elements are neither computed nor read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import AtOp, ComputeOp, ConstantOp, Operator, ReduceOp, definition
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.dialects.graph.reduction import identity
from treadle.dialects.location import location_of
from treadle.dialects.scalar import number_op
from treadle.errors import TreadleError
from treadle.passes.graph.rewriting import constant_op
from treadle.passes.graph.simplify_body import simplify_body


@dataclass(frozen=True)
class GraphDropEmptyPass(ModulePass):
    """Replaces a tensor without elements by a constant, and a reduction over none by its identity.

    ```mlir
    %c = graph.matmul %a, %b : (tensor<3x0xf32>, tensor<0x5xf32>) -> tensor<3x5xf32>
    %r = graph.unary "relu" %a : (tensor<3x0xf32>) -> tensor<3x0xf32>
    ```
    becomes
    ```mlir
    %c = graph.compute (%i, %j) {
      %zero = arith.constant 0.0 : f32
      graph.yield %zero : f32
    } : tensor<3x5xf32>
    %r = graph.constant #graph.inline<""> : tensor<3x0xf32>
    ```
    Afterwards only `graph.constant` and the function's arguments are empty, and only `func.return` uses them: no later
    pass, template or launch meets an extent of 0. Rejected: a definition that reads an element of an empty tensor.
    """

    name = "graph-drop-empty"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for inner in [o for o in op.walk() if isinstance(o, Operator | ComputeOp)]:
            _drop(inner)
        for constant in [o for o in op.walk() if isinstance(o, ConstantOp)]:
            if is_empty(constant.result) and not constant.result.uses:
                Rewriter.erase_op(constant)


def is_empty(value: SSAValue) -> bool:
    """Whether a value is a tensor without elements."""
    return isinstance(value.type, TensorType) and 0 in value.type.get_shape()


def reads_nothing(op: Operation) -> bool:
    """Whether an operation, or one inside it, reads an empty tensor or folds an empty range."""
    return any(
        any(map(is_empty, inner.operands)) or (isinstance(inner, ReduceOp) and 0 in inner.shape) for inner in op.walk()
    )


def _drop(op: Operator | ComputeOp) -> None:
    if is_empty(op.result):
        _replace(op, constant_op(np.empty(op.shape, numpy_dtype(op.type.get_element_type()))))
        return
    if not reads_nothing(op):
        return
    compute = op if isinstance(op, ComputeOp) else definition(op)
    for reduce in [o for o in compute.body.walk() if isinstance(o, ReduceOp) and 0 in o.shape]:
        _replace(reduce, number_op(identity(reduce.kind.data, reduce.result.type), reduce.result.type))
    for at in [at for at in compute.reads() if is_empty(at.source)]:
        _skip(at, op)
    simplify_body(compute)
    if compute is not op:
        _replace(op, compute)


def _skip(at: AtOp, reader: Operation) -> None:
    """The predicate of a read that can only be outside is false."""
    if at.otherwise is None:
        raise TreadleError(f"an element of {at.source.type} is read", location_of(reader), "a tensor with elements")
    at.result.replace_all_uses_with(at.otherwise)
    Rewriter.erase_op(at)


def _replace(old: Operation, new: Operation) -> None:
    new.location = old.location
    new.results[0].name_hint = old.results[0].name_hint
    Rewriter.insert_op(new, InsertPoint.before(old))
    Rewriter.replace_op(old, [], new.results)
