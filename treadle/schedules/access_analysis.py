"""How a definition walks through memory: strides of its reads along its indices."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, TensorType
from xdsl.ir import BlockArgument, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, ReduceOp
from treadle.dialects.loop.tiles import WARP
from treadle.index.algebra import Comparison, divisor_chain, divisors_of, stride_along
from treadle.index.contiguity import in_lanes, moves_as_vectors, widest
from treadle.index.expr import Expr, const, floordiv, mod, var
from treadle.index.reader import IndexReader

_SECTOR = 8


class DefinitionAccesses:
    """Where a definition reads, as expressions of its indices.

    known: expressions to use for given values, for example digits of a collapsed index
    """

    def __init__(self, compute: ComputeOp, known: Mapping[SSAValue, Expr] | None = None):
        self._body = compute.body
        indices: dict[SSAValue, Expr] = {}
        for op in (compute, *(op for op in compute.body.walk() if isinstance(op, ReduceOp))):
            for arg, extent in zip(op.body.block.args, op.shape, strict=True):
                indices[arg] = var(arg, 0, extent - 1)
        self._reader = IndexReader({**indices, **(known or {})}, functions=True)

    def index(self, value: SSAValue) -> Expr:
        """The expression of one index."""
        return self._reader.read(value)

    def position(self, at: AtOp) -> Expr:
        """The row-major position of a read in its tensor."""
        type = at.source.type
        assert isinstance(type, TensorType)
        shape, position = type.get_shape(), const(0)
        for n, i in enumerate(at.indices):
            position = position + self.index(i) * prod(shape[n + 1 :])
        return position

    def comparisons(self, op: arith.CmpiOp) -> tuple[Comparison, ...]:
        """What a comparison of indices asks; of an unsigned one whether its sides are equal, which is as hard."""
        found = self._reader.comparisons(op)
        return (Comparison("eq", self.index(op.lhs) - self.index(op.rhs)),) if found is None else found

    def conditions(self) -> list[Comparison]:
        """The comparisons of indices in the definition."""
        compares = [op for op in self._body.walk() if isinstance(op, arith.CmpiOp)]
        return [c for op in compares if isinstance(op.lhs.type, IndexType) for c in self.comparisons(op)]


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
    accesses = DefinitionAccesses(compute, collapsed(compute, slice(first, None)))
    positions = [*map(accesses.position, compute.reads()), *(c.difference for c in accesses.conditions())]
    return [stride_along(position, INNER) for position in positions]


def panel_strides(compute: ComputeOp, width: int) -> tuple[int | None, int | None]:
    """How the one read of a matrix `[..., K, N]` that only moves data advances along K, and along N inside a panel
    of `width` columns."""
    *_, k, n = compute.body.block.args
    panel = var("panel", 0, None) * width + var("column", 0, width - 1)
    reads = compute.reads()
    if len(reads) != 1 or reads[0].predicate is not None:
        return None, None
    position = DefinitionAccesses(compute, {n: panel}).position(reads[0])
    return stride_along(position, k), stride_along(position, "column")


def reduction_digits(compute: ComputeOp) -> list[int]:
    """The extents of the digits, the lowest first, of which the reads of a matrix `[..., M, K]` take K's index, such as
    the channels and taps of a convolution; the last one is what is left of K."""
    *_, k = compute.body.block.args
    accesses = DefinitionAccesses(compute)
    divisors = set[int]()
    for at in compute.reads():
        divisors.update(divisors_of([accesses.position(at)]).get(k, ()))
    ends = [end for end in divisor_chain(sorted(divisors)) if end < compute.shape[-1]]
    return [end // before for before, end in zip([1, *ends], [*ends, compute.shape[-1]], strict=True)]


def panel_width(compute: ComputeOp) -> int | None:
    """Columns of the panels `[..., ceil(N / width), K, width]` that a definition reads as matrices `[..., K, N]`; None
    for one that reads no panels."""
    if len(compute.shape) < 2 or len(reads := compute.reads()) != 1:
        return None
    type, (*batch, rows, columns) = reads[0].source.type, compute.shape
    assert isinstance(type, TensorType)
    width = type.get_shape()[-1] if type.get_num_dims() else 0
    if width == 0 or type.get_shape() != (*batch, ceil(columns / width), rows, width):
        return None
    return width if panel_strides(compute, width) == (width, 1) else None


def spread(compute: ComputeOp, index: BlockArgument) -> int:
    """How many sectors of 8 elements a warp's worth of consecutive values of an output index touches in the read that
    it scatters most; indices that are no arithmetic count as 0."""
    accesses, most = DefinitionAccesses(compute), 0
    lanes = min(WARP, compute.shape[index.index])
    for position in map(accesses.position, compute.reads()):
        at = dict.fromkeys((v.key for v in position.vars()), 0)
        most = max(most, len({position.evaluate(at | {index: lane}) // _SECTOR for lane in range(lanes)}))
    return most


def vector_width(compute: ComputeOp, index: BlockArgument, most: int) -> int:
    """Up to how many consecutive values of an output index, a power of two from a multiple of itself on, every read
    gives consecutive and aligned elements, or one element, under conditions that agree; at most `most`."""
    return collapsed_width(compute, slice(index.index, index.index + 1), most)


def collapsed_width(compute: ComputeOp, dims: slice, most: int) -> int:
    """The same along consecutive output dimensions taken as one."""

    def allows(lanes: int) -> bool:
        accesses = DefinitionAccesses(compute, collapsed_in_lanes(compute, dims, lanes))
        positions = [accesses.position(at) for at in compute.reads()]
        return prod(compute.shape[dims]) % lanes == 0 and moves_as_vectors(positions, accesses.conditions(), lanes)

    return widest(most, allows)


def collapsed_in_lanes(compute: ComputeOp, dims: slice, lanes: int) -> dict[SSAValue, Expr]:
    """Consecutive output indices as digits of `lanes` times a vector's number, plus the lane."""
    return collapsed(compute, dims, in_lanes(prod(compute.shape[dims]), lanes))


def collapsible_suffix(compute: ComputeOp) -> int:
    """The first dimension of the longest suffix of the output that every read walks with one stride, at most
    the last dimension alone."""
    rank = len(compute.shape)
    for first in range(rank):
        if None not in strides_of_suffix(compute, first):
            return first
    return max(rank - 1, 0)
