"""How a definition walks through memory: strides of its reads along its indices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerAttr, TensorType
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, ReduceOp
from treadle.dialects.loop.index_expr import Expr, alignment, const, floordiv, mod, split_linear, var

_LANE = "lane"
_WARP, _SECTOR = 32, 8


class IndexMap:
    """Reads the index arithmetic of a definition as expressions of its indices.

    overrides: expressions to use for given values, for example digits of a collapsed index
    """

    def __init__(self, compute: ComputeOp, overrides: dict[SSAValue, Expr] | None = None):
        self._values: dict[SSAValue, Expr] = {}
        self._body = compute.body
        for arg, extent in zip(compute.body.block.args, compute.shape, strict=True):
            self._values[arg] = var(arg, 0, extent - 1)
        for op in compute.body.walk():
            if isinstance(op, ReduceOp):
                for arg, extent in zip(op.body.block.args, op.shape, strict=True):
                    self._values[arg] = var(arg, 0, extent - 1)
        self._values.update(overrides or {})

    def read(self, value: SSAValue) -> Expr:
        """The expression of an index; an opaque variable where it is no arithmetic on indices."""
        known = self._values.get(value)
        if known is None:
            known = self._values[value] = self._arithmetic(value)
        return known

    def _arithmetic(self, value: SSAValue) -> Expr:
        op = value.owner
        if isinstance(op, Block):
            return var(value, 0, None)
        if isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr):
            return const(op.value.value.data)
        if isinstance(op, arith.AddiOp):
            return self.read(op.lhs) + self.read(op.rhs)
        if isinstance(op, arith.SubiOp):
            return self.read(op.lhs) - self.read(op.rhs)
        if isinstance(op, arith.MuliOp):
            return self.read(op.lhs) * self.read(op.rhs)
        if isinstance(op, arith.DivUIOp | arith.RemUIOp):
            divisor = self.read(op.rhs).as_int()
            if divisor:
                return (floordiv if isinstance(op, arith.DivUIOp) else mod)(self.read(op.lhs), divisor)
        return self._unknown(op, value)

    def _unknown(self, op: Operation, value: SSAValue) -> Expr:
        """Some function of the indices that a value is computed from: it advances along none of them by one stride."""
        inside = [i for i in op.operands if i.type == IndexType() or not isinstance(i.owner, Block)]
        total = var(value, None, None)
        for operand in inside:
            total = total + (self.read(operand) if not isinstance(operand.type, TensorType) else 0)
        return floordiv(total, 2) if len(total.vars()) > 1 else total

    def position(self, at: AtOp) -> Expr:
        """The row-major position of a read in its tensor."""
        type = at.source.type
        assert isinstance(type, TensorType)
        shape, position = type.get_shape(), const(0)
        for n, i in enumerate(at.indices):
            position = position + self.read(i) * prod(shape[n + 1 :])
        return position

    def conditions(self) -> list[Expr]:
        """What the comparisons of indices in the definition compare with 0."""
        compares = [op for op in self._body.walk() if isinstance(op, arith.CmpiOp)]
        return [self.read(op.lhs) - self.read(op.rhs) for op in compares if isinstance(op.lhs.type, IndexType)]


def stride_along(position: Expr, key: SSAValue | str) -> int | None:
    """Elements between consecutive values of an index; None if that is not one number."""
    split = split_linear(position, key)
    return None if split is None else split[0].as_int()


INNER = "inner"
"""The key of the variable that dimensions taken as one are digits of."""


def collapsed(compute: ComputeOp, dims: slice, inner: Expr | None = None) -> dict[SSAValue, Expr]:
    """Some consecutive output indices as digits of one expression, by default of the variable INNER."""
    shape = compute.shape[dims]
    inner = var(INNER, 0, max(prod(shape) - 1, 0)) if inner is None else inner
    digits: dict[SSAValue, Expr] = {}
    for n, arg in enumerate(compute.body.block.args[dims]):
        digit = floordiv(inner, prod(shape[n + 1 :]))
        digits[arg] = digit if n == 0 else mod(digit, shape[n])
    return digits


def strides_of_suffix(compute: ComputeOp, first: int) -> list[int | None]:
    """How each read, and each comparison of indices, advances along the collapsed output dimensions from `first` on."""
    index_map = IndexMap(compute, collapsed(compute, slice(first, None)))
    positions = [index_map.position(at) for at in compute.reads()] + index_map.conditions()
    return [stride_along(position, INNER) for position in positions]


def panel_strides(compute: ComputeOp, width: int) -> tuple[int | None, int | None]:
    """How the one read of a matrix `[..., K, N]` that only moves data advances along K, and along N inside a panel
    of `width` columns."""
    *_, k, n = compute.body.block.args
    panel = var("panel", 0, None) * width + var("column", 0, width - 1)
    reads = compute.reads()
    if len(reads) != 1 or reads[0].predicate is not None:
        return None, None
    position = IndexMap(compute, {n: panel}).position(reads[0])
    return stride_along(position, k), stride_along(position, "column")


def spread(compute: ComputeOp, index: BlockArgument) -> int:
    """How many sectors of 8 elements a warp's worth of consecutive values of an output index touches in the read that
    it scatters most; indices that are no arithmetic count as 0."""
    index_map, most = IndexMap(compute), 0
    lanes = min(_WARP, compute.shape[index.index])
    for position in map(index_map.position, compute.reads()):
        at = dict.fromkeys((v.key for v in position.vars()), 0)
        most = max(most, len({position.evaluate(at | {index: lane}) // _SECTOR for lane in range(lanes)}))
    return most


def widest(most: int, allows: Callable[[int], bool]) -> int:
    """The largest power of two up to `most` that is allowed; 1 needs no leave."""
    return next((2**e for e in range(most.bit_length() - 1, 0, -1) if allows(2**e)), 1)


def vector_width(compute: ComputeOp, index: BlockArgument, most: int) -> int:
    """Up to how many consecutive values of an output index, a power of two from a multiple of itself on, every read
    gives consecutive and aligned elements, or one element, under conditions that agree; at most `most`."""
    return collapsed_width(compute, slice(index.index, index.index + 1), most)


def collapsed_width(compute: ComputeOp, dims: slice, most: int) -> int:
    """The same along consecutive output dimensions taken as one."""

    def allows(lanes: int) -> bool:
        index_map = IndexMap(compute, collapsed_in_vectors(compute, dims, lanes))
        positions = [index_map.position(at) for at in compute.reads()]
        return prod(compute.shape[dims]) % lanes == 0 and stays_in_vectors(positions, index_map.conditions(), lanes)

    return widest(most, allows)


def collapsed_in_vectors(compute: ComputeOp, dims: slice, lanes: int) -> dict[SSAValue, Expr]:
    """Consecutive output indices as digits of `lanes` times a vector's number, plus the lane."""
    vectors = -(-prod(compute.shape[dims]) // lanes)
    return collapsed(compute, dims, var("vector", 0, max(vectors - 1, 0)) * lanes + var(_LANE, 0, lanes - 1))


def stays_in_vectors(positions: Iterable[Expr], conditions: Iterable[Expr], lanes: int) -> bool:
    """Whether every position is one, or walks through aligned neighbours, while each condition keeps its sign."""
    for position in positions:
        split = split_linear(position, _LANE)
        step = None if split is None else split[0].as_int()
        if split is None or step not in (0, 1) or (step == 1 and alignment(split[1]) % lanes):
            return False
    return not any(v.key == _LANE for condition in conditions for v in floordiv(condition, lanes).vars())


def collapsible_suffix(compute: ComputeOp) -> int:
    """The first dimension of the longest suffix of the output that every read walks with one stride, at most
    the last dimension alone."""
    rank = len(compute.shape)
    for first in range(rank):
        if None not in strides_of_suffix(compute, first):
            return first
    return max(rank - 1, 0)
