"""Folds of a warp as rounds of shuffles."""

from __future__ import annotations

from xdsl.ir import Block, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.cuda import ShuffleMode, ShuffleOp
from treadle.dialects.graph.definition import DefinitionBuilder
from treadle.dialects.loop import WarpReduceOp


def lower_warp_reduce(op: WarpReduceOp) -> None:
    """Replaces a fold by one shuffle and one operation a round.

    ```mlir
    %s = loop.warp_reduce add %v over 4 : f32
    ```
    becomes
    ```mlir
    %a = cuda.shuffle xor %v, %c2 : f32
    %b = arith.addf %v, %a : f32
    %c = cuda.shuffle xor %b, %c1 : f32
    %s = arith.addf %b, %c : f32
    ```
    """
    block = Block(arg_types=[op.value.type])
    b = DefinitionBuilder(block)
    value: SSAValue = block.args[0]
    distance = op.lanes // 2
    while distance:
        other = b.insert(ShuffleOp(ShuffleMode.XOR, value, b.constant(distance)))
        value = b.binary(op.kind.data, value, other)
        distance //= 2
    for new in block.ops:
        new.location = op.location
    value.name_hint = op.result.name_hint
    Rewriter.inline_block(block, InsertPoint.before(op), [op.value])
    Rewriter.replace_op(op, [], [value])
