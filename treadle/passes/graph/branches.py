"""Parallel products, and the operators that follow them, joined as long as the branches are alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import BinaryOp, CastOp, MatmulOp, ReshapeOp, SliceOp, TransposeOp, UnaryOp, WhereOp
from treadle.dialects.graph.definition import int_list
from treadle.dialects.location import fused_location
from treadle.passes.graph.rewriting import Array, constant_of, constant_op, shape_of

_NEUTRAL = {"add": 0, "mul": 1}
"""Operators with a constant that are joined, and what a branch without one gets."""


@dataclass
class _Branches:
    """The ends of the branches, and the joined operations; `dim` is the dimension along which branches are
    concatenated."""

    tails: list[SSAValue]
    made: list[Operation]
    dim: int

    @property
    def joined(self) -> SSAValue:
        return self.made[-1].results[0]

    @property
    def extents(self) -> list[int]:
        return [shape_of(tail)[self.dim] for tail in self.tails]


def merge(members: Sequence[MatmulOp], shared: int) -> bool:
    """Joins products that share operand `shared` (0: left, 1: right); False where that would cost a kernel.

    The members are in the order of their block. The joined operations replace the first.
    """
    first = members[0]
    rank = len(first.shape)
    branches = _Branches([m.result for m in members], [], rank - 1 if shared == 0 else rank - 2)
    constants = [constant_of(m.operands[1 - shared]) for m in members]
    weights = constant_op(np.concatenate([c for c in constants if c is not None], axis=1 - shared))
    operands = (first.a, weights.result) if shared == 0 else (weights.result, first.b)
    branches.made = [weights, MatmulOp(*operands, sums=first.sums, precision=first.precision)]
    while _advance(branches):
        pass
    if not all(_ends_well(tail) for tail in branches.tails):
        for op in reversed(branches.made):
            op.erase()
        return False
    _replace(branches, first)
    return True


def _advance(branches: _Branches) -> bool:
    """Joins the next operators of the branches, if they are alike."""
    users = [_only_user(tail) for tail in branches.tails]
    return any(step(branches, users) for step in (_unary, _constant, _transpose, _reshape))


def _only_user(value: SSAValue) -> Operation | None:
    uses = list(value.uses)
    return uses[0].operation if len(uses) == 1 else None


def _unary(branches: _Branches, users: Sequence[Operation | None]) -> bool:
    """A function, or a conversion, of each element."""
    functions = [op for op in users if isinstance(op, UnaryOp | CastOp)]
    if len(functions) != len(users) or len({(op.name, *op.properties.values()) for op in functions}) != 1:
        return False
    first = functions[0]
    joined = (
        CastOp(branches.joined, first.to) if isinstance(first, CastOp) else UnaryOp(first.kind.data, branches.joined)
    )
    branches.made.append(joined)
    branches.tails = [op.result for op in functions]
    return True


def _constant(branches: _Branches, users: Sequence[Operation | None]) -> bool:
    """A sum or a product with constants that vary along the joined dimension only."""
    kinds = {op.kind.data for op in users if isinstance(op, BinaryOp)} & set(_NEUTRAL)
    for kind in sorted(kinds):
        tails, parts = list(branches.tails), list[Array | None]()
        for n, op in enumerate(users):
            part = _part(op, branches, n, kind)
            if part is not None and op is not None:
                tails[n] = op.results[0]
            parts.append(part)
        if all(part is None for part in parts):
            continue
        _join_constants(branches, kind, parts)
        branches.tails = tails
        return True
    return False


def _part(op: Operation | None, branches: _Branches, n: int, kind: str) -> Array | None:
    """The constant that a branch adds or multiplies, as a vector along the joined dimension."""
    tail, dim = branches.tails[n], branches.dim
    if not isinstance(op, BinaryOp) or op.kind.data != kind or op.shape != shape_of(tail):
        return None
    constant = constant_of(op.rhs if op.lhs is tail else op.lhs)
    if constant is None:
        return None
    shape = [1] * (len(op.shape) - constant.ndim) + list(constant.shape)
    if any(extent != 1 for d, extent in enumerate(shape) if d != dim):
        return None
    return np.broadcast_to(constant.reshape(-1), (op.shape[dim],))


def _join_constants(branches: _Branches, kind: str, parts: Sequence[Array | None]) -> None:
    dtype = next(part.dtype for part in parts if part is not None)
    filled = [
        np.full(extent, _NEUTRAL[kind], dtype) if part is None else part
        for part, extent in zip(parts, branches.extents, strict=True)
    ]
    after = len(shape_of(branches.joined)) - branches.dim - 1
    vector = constant_op(np.concatenate(filled).reshape([-1, *[1] * after]))
    branches.made += [vector, BinaryOp(kind, branches.joined, vector.result)]


def _transpose(branches: _Branches, users: Sequence[Operation | None]) -> bool:
    turns = [op for op in users if isinstance(op, TransposeOp)]
    perms = {int_list(op.properties, "perm") for op in turns}
    if len(turns) != len(users) or len(perms) != 1:
        return False
    perm = perms.pop()
    branches.made.append(TransposeOp(branches.joined, perm))
    branches.dim = perm.index(branches.dim)
    branches.tails = [op.result for op in turns]
    return True


def _reshape(branches: _Branches, users: Sequence[Operation | None]) -> bool:
    """A reshape that leaves the joined dimension whole."""
    reshapes = [op for op in users if isinstance(op, ReshapeOp)]
    if len(reshapes) != len(users):
        return False
    dims = [_result_dims(op, tail, branches.dim) for op, tail in zip(reshapes, branches.tails, strict=True)]
    common = set[int].intersection(*map(set, dims))
    if not common:
        return False
    dim = min(common)
    others = {(*op.shape[:dim], *op.shape[dim + 1 :]) for op in reshapes}
    if len(others) != 1:
        return False
    shape = list(reshapes[0].shape)
    shape[dim] = sum(op.shape[dim] for op in reshapes)
    branches.made.append(ReshapeOp(branches.joined, shape))
    branches.dim, branches.tails = dim, [op.result for op in reshapes]
    return True


def _result_dims(op: ReshapeOp, tail: SSAValue, dim: int) -> list[int]:
    """The dimensions of a reshape's result that are dimension `dim` of its operand."""
    source, shape = shape_of(tail), op.shape
    before = prod(source[:dim])
    return [d for d, extent in enumerate(shape) if extent == source[dim] and prod(shape[:d]) == before]


