"""graph-deduplicate: what is computed twice from the same operands is computed once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import DYNAMIC_INDEX, IntegerType, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from treadle.dialects.graph import AtOp, BinaryOp, CastOp, ComputeOp, ConstantOp, Operator, UnaryOp, WhereOp
from treadle.dialects.graph.compute import yielded
from treadle.dialects.location import fused_location
from treadle.index.algebra import Comparison, truth_of
from treadle.index.expr import Expr, const
from treadle.index.mixed_radix import strides
from treadle.passes.graph.definition_analysis import index_reader, is_injective, shape_of

# Definitions whose result is what they read, laid one after another.


@dataclass(frozen=True)
class _Part:
    """A tensor that is read where all comparisons hold, so many elements before that of the result."""

    source: SSAValue
    offset: int
    where: Sequence[Comparison]


def joined_tensors(compute: ComputeOp) -> dict[SSAValue, int] | None:
    """The offset of each tensor in the result, in elements, if the result is nothing else than all of them; None for
    other definitions, such as a concat of columns."""
    volume = prod(compute.shape)
    if DYNAMIC_INDEX in compute.shape or volume == 0 or not is_injective(compute):
        return None
    parts = _parts(compute)
    if parts is None or len({part.source for part in parts}) != len(parts):
        return None
    sizes = {part.source: prod(shape_of(part.source)) for part in parts}
    end = 0
    for part in sorted(parts, key=lambda part: part.offset):
        if part.offset != end:
            return None
        end += sizes[part.source]
    if end != volume or not _cover(compute, parts):
        return None
    return {part.source: part.offset for part in parts}


def _parts(compute: ComputeOp) -> list[_Part] | None:
    """What the chain of reads takes, the first choice first."""
    reader = index_reader()
    result = _linear([reader.read(arg) for arg in compute.body.block.args], compute.shape)
    parts: list[_Part] = []
    value: SSAValue | None = yielded(compute.body)
    while value is not None and isinstance(value.owner, AtOp):
        at = value.owner
        offset = (result - _linear([reader.read(i) for i in at.indices], shape_of(at.source))).as_int()
        where = [] if at.predicate is None else _comparisons(at.predicate)
        if offset is None or where is None:
            return None
        parts.append(_Part(at.source, offset, where))
        value = at.otherwise
    is_known = value is None or isinstance(value.owner, arith.ConstantOp)
    return parts if is_known and len(parts) > 1 else None


def _comparisons(predicate: SSAValue) -> list[Comparison] | None:
    """A conjunction of comparisons of indices."""
    op = predicate.owner
    if isinstance(op, arith.AndIOp):
        left, right = _comparisons(op.lhs), _comparisons(op.rhs)
        return None if left is None or right is None else [*left, *right]
    found = index_reader().comparisons(op) if isinstance(op, arith.CmpiOp) else None
    return None if found is None else list(found)


def _linear(indices: Sequence[Expr], shape: Sequence[int]) -> Expr:
    return sum((i * stride for i, stride in zip(indices, strides(shape), strict=True)), const(0))


def _cover(compute: ComputeOp, parts: Sequence[_Part]) -> bool:
    """Whether every element is read from some part. Reads are inside their tensors, and parts share no element: so each
    is read from the one that has it."""
    keys: set[Hashable] = {v.key for part in parts for each in part.where for v in each.difference.vars()}
    dims = [d for d, arg in enumerate(compute.body.block.args) if arg in keys]
    if len(keys) > 1 or len(dims) != len(keys):
        return False
    if not dims:
        return any(truth_of(part.where) for part in parts)
    key = compute.body.block.args[dims[0]]

    def holds(part: _Part, value: int) -> bool:
        at = {key: const(value)}
        return truth_of([Comparison(c.kind, c.difference.substitute(at)) for c in part.where]) is True

    return all(any(holds(part, value) for part in parts) for value in range(compute.shape[dims[0]]))


@dataclass(frozen=True)
class GraphDeduplicatePass(ModulePass):
    """Drops an operator (or a constant) that equals an earlier one of the same operands and properties.

    ```mlir
    %a = graph.reshape %x {shape = array<i64: 2, 4>} : (tensor<8xf32>) -> tensor<2x4xf32>
    %b = graph.reshape %x {shape = array<i64: 2, 4>} : (tensor<8xf32>) -> tensor<2x4xf32>
    ```
    becomes `%a` alone. Afterwards readers of equal tensors read one value, by which `graph-merge-matmuls` finds them.

    Elementwise operators stay: each is cheaper inside its reader's kernel than stored for two. What reads equal
    integers is equal all the same, such as the rows of a table at positions that each layer computes anew; and one
    integer is as cheap to store.
    """

    name = "graph-deduplicate"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and function.body.blocks:
                _deduplicate(function.body.block)


_Elementwise: TypeAlias = UnaryOp | BinaryOp | WhereOp | CastOp


def _deduplicate(block: Block) -> None:
    known: dict[Hashable, Operation] = {}
    equal: dict[SSAValue, SSAValue] = {}
    """The first one of equal integers, of those that stay."""
    for op in list(block.ops):
        if not isinstance(op, Operator | ConstantOp):
            continue
        is_integer = isinstance(op.type.get_element_type(), IntegerType)
        if isinstance(op, _Elementwise) and not is_integer:
            continue
        operands = tuple(equal.get(operand, operand) for operand in op.operands)
        first = known.setdefault((op.name, operands, tuple(sorted(op.properties.items())), op.results[0].type), op)
        if first is op:
            continue
        stays = isinstance(op, _Elementwise) or any(operand in equal for operand in op.operands)
        if is_integer and stays and op.type.element_count() > 1:
            equal[op.results[0]] = first.results[0]
            continue
        first.location = fused_location((first.location, op.location))
        Rewriter.replace_op(op, [], [first.results[0]])
    for value in reversed(list(equal)):
        if not value.uses and isinstance(value.owner, Operation):
            Rewriter.erase_op(value.owner)
