"""How a definition walks through memory: strides of its reads along its indices."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from math import ceil, prod
from typing import Any, ParamSpec, TypeAlias, TypeVar

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, TensorType
from xdsl.ir import BlockArgument, Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, MatmulOp, ReduceOp
from treadle.dialects.loop.tiles import SECTOR_BYTES, WARP
from treadle.index.algebra import Comparison, divisor_chain, divisors_of, stride_along
from treadle.index.contiguity import in_lanes, moves_as_vectors, widest
from treadle.index.expr import Expr, const, floordiv, mod, var
from treadle.index.reader import IndexReader
from treadle.schedules.kernel_builder import Index

# Analyses that are made once for all candidates of a task, while nobody changes its definitions.

Memory: TypeAlias = dict[tuple[Any, ...], Any]
"""Results by the function and its arguments."""
_P = ParamSpec("_P")
_R = TypeVar("_R")
_MEMORY: ContextVar[Memory | None] = ContextVar("memory", default=None)


@contextmanager
def remembering(memory: Memory) -> Generator[None]:
    """Inside, functions that are `remembered` look in a memory first, and add to it."""
    before = _MEMORY.set(memory)
    try:
        yield
    finally:
        _MEMORY.reset(before)


def remembered(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function of operations and values that do not change while a memory is used, and whose result nobody
    changes."""

    @wraps(function)
    def once(*args: _P.args, **keywords: _P.kwargs) -> _R:
        memory = _MEMORY.get()
        if memory is None:
            return function(*args, **keywords)
        key = function, args, *sorted(keywords.items())
        if key not in memory:
            memory[key] = function(*args, **keywords)
        return memory[key]

    return once


# How a product's operands lie in memory, those that the group computes where they are computed from.