def _ends_well(tail: SSAValue) -> bool:
    """Whether a slice may replace a branch's end.

    Not where an elementwise operator is all that follows (it would have been an epilogue), nor where the value
    leaves the function (it would need a copy).
    """
    users = [use.operation for use in tail.uses]
    if any(isinstance(op, ReturnOp) for op in users):
        return False
    if len(users) == 1 and isinstance(users[0], UnaryOp | BinaryOp | WhereOp | CastOp):
        return False
    movers = [op for op in users if isinstance(op, ReshapeOp | TransposeOp | SliceOp)]
    if len(users) > 1:
        return all(not isinstance(use.operation, ReturnOp) for op in movers for use in op.result.uses)
    return all(_ends_well(op.result) for op in movers)


def _replace(branches: _Branches, first: MatmulOp) -> None:
    """Inserts the joined operations before the first product, and replaces the branches by slices of them."""
    point = InsertPoint.before(first)
    location = fused_location(tail.owner.location for tail in branches.tails if isinstance(tail.owner, Operation))
    for op in branches.made:
        op.location = location
    Rewriter.insert_op(branches.made, point)
    joined, start = branches.joined, 0
    shape = shape_of(joined)
    for tail, extent in zip(branches.tails, branches.extents, strict=True):
        starts, sizes = [0] * len(shape), list(shape)
        starts[branches.dim], sizes[branches.dim] = start, extent
        slice = SliceOp(joined, starts, sizes, [1] * len(shape))
        slice.location = tail.owner.location if isinstance(tail.owner, Operation) else first.location
        slice.result.name_hint = tail.name_hint
        Rewriter.insert_op(slice, point)
        tail.replace_all_uses_with(slice.result)
        start += extent
    for tail in branches.tails:
        _erase_unused(tail)


def _erase_unused(value: SSAValue) -> None:
    """Erases the operations that only computed an unused value."""
    op = value.owner
    if not isinstance(op, Operation) or any(result.uses for result in op.results):
        return
    operands = list(op.operands)
    Rewriter.erase_op(op)
    for operand in operands:
        _erase_unused(operand)


__all__ = ["merge"]
