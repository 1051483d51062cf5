"""What a definition says about its operator: injective, bijective, index-only, and how often it reads an
operand.

*Injective*: no reduction.  *Bijective* in an operand: injective, and each element of that operand feeds
exactly one element of the result.  Both are computed here, never declared; what cannot be proved counts as
not bijective. Source: Hidet (ASPLOS 2023), section 5.2.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Generator, Hashable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import FixedBitwidthType, IndexType, TensorType
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint

from treadle.dialects.graph import AtOp, ComputeOp, YieldOp
from treadle.dialects.graph.compute import ReduceOp, yielded
from treadle.dialects.graph.definition import Operator, definition
from treadle.dialects.graph.fused import enclosing_compute
from treadle.dialects.scalar import FUNCTION_OF
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Expr, Range, const, var
from treadle.index.mixed_radix import (
    DigitSum,
    PermutedDigit,
    as_permutation,
    digits_of,
    index_digits,
    inverted,
    strides,
)
from treadle.index.reader import IndexReader
from treadle.schedules.row_analysis import Rows, analyse_rows


def shape_of(tensor: SSAValue) -> tuple[int, ...]:
    """A tensor's extents, -1 where symbolic."""
    assert isinstance(tensor.type, TensorType)
    return tensor.type.get_shape()


def users_of(value: SSAValue) -> list[Operation]:
    """The tensor-level operations that use a value (a read counts for its compute), each once."""
    return list(dict.fromkeys(enclosing_compute(use.operation) for use in value.uses))


def has_only_users(value: SSAValue, allowed: Container[Operation]) -> bool:
    """Whether all that use the value, tensor-level operations, are allowed. Stops at the first that is not."""
    return all(enclosing_compute(use.operation) in allowed for use in value.uses)


def reads_by_user(value: SSAValue) -> dict[Operation, list[AtOp]]:
    """The tensor-level operations that use the value, as `users_of`, with the reads by which each does."""
    reads: dict[Operation, list[AtOp]] = {}
    for use in value.uses:
        of_user = reads.setdefault(enclosing_compute(use.operation), [])
        if isinstance(use.operation, AtOp):
            of_user.append(use.operation)
    return reads


@contextmanager
def defined(op: Operation) -> Generator[ComputeOp]:
    """The definition of an operator, or a `graph.compute` itself; a definition that is built for this is erased
    afterwards."""
    if isinstance(op, ComputeOp):
        yield op
        return
    assert isinstance(op, Operator)
    compute = definition(op)
    try:
        yield compute
    finally:
        compute.erase()


@dataclass(frozen=True)
class _Body:
    """What a walk over a definition finds: its reads by the tensor that they read, and whether it has a reduction."""

    reads: dict[SSAValue, list[AtOp]]
    has_reduction: bool

    @property
    def has_one_read(self) -> bool:
        return sum(map(len, self.reads.values())) == 1


_known_bodies: ContextVar[dict[ComputeOp, _Body] | None] = ContextVar("known bodies", default=None)


@contextmanager
def unchanged_definitions() -> Generator[None]:
    """Inside, no definition may change: each is walked once, however often it is asked about."""
    token = _known_bodies.set({})
    try:
        yield
    finally:
        _known_bodies.reset(token)


def _body(compute: ComputeOp) -> _Body:
    known = _known_bodies.get()
    if known is not None and compute in known:
        return known[compute]
    reads: dict[SSAValue, list[AtOp]] = {}
    has_reduction = False
    for op in compute.body.walk():
        has_reduction = has_reduction or isinstance(op, ReduceOp)
        if isinstance(op, AtOp):
            reads.setdefault(op.source, []).append(op)
    body = _Body(reads, has_reduction)
    if known is not None:
        known[compute] = body
    return body


def tensors_read(compute: ComputeOp) -> Collection[SSAValue]:
    """The tensors that a definition reads, each once, in the order of first use: `ComputeOp.tensors`, remembered."""
    return _body(compute).reads.keys()


def is_injective(compute: ComputeOp) -> bool:
    """Whether no element needs a reduction."""
    return not _body(compute).has_reduction


def moves_data(compute: ComputeOp) -> bool:
    """Whether each element is one read element, or a constant where a predicate fails."""
    read = yielded(compute.body).owner
    if not isinstance(read, AtOp) or not is_injective(compute) or not _body(compute).has_one_read:
        return False
    return read.otherwise is None or isinstance(read.otherwise.owner, arith.ConstantOp)


_WIDENING = (arith.ExtFOp, arith.ExtSIOp, arith.ExtUIOp, arith.SIToFPOp, arith.UIToFPOp)


def widens_data(compute: ComputeOp) -> bool:
    """Whether each element is one read element, converted to a wider type: storing it narrow moves fewer bytes."""
    value = yielded(compute.body)
    while isinstance(value.owner, _WIDENING):
        value = value.owner.operands[0]
    read = value.owner
    if not isinstance(read, AtOp) or _width(value.type) >= _width(compute.type.get_element_type()):
        return False
    constant = read.otherwise is None or isinstance(read.otherwise.owner, arith.ConstantOp)
    return constant and is_injective(compute) and _body(compute).has_one_read


def _width(element: Attribute) -> int:
    return element.bitwidth if isinstance(element, FixedBitwidthType) else 0


