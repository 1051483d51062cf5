"""What a definition asks of a schedule: extents, and the reads of its terms as expressions of the indices.

A variable's key is the number of its dimension: those of the result, then those of the reduction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr, StringAttr, TensorType, bf16, f16, f32, i1
from xdsl.ir import Attribute, Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, ReduceOp, YieldOp, definition
from treadle.dialects.graph.compute import only_reduce
from treadle.dialects.graph.dtypes import accumulator, byte_width
from treadle.dialects.loop.tiles import lanes_fold
from treadle.errors import TreadleError
from treadle.index.algebra import Comparison, depends_on
from treadle.index.expr import Expr, Var, var
from treadle.index.reader import IndexReader
from treadle.schedules.access_analysis import spread
from treadle.schedules.template import Anchor


@dataclass(frozen=True)
class Condition:
    """`scale * index + constant kind 0` for a read's own index along one dimension of its tensor."""

    dim: int
    kind: str
    scale: int
    constant: int


@dataclass(frozen=True)
class Read:
    """One read of a definition.

    shape, element: of its tensor
    indices: one along each dimension of the tensor
    dims: the dimensions of the iteration space that these are computed from, whether or not it matters
    conditions: what its predicate asks of these indices
    order: the tensor's dimensions by how far apart neighbours lie in memory, the nearest last; through a producer that
        is fused
    is_term: whether it is inside of the reduction
    is_zero: whether it gives 0 where its predicate is false
    obstacle: why it cannot go through faster memory, whatever the schedule; None if it can
    """

    shape: tuple[int, ...]
    element: Attribute
    indices: tuple[Expr, ...]
    dims: frozenset[int]
    conditions: tuple[Condition, ...]
    order: tuple[int, ...]
    is_term: bool
    is_zero: bool
    obstacle: str | None

    @cached_property
    def bytes(self) -> int:
        """Of an element."""
        return byte_width(self.element)

    @cached_property
    def coefficients(self) -> tuple[dict[int, int], ...] | None:
        """How far each index advances along each dimension of the iteration space; None where one is not linear."""
        found: list[dict[int, int]] = []
        for index in self.indices:
            if any(len(monomial) != 1 or not isinstance(monomial[0], Var) for monomial, _ in index.terms):
                return None
            found.append({v.key: k for (v,), k in index.terms if isinstance(v, Var) and isinstance(v.key, int)})
            if len(found[-1]) != len(index.terms):
                return None
        return tuple(found)

    @property
    def is_predicated(self) -> bool:
        """Whether it has a predicate of its own."""
        return bool(self.conditions or self.obstacle)

    def ends_with(self, dim: int, extent: int) -> bool:
        """Whether it is beyond its tensor's end, and gives 0, where a dimension of the iteration space is beyond its
        own, at `extent`."""
        alone = var(dim, 0, extent - 1)
        return self.is_zero and any(i == alone and e == extent for i, e in zip(self.indices, self.shape, strict=True))


@dataclass(frozen=True)
class Workload:
    """The iteration space of a definition with at most one reduction, and what it reads, in program order.

    extents: the first `spatial` are the result's, then come the reduction's
    bytes: of an element of the result; accumulator_bytes: of one that is being folded
    kind: of the reduction; None without one
    lanes_fold: whether the lanes of a warp can fold accumulators
    is_product: whether the reduction adds products of reads and of nothing else
    factors: the two reads whose products it adds, if tensor cores multiply these as exactly as the definition asks for
    """

    extents: tuple[int, ...]
    spatial: int
    reads: tuple[Read, ...]
    bytes: int
    accumulator_bytes: int
    kind: str | None
    lanes_fold: bool
    is_product: bool
    factors: tuple[int, int] | None

    @cached_property
    def has_reuse(self) -> bool:
        """Whether some term does not depend on some spatial axis, and so serves several elements of the result.

        MetaSchedule's condition for multi-level tiling (`NeedsMultiLevelTiling` in its sources).
        """
        wide = [dim for dim in range(self.spatial) if self.extents[dim] > 1]
        terms = [read for read in self.reads if read.is_term]
        return any(not any(depends_on(index, dim) for index in read.indices) for read in terms for dim in wide)


def definition_of(anchor: Anchor) -> tuple[ComputeOp, ReduceOp | None]:
    """The definition of an anchor and its reduction; TreadleError where it is not one of at most one reduction.

    A definition that is not the anchor itself belongs to the caller, who erases it.
    """
    compute = anchor if isinstance(anchor, ComputeOp) else definition(anchor)
    reduce = only_reduce(compute)
    if reduce is None and any(isinstance(op, ReduceOp) for op in compute.body.walk()):
        if compute is not anchor:
            compute.erase()
        raise TreadleError(f"{anchor.name} has several reductions", "nest", "a definition with at most one")
    return compute, reduce


def workload_of(anchor: Anchor) -> Workload:
    """The workload of an anchor, inside of its group or alone. Raises what `definition_of` raises."""
    compute, reduce = definition_of(anchor)
    extents = (*compute.shape, *(() if reduce is None else reduce.shape))
    arguments = [*compute.body.block.args, *(() if reduce is None else reduce.body.block.args)]
    known: dict[SSAValue, Expr] = {arg: var(n, 0, extents[n] - 1) for n, arg in enumerate(arguments)}
    reader = IndexReader(known, functions=True)
    element = compute.type.get_element_type()
    reads = tuple(_read(at, reader, arguments, anchor, at.parent_op() is reduce) for at in compute.reads())
    found = Workload(
        extents,
        len(compute.shape),
        reads,
        byte_width(element),
        byte_width(accumulator(element if reduce is None else reduce.result.type)),
        None if reduce is None else reduce.kind.data,
        reduce is not None and lanes_fold(reduce.kind.data, accumulator(reduce.result.type)),
        reduce is not None and _is_product(reduce),
        None if reduce is None else _factors(reduce, reads, allows_tf32=anchor.properties.get("precision") == TF32),
    )
    if not isinstance(anchor, ComputeOp):
        compute.erase()
    return found


