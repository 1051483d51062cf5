"""graph-define: every operator but the matrix product of floats and attention becomes its definition."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from treadle.dialects.graph import (
    AppendOp,
    ComputeOp,
    ConstantOp,
    InlineAttr,
    MatmulOp,
    Operator,
    PackedConvOp,
    PackedMatmulOp,
    WholeOp,
    definition,
)
from treadle.dialects.graph.append import is_in_place
from treadle.dialects.graph.definition import family
from treadle.dialects.graph.dtypes import is_float
from treadle.dialects.scalar import number_op
from treadle.passes.graph.simplify_body import simplify_body


@dataclass(frozen=True)
class GraphDefinePass(ModulePass):
    """Replaces each operator except `graph.matmul` of floats, and of bytes with sums of i32, and `graph.attention` by
    its `graph.compute`.

    ```mlir
    %two = graph.constant #graph.inline<"2.0"> : tensor<f32>
    %y = graph.binary "mul" %x, %two : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
    ```
    becomes
    ```mlir
    %y = graph.compute "mul" (%i, %j) {
      %a = graph.at %x[%i, %j] : tensor<4x8xf32>
      %c = arith.constant 2.0 : f32
      %m = arith.mulf %a, %c : f32
      graph.yield %m : f32
    } : tensor<4x8xf32>
    ```
    Constants of one element are written into the bodies, equal reads are shared, and checks that ranges decide are
    dropped. Products and attention stay operators: templates recognise them by name. Any other product of integers has
    no template of its own, and is scheduled as any other definition. A `graph.append` to a state stays, too: its
    definition would be a copy of the state.
    """

    name = "graph-define"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for operator in [o for o in op.walk() if isinstance(o, Operator) and not _stays_whole(o)]:
            _define(operator)
        for compute in [o for o in op.walk() if isinstance(o, ComputeOp)]:
            embed_constants(compute)
            simplify_body(compute)
        for constant in [o for o in op.walk() if isinstance(o, ConstantOp)]:
            if not constant.result.uses:
                Rewriter.erase_op(constant)


def _stays_whole(operator: Operator) -> bool:
    if isinstance(operator, AppendOp):
        return is_in_place(operator)
    if isinstance(operator, MatmulOp) and operator.sums is not None:
        return True
    is_whole = isinstance(operator, WholeOp) and is_float(operator.type.get_element_type())
    return is_whole or isinstance(operator, PackedConvOp | PackedMatmulOp)


def _define(operator: Operator) -> None:
    compute = definition(operator)
    compute.operators = StringAttr(operator_word(operator))
    compute.result.name_hint = operator.result.name_hint
    Rewriter.replace_op(operator, compute)


def operator_word(operator: Operation) -> str:
    """What an operator is called in labels: `add` for `graph.binary "add"`, `pool_max` for `graph.pool
    "max"`.
    """
    own = family(operator)
    kind = operator.properties.get("kind")
    if not isinstance(kind, StringAttr):
        return own
    return kind.data if own in ("unary", "binary") else f"{own}_{kind.data}"


def embed_constants(compute: ComputeOp) -> None:
    """Writes constants of one element into the body that reads them."""
    for at in compute.reads():
        value = _scalar(at.source)
        block = at.parent_block()
        if value is None or block is None:
            continue
        scalar: Operation = number_op(value, at.result.type)
        block.insert_op_before(scalar, at)
        if at.predicate is not None and at.otherwise is not None:
            scalar = arith.SelectOp(at.predicate, scalar.results[0], at.otherwise)
            block.insert_op_before(scalar, at)
        scalar.location = at.location
        at.result.replace_all_uses_with(scalar.results[0])
        Rewriter.erase_op(at)


def _scalar(tensor: SSAValue) -> float | None:
    """The value of a constant of one element that is written in the IR."""
    constant = tensor.owner
    if not isinstance(constant, ConstantOp) or not isinstance(constant.value, InlineAttr):
        return None
    if constant.type.element_count() != 1:
        return None
    return constant.value.array(constant.type).reshape(())[()].item()