def narrows_data(compute: ComputeOp) -> bool:
    """Whether each element is one read element, rounded to a narrower float type."""
    narrowing = yielded(compute.body).owner
    if not isinstance(narrowing, arith.TruncFOp) or not isinstance(narrowing.input.owner, AtOp):
        return False
    return is_injective(compute) and _body(compute).has_one_read


def index_range(value: SSAValue) -> Range | None:
    """The bounds of an index of a `graph.compute` or a `graph.reduce`; None for another value."""
    parent = value.owner.parent_op() if isinstance(value.owner, Block) else None
    return parent.index_range(value) if isinstance(parent, ComputeOp | ReduceOp) else None


def index_reader() -> IndexReader:
    """Reads the index arithmetic of definitions, with the extents as bounds."""
    return IndexReader()


def read_index(reader: IndexReader, value: SSAValue) -> Expr:
    """The expression that computes an index, where the indices of dimensions of extent 1 are 0."""
    expr = reader.read(value)
    fixed: dict[object, Expr] = {v.key: const(0) for v in expr.vars() if v.range == (0, 0)}
    return expr.substitute(fixed) if fixed else expr


def element_index(compute: ComputeOp, tensor: SSAValue) -> list[Expr] | None:
    """The index at which all reads of `tensor` happen, over the block's arguments.

    None where there is no read, a predicated one, or two different indices.
    """
    reads = _body(compute).reads.get(tensor)
    if not reads or any(at.predicate is not None for at in reads):
        return None
    reader = index_reader()
    first, *others = ([read_index(reader, i) for i in at.indices] for at in reads)
    return None if any(other != first for other in others) else first


@dataclass(frozen=True)
class IndexBijection:
    """A proved one-to-one map from the indices of `result` (a shape) onto those of `operand` (a shape)."""

    result: tuple[int, ...]
    operand: tuple[int, ...]
    permuted: tuple[PermutedDigit, ...]

    def inverse(self, operand_index: Sequence[Expr]) -> list[Expr]:
        """The index of the one result element that reads the operand's element at `operand_index`."""
        return inverted(self.permuted, self.result, operand_index, self.operand)


def bijection(compute: ComputeOp, tensor: SSAValue) -> IndexBijection | None:
    """The map from result index to operand index, if `compute` is proved bijective in `tensor`.

    Extents must be static: nothing is proved of symbolic ones.
    """
    result, operand = compute.shape, shape_of(tensor)
    volume = prod(result)
    if min(result, default=1) < 1 or min(operand, default=1) < 1 or volume != prod(operand):
        return None
    where = element_index(compute, tensor) if is_injective(compute) else None
    if where is None:
        return None
    variables: dict[Hashable, DigitSum] = dict(zip(compute.body.block.args, index_digits(result), strict=True))
    # As one expression, so that quotients and remainders of one divisor recombine and split no digit.
    linear = sum((e * stride for e, stride in zip(where, strides(operand), strict=True)), const(0))
    position = digits_of(linear, variables)
    permuted = None if position is None else as_permutation(position, volume)
    return None if permuted is None else IndexBijection(result, operand, tuple(permuted))


def is_bijective_in(compute: ComputeOp, tensor: SSAValue) -> bool:
    """Whether it is proved that each element of `tensor` feeds exactly one element of the result."""
    return bijection(compute, tensor) is not None


def operand_variables(tensor: SSAValue) -> list[Expr]:
    """Variables for the indices of `tensor`: the key of dimension d is `("operand", d)`."""
    return [var(("operand", d), 0, extent - 1) for d, extent in enumerate(shape_of(tensor))]


def emit_inverse(
    compute: ComputeOp, tensor: SSAValue, operand_index: Sequence[SSAValue], point: InsertPoint
) -> list[SSAValue] | None:
    """Writes at `point` the result index that reads element `operand_index` (of type index) of `tensor`."""
    found = bijection(compute, tensor)
    if found is None:
        return None
    indices = [var(i, 0, extent - 1) for i, extent in zip(operand_index, shape_of(tensor), strict=True)]
    emitter = IndexEmitter(point, location=compute.location)
    return [emitter.emit(expr) for expr in found.inverse(indices)]


def read_points(compute: ComputeOp, tensor: SSAValue) -> int:
    """How many iteration points, over all elements and reductions, read an element of `tensor`.

    One kernel computes a row's reductions once for all of its elements, and reads each row once if it is cached.
    """
    rows = analyse_rows(compute)
    if isinstance(rows, Rows):
        return rows.read_points(tensor)
    return sum(_points(at, compute) for at in _body(compute).reads.get(tensor, ()))


def worth_storing(mover: ComputeOp, times: Fraction) -> bool:
    """Whether data that is moved under a predicate (a border of zeros) is better stored than moved at each read.

    True if each element is read more than once, so that its predicate would be tested again, and the result is
    at most twice its source; overlapping windows are larger, and are never stored.
    """
    reads = mover.reads()
    if times <= 1 or not moves_data(mover) or reads[0].predicate is None:
        return False
    return prod(mover.shape) <= 2 * prod(shape_of(reads[0].source))


def _points(at: AtOp, compute: ComputeOp) -> int:
    points = prod(compute.shape)
    parent = at.parent_op()
    while parent is not None and parent is not compute:
        points *= prod(parent.shape) if isinstance(parent, ReduceOp) else 1
        parent = parent.parent_op()
    return points


# How large definitions are, and how large merging may make them.
#
# Each scalar operation of a definition is one unit; a division, a root or an exponential is several, and so is a read
# under a predicate. So the size stands for the cost of an element, and roughly for the amount of code.

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