def has_contiguous_rows(anchor: MatmulOp, operand: SSAValue, *, across: bool = False, together: int = 2) -> bool:
    """Whether pairs of an operand's elements along its last axis, or `across` along the one before, lie next to one
    another, or as many as are to lie together: those of a matrix that the group computes, where the matrix that it is
    computed from is read."""
    producer = operand.owner
    if not isinstance(producer, ComputeOp) or producer.parent_op() is not anchor.parent_op():
        return not across
    axis = -2 if across else -1
    reads, along = producer.reads(), producer.body.block.args[axis]
    groups = var("pair", 0, max(producer.shape[axis] - 1, 0) // together)
    accesses = DefinitionAccesses(producer, {along: groups * together + var("within", 0, together - 1)})
    return not reads or any(stride_along(accesses.position(at), "within") == 1 for at in reads)


# Which reads of a definition are consecutive along other dimensions of the result than its last ones.


@dataclass(frozen=True)
class TransposedReads:
    """Reads that advance by one element along the result's dimensions `first` to `last` taken as one, while the result
    advances along the dimensions from `last` on.

    first, last: dimensions of the result, `last` not included
    """

    compute: ComputeOp
    reads: tuple[AtOp, ...]
    first: int
    last: int

    @property
    def group_shape(self) -> tuple[int, ...]:
        return self.compute.shape[self.first : self.last]

    @property
    def suffix_shape(self) -> tuple[int, ...]:
        return self.compute.shape[self.last :]

    @property
    def other_shape(self) -> tuple[int, ...]:
        """The dimensions before the group; every dimension after it is in the suffix."""
        return self.compute.shape[: self.first]

    @property
    def balance(self) -> tuple[int, int]:
        """What a tile is better for: long stretches both ways."""
        return min(self.extent, self.suffix_extent, 32), self.extent

    @property
    def extent(self) -> int:
        return prod(self.group_shape)

    @property
    def suffix_extent(self) -> int:
        return prod(self.suffix_shape)

    def read_width(self, most: int) -> int:
        """How many elements along the operands the transposed reads can take at once, a power of two up to `most`."""
        return widest(most, lambda n: self.extent % n == 0 and self._walks_in_vectors(self.reads, self._group, n))

    def write_width(self, most: int) -> int:
        """How many elements along the result can be written at once, as far as the other reads allow it."""
        others = [at for at in self.compute.reads() if at not in self.reads]
        return widest(most, lambda n: self.suffix_extent % n == 0 and self._walks_in_vectors(others, self._suffix, n))

    def _walks_in_vectors(self, reads: Sequence[AtOp], dims: slice, lanes: int) -> bool:
        accesses = DefinitionAccesses(self.compute, collapsed_in_lanes(self.compute, dims, lanes))
        return moves_as_vectors(map(accesses.position, reads), accesses.conditions(), lanes)

    @property
    def _group(self) -> slice:
        return slice(self.first, self.last)

    @property
    def _suffix(self) -> slice:
        return slice(self.last, None)


@remembered
def transposed_reads(compute: ComputeOp) -> TransposedReads | None:
    """The reads that a kernel along the result would find scattered, with the longest stretch of dimensions along which
    they are consecutive; None where there are none."""
    rank = len(compute.shape)
    if not rank:
        return None
    accesses = DefinitionAccesses(compute)
    reads = [at for at in compute.reads() if at.parent_block() is compute.body.block]
    scattered = [at for at in reads if stride_along(accesses.position(at), _innermost(compute)) not in (0, 1)]
    if not scattered:
        return None
    best: TransposedReads | None = None
    for end in range(1, rank):
        for first in range(end):
            of_group = DefinitionAccesses(compute, collapsed(compute, slice(first, end)))
            found = tuple(at for at in scattered if stride_along(of_group.position(at), INNER) == 1)
            candidate = TransposedReads(compute, found, first, end)
            if found and (best is None or candidate.balance > best.balance):
                best = candidate
    return best


def _innermost(compute: ComputeOp) -> SSAValue:
    """The last dimension of the result that has more than one element."""
    args = compute.body.block.args
    return next((arg for arg, extent in zip(args[::-1], compute.shape[::-1], strict=True) if extent > 1), args[-1])


# Which reads of a reduction slide: neighbours of one output index share all but one element of their windows.

_SLIDE = "slide"
_STEPS = (1, 2, 3, 4)
"""Distances of windows that are looked for; farther apart, windows of the usual sizes do not overlap."""


@dataclass(frozen=True)
class Windows:
    """Windows that slide along one output dimension: element `i` of the dimension reads positions `step * i + k`
    for k in the reduction's dimension `term`.

    dim: of the output; sliding: the reads at those positions; shared: reads that do not depend on i
    """

    compute: ComputeOp
    reduce: ReduceOp
    dim: int
    term: int
    step: int
    sliding: tuple[AtOp, ...]
    shared: tuple[AtOp, ...]

    @property
    def extent(self) -> int:
        """How many windows there are along the dimension."""
        return self.compute.shape[self.dim]

    @property
    def width(self) -> int:
        """Positions of a window."""
        return self.reduce.shape[self.term]

    @remembered
    def is_shared(self, value: SSAValue) -> bool:
        """Whether a value of the definition is the same for all windows and all of their positions."""
        along = {self.compute.body.block.args[self.dim], self.reduce.body.block.args[self.term]}
        return along.isdisjoint(_keys(DefinitionAccesses(self.compute), [value]))


@remembered
def windows_of(compute: ComputeOp, reduce: ReduceOp) -> Windows | None:
    """The windows of a definition along the first of its last dimensions but one that has any; None without any.

    The last dimension is left to neighbouring threads, whose accesses are to be consecutive.
    """
    args, rank = compute.body.block.args, len(compute.shape)
    for dim in range(rank - 2, -1, -1):
        for term, k in enumerate(reduce.body.block.args):
            found = None if compute.shape[dim] == 1 else _along(compute, reduce, args[dim], k)
            if found is not None and reduce.shape[term] > 1:
                step, sliding, shared = found
                return Windows(compute, reduce, dim, term, step, sliding, shared)
    return None


@remembered
def slides_along(compute: ComputeOp, reduce: ReduceOp, dim: int) -> bool:
    """Whether windows slide along a dimension of the output."""
    i = compute.body.block.args[dim]
    return any(_along(compute, reduce, i, k) is not None for k in reduce.body.block.args)


def _along(
    compute: ComputeOp, reduce: ReduceOp, i: BlockArgument, k: BlockArgument
) -> tuple[int, tuple[AtOp, ...], tuple[AtOp, ...]] | None:
    """The step between windows, the reads that slide and those that all windows share; None where others are left."""
    plain = DefinitionAccesses(compute)
    sliding: list[AtOp] = []
    shared: list[AtOp] = []
    steps: set[int] = set()
    for at in [op for op in reduce.body.block.ops if isinstance(op, AtOp)]:
        used = [*at.indices, *([] if at.predicate is None else [at.predicate])]
        if i not in _keys(plain, used):
            shared.append(at)
            continue
        step = _step(compute, used, i, k)
        if step is None:
            return None
        sliding.append(at)
        steps.add(step)
    if len(steps) != 1:
        return None
    return steps.pop(), tuple(sliding), tuple(shared)


def _step(compute: ComputeOp, used: Sequence[SSAValue], i: BlockArgument, k: BlockArgument) -> int | None:
    """s where everything that is used depends on i and k through s * i + k alone."""
    for step in _STEPS:
        position = var(_SLIDE, None, None)
        keys = _keys(DefinitionAccesses(compute, {k: position - var(i, 0, compute.shape[i.index] - 1) * step}), used)
        if i not in keys and _SLIDE in keys:
            return step
    return None


def _keys(accesses: DefinitionAccesses, values: Sequence[SSAValue]) -> set[object]:
    """The variables that indices, and comparisons of indices, are computed from."""
    keys: set[object] = set()
    for value in values:
        op = value.owner
        if isinstance(value.type, IndexType):
            keys |= {v.key for v in accesses.index(value).vars()}
        elif isinstance(op, arith.CmpiOp) and isinstance(op.lhs.type, IndexType):
            keys |= {v.key for comparison in accesses.comparisons(op) for v in comparison.difference.vars()}
        elif isinstance(op, Operation):
            keys |= _keys(accesses, op.operands)
    return keys


# How blocks share out the windows of a CPU kernel: rows of an image first, then its channels.
#
# Products of the same images go through their rows of pixels, too, so that a core finds what it wrote before.

_MOST_ROWS = 16
_LEAST_ROWS = 4
"""Rows of an image that are worth a block's own code; of fewer, blocks have all, and cores different channels."""


@dataclass(frozen=True)
class WindowsSplit:
    """Blocks of a few rows of tiles.

    rows: the output dimension of which a block has a part; order: the other dimensions but that of the tiles, the
    outermost first; extents: of the output, of the tiles' dimension 1, of the last one in vectors
    """

    rows: int
    order: tuple[int, ...]
    extents: tuple[int, ...]

    @property
    def extent(self) -> int:
        """Rows there are for each index of the other dimensions."""
        return self.extents[self.rows]

    def blocks(self, rows: int) -> int:
        """Blocks of so many rows."""
        return ceil(self.extent / rows) * self._others

    @property
    def _others(self) -> int:
        return prod(self.extents[d] for d in self.order if d != self.rows)

    def index(self, block: Index, row: Index, rows: int) -> list[Index]:
        """The output index of a row of a block, of the last dimension in vectors."""
        part = [ceil(self.extent / rows) if d == self.rows else self.extents[d] for d in self.order]
        found = dict(zip(self.order, block.delinearize(part), strict=True))
        found[self.rows] = found[self.rows] * rows + row
        return [found.get(d, row * 0) for d in range(len(self.extents))]

    def default_rows(self, cores: int) -> int:
        """Rows of a block: of those of which each core has as many parts of an image, a sixteenth more or less, the
        most up to 16, or the fewest; all rows, where such parts are too short."""
        sizes = (ceil(self.extent / parts) for parts in range(cores, self.extent // _LEAST_ROWS + 1, cores))
        even = [rows for rows in sizes if self._is_even(rows, cores)]
        return next((rows for rows in even if rows <= _MOST_ROWS), min(even, default=self.extent))

    def _is_even(self, rows: int, cores: int) -> bool:
        parts = ceil(self.extent / rows)
        return parts % cores == 0 and 16 * (rows * parts - self.extent) <= self.extent


@remembered
def windows_split(windows: Windows, lanes: int) -> WindowsSplit:
    """The blocks of some windows, whose elements along the last dimension are vectors."""
    compute, reduce = windows.compute, windows.reduce
    extents = [1 if d == windows.dim else extent for d, extent in enumerate(compute.shape)]
    extents[-1] //= lanes
    others = [d for d in range(len(extents)) if d != windows.dim]
    sliding = _sliding(compute, reduce, others)
    rows = sliding[-1] if sliding else max(others, key=lambda d: (extents[d] > 1, d))
    first = [d for d in others[:1] if d not in sliding]
    rest = [d for d in others if d not in (*first, *sliding)]
    return WindowsSplit(rows, (*first, *sliding, *rest), tuple(extents))


def _sliding(compute: ComputeOp, reduce: ReduceOp, dims: Sequence[int]) -> list[int]:
    return [d for d in dims if compute.shape[d] > 1 and slides_along(compute, reduce, d)]


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


@remembered
def panel_strides(compute: ComputeOp, width: int) -> tuple[int | None, int | None]:
    """How the one read of a matrix `[..., K, N]` that only moves data advances along K, and along N inside a panel
    of `width` columns."""
    reads = compute.reads()
    return (None, None) if len(reads) != 1 or reads[0].predicate is not None else strides_of_reads(compute, width)[0]


@remembered
def strides_of_reads(compute: ComputeOp, width: int) -> Sequence[tuple[int | None, int | None]]:
    """The same of each read of a definition."""
    *_, k, n = compute.body.block.args
    panel = var("panel", 0, None) * width + var("column", 0, width - 1)
    accesses = DefinitionAccesses(compute, {n: panel})
    positions = [accesses.position(at) for at in compute.reads()]
    return [(stride_along(position, k), stride_along(position, "column")) for position in positions]


@remembered
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


@remembered
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


@remembered
def spread(compute: ComputeOp, index: BlockArgument) -> int:
    """How many sectors of 8 elements a warp's worth of consecutive values of an output index touches in the read that
    it scatters most; indices that are no arithmetic count as 0."""
    accesses, most = DefinitionAccesses(compute), 0
    lanes = min(WARP, compute.shape[index.index])
    for position in map(accesses.position, compute.reads()):
        at = dict.fromkeys((v.key for v in position.vars()), 0)
        most = max(most, len({position.evaluate(at | {index: lane}) * 4 // SECTOR_BYTES for lane in range(lanes)}))
    return most


@remembered
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


LEAST_STRIDE = 3
"""Elements from one lane to the next of loads that are transposed (`loop-transpose-loads`): every second element takes
two loads and a shuffle."""


@remembered
def reads_rows(compute: ComputeOp, first: int) -> bool:
    """Whether some read advances by one element along the dimension in front of `first`, and by several along the last
    one: what runs along the last dimension reads columns."""
    if not 0 < first < len(compute.shape):
        return False
    accesses, args = DefinitionAccesses(compute), compute.body.block.args
    for at in compute.reads():
        position = accesses.position(at)
        if stride_along(position, args[first - 1]) == 1 and (stride_along(position, args[-1]) or 0) >= LEAST_STRIDE:
            return True
    return False


@remembered
def collapsible_suffix(compute: ComputeOp) -> int:
    """The first dimension of the longest suffix of the output that every read walks with one stride, at most
    the last dimension alone."""
    rank = len(compute.shape)
    for first in range(rank):
        if None not in strides_of_suffix(compute, first):
            return first
    return max(rank - 1, 0)
