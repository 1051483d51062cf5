"""How large definitions are, and how large merging may make them.

Each scalar operation of a definition is one unit; a division, a root or an exponential is several, and so is a read
under a predicate. So the size stands for the cost of an element, and roughly for the amount of code.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Operation

from treadle.dialects.graph import AtOp, ComputeOp, YieldOp
from treadle.dialects.scalar import FUNCTION_OF

MOST_WORK = 512
"""Units up to which definitions are merged, in one definition and in one kernel.

Computing a definition of 512 units takes longer than moving its element (some ten units a byte on a CPU, six on a GPU),
so that one more kernel costs little; and compilers need more than linear time for larger ones: gcc 12 takes 4.2 ms a
node for a chain of 128 nodes (a quarter of them tanh: 900 units), 5.4 for 256, 9 for 500, and 18 for 1000.
Without a bound a chain of 4000 nodes is one function.
"""

_DIVISION = 10
"""Simple operations that cost as much as a division, roughly; costs of functions are in
treadle/dialects/scalar.py."""
_GUARDED = 4
"""Simple operations of a predicated read: its address, a mask, a branch. A concatenation has one for each part."""


def work(compute: ComputeOp) -> int:
    """Scalar operations of one element; of its index arithmetic only what reads under a predicate need."""
    return sum(map(_operations, compute.body.walk()))


def size(compute: ComputeOp) -> int:
    """`work`, and one for each read and for the store."""
    return 1 + sum(isinstance(op, AtOp) + _operations(op) for op in compute.body.walk())


def _operations(op: Operation) -> int:
    if isinstance(op, AtOp):
        return 0 if op.predicate is None else _GUARDED
    if isinstance(op, YieldOp | arith.ConstantOp) or isinstance(op.results[0].type, IndexType):
        return 0
    if isinstance(op, arith.DivfOp):
        return _DIVISION
    function = FUNCTION_OF.get(type(op))
    return 1 if function is None else function.cost


def is_too_large(size: int) -> bool:
    """Whether a definition or a kernel of this size is too large to be made by merging."""
    return size > MOST_WORK


__all__ = ["is_too_large", "size", "work"]