def _read(at: AtOp, reader: IndexReader, arguments: Sequence[SSAValue], anchor: Anchor, is_term: bool) -> Read:
    type = at.source.type
    assert isinstance(type, TensorType)
    indices = tuple(map(reader.read, at.indices))
    conditions, obstacle = _own_conditions(at, indices, reader)
    shape = tuple(type.get_shape())
    order = _memory_order(at.source, anchor, len(shape))
    element, is_zero = type.get_element_type(), _is_zero(at.otherwise)
    computed = _computed_from(at.indices)
    dims = frozenset(n for n, arg in enumerate(arguments) if arg in computed)
    return Read(shape, element, indices, dims, conditions, order, is_term, is_zero, obstacle)


def _computed_from(values: Sequence[SSAValue]) -> set[SSAValue]:
    """Some values and all that they are computed from."""
    found, waiting = set(values), list(values)
    for value in waiting:
        new = (
            [operand for operand in value.owner.operands if operand not in found]
            if isinstance(value.owner, Operation)
            else []
        )
        found.update(new)
        waiting += new
    return found


def _own_conditions(at: AtOp, indices: Sequence[Expr], reader: IndexReader) -> tuple[tuple[Condition, ...], str | None]:
    """What the predicate of a read asks of its indices, or why that cannot be said."""
    if not indices:
        return (), "is of a tensor without dimensions"
    if any(not isinstance(v.key, int) for index in indices for v in index.vars()):
        return (), "has an index that is computed from data"
    if at.predicate is None:
        return (), None
    if at.otherwise is not None and not isinstance(at.otherwise.owner, arith.ConstantOp):
        return (), "gives a computed value where its predicate is false"
    found: list[Condition] = []
    for comparison in _conjunction(at.predicate, reader):
        own = None if comparison is None else _own_condition(comparison, indices)
        if own is None:
            return (), "has a predicate that compares something else than its own indices"
        found.append(own)
    return tuple(found), None


def _conjunction(predicate: SSAValue, reader: IndexReader) -> Iterator[Comparison | None]:
    """The comparisons of indices that a predicate is the conjunction of; None for anything else in it."""
    op = predicate.owner
    if isinstance(op, arith.AndIOp):
        for side in op.operands:
            yield from _conjunction(side, reader)
        return
    found = reader.comparisons(op) if isinstance(op, arith.CmpiOp) and isinstance(op.lhs.type, IndexType) else None
    yield from found or (None,)


def _own_condition(comparison: Comparison, indices: Sequence[Expr]) -> Condition | None:
    """A comparison in terms of one index; None where it is no multiple of one plus a constant."""
    difference = dict(comparison.difference.terms)
    for dim, index in enumerate(indices):
        if not index.terms:
            continue
        monomial, coefficient = index.terms[0]
        scale, rest = divmod(difference.get(monomial, 0), coefficient)
        constant = (comparison.difference - index * scale).as_int()
        if scale and not rest and constant is not None:
            return Condition(dim, comparison.kind, scale, constant)
    return None


def _memory_order(source: SSAValue, anchor: Anchor, rank: int) -> tuple[int, ...]:
    """The dimensions of a tensor, nearest neighbours last; those of one that the group computes as they are read."""
    producer = source.owner
    if not isinstance(producer, ComputeOp) or producer.parent_op() is not anchor.parent_op():
        return tuple(range(rank))
    arguments = producer.body.block.args
    return tuple(sorted(range(rank), key=lambda dim: -spread(producer, arguments[dim])))


_FACTORS = (AtOp, arith.MulfOp, arith.MuliOp, arith.ExtFOp, arith.ExtSIOp, arith.ConstantOp)


def _is_product(reduce: ReduceOp) -> bool:
    """Whether all terms are products of reads: one that is 0 in all of its factors then adds 0."""
    values = [op for op in reduce.body.block.ops if not isinstance(op, YieldOp)]
    factors = [op for op in values if not isinstance(op.results[0].type, IndexType) and op.results[0].type != i1]
    constants = [op for op in factors if isinstance(op, arith.ConstantOp)]
    is_padding = all(isinstance(use.operation, AtOp) for op in constants for use in op.result.uses)
    return reduce.kind.data == "add" and is_padding and all(isinstance(op, _FACTORS) for op in factors)


TF32 = StringAttr("tf32")
"""The precision of a product of f32 that lets tensor cores round its operands."""


def _factors(reduce: ReduceOp, reads: Sequence[Read], *, allows_tf32: bool) -> tuple[int, int] | None:
    """The two reads of floats whose product each term is, computed and added in f32."""
    terms = [n for n, read in enumerate(reads) if read.is_term]
    multiplied = [op for op in reduce.body.block.ops if isinstance(op, arith.MulfOp)]
    if not _is_product(reduce) or len(terms) != 2 or [op.result.type for op in multiplied] != [f32]:
        return None
    elements, exact = {reads[n].element for n in terms}, (f16, bf16, *((f32,) if allows_tf32 else ()))
    return (terms[0], terms[1]) if len(elements) == 1 and elements <= {*exact} else None


def _is_zero(value: SSAValue | None) -> bool:
    """Whether a read gives 0 where its predicate is false."""
    op = None if value is None else value.owner
    known = op.value if isinstance(op, arith.ConstantOp) else None
    return value is None or (isinstance(known, FloatAttr | IntegerAttr) and known.value.data == 0)


__all__ = ["Condition", "Read", "Workload", "definition_of", "workload_of"]
