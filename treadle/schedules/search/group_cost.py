"""What evaluating a group costs, as numbers: extents, the steps of its reads through memory, operations."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, TensorType, f32
from xdsl.ir import BlockArgument, Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, ReduceOp, YieldOp
from treadle.dialects.graph.dtypes import accumulator, byte_width, is_float
from treadle.index.expr import Expr, const
from treadle.index.mixed_radix import DigitSum, as_permutation, index_digits, inverted
from treadle.index.mixed_radix import digits_of as digit_sum
from treadle.schedules.access_analysis import DefinitionAccesses, Digits, digits_of, is_sum_of_digits, signed_digits_of
from treadle.schedules.gpu_work import op_cost
from treadle.schedules.nest.nest import Axis
from treadle.schedules.nest.workload import definition_of
from treadle.schedules.template import Anchor


@dataclass(frozen=True)
class Guard:
    """`difference kind 0`: the difference where all indices are 0, and how each dimension of the iteration space moves
    it. No kind for what is no comparison of indices."""

    kind: str = ""
    start: int = 0
    digits: tuple[Digits, ...] = ()


@dataclass(frozen=True)
class Touched:
    """A tensor that each evaluation reads or writes at one place.

    buffer: which tensor; bytes: of an element; digits: how each dimension of the iteration space moves the place
    is_f32: elements that CPUs keep in vectors
    start: the place where all indices are 0, in bytes; is_data: it depends on what is in memory
    about: the dimensions that move the place in another way than the digits say; none where it is their sum
    guards: where it is accessed at all
    """

    buffer: Hashable
    bytes: int
    digits: tuple[Digits, ...]
    is_f32: bool
    start: int = 0
    is_data: bool = False
    about: frozenset[int] = frozenset()
    guards: tuple[Guard, ...] = ()

    def along(self, axis: Axis) -> Digits:
        """How an axis moves the place."""
        return along(self.digits, axis)


@dataclass(frozen=True)
class Step:
    """What is evaluated at a place: reads, and operations on floats."""

    reads: tuple[Touched, ...]
    arithmetic: float


@dataclass(frozen=True)
class Operand:
    """What one read of the term takes, up to tensors that come from outside of the group.

    step: at a position of the iteration space; its reads are among the term's
    filled: the same reads, given the indices of the tensor that is read, which may be computed in the group
    is_f32: the element that the read gives is one that CPUs keep in vectors
    """

    step: Step
    filled: tuple[Touched, ...]
    is_f32: bool


@dataclass(frozen=True)
class GroupCost:
    """A group's anchor with its neighbours, as what each position of its iteration space costs.

    extents: of the result's dimensions, of which there are `spatial`, then of the reduction's
    term: what the reduction folds at one position, without the fold itself; None without a reduction
    fuses: the fold is an addition of products, one operation with the term's last one
    fold: the cost of the fold's operation; element: whatever follows the reduction; result: what is written
    accumulator_bytes: of one
    operands: the reads of the term and the element, by their numbers among the anchor's
    """

    extents: tuple[int, ...]
    spatial: int
    term: Step | None
    fuses: bool
    fold: float
    accumulator_bytes: int
    element: Step
    result: Touched
    operands: Mapping[int, Operand]
    _along: dict[tuple[int, int, int], Digits] = field(
        default_factory=dict[tuple[int, int, int], Digits], compare=False
    )

    def along(self, touched: Touched, axis: Axis) -> Digits:
        """`touched.along(axis)`, computed once."""
        key = id(touched), axis.first, len(axis.shape)
        found = self._along.get(key)
        if found is None:
            found = self._along[key] = touched.along(axis)
        return found


def group_cost(anchor: Anchor) -> GroupCost:
    """The cost of an anchor and of the members of its group that are computed where it reads and writes.

    TreadleError for a definition with several reductions.
    """
    compute, reduce = definition_of(anchor)
    accesses = DefinitionAccesses(compute)
    group = anchor.parent_op()
    arguments = [*compute.body.block.args, *(() if reduce is None else reduce.body.block.args)]
    extents = [*compute.shape, *(() if reduce is None else reduce.shape)]
    reader = _Reader(dict(zip(arguments, extents, strict=True)), group)
    term, fuses, fold = None, False, 0.0
    if reduce is not None:
        last = _yielded(reduce.body.block.last_op)
        term = reader.step(last, accesses, None)
        type = reduce.result.type
        converts = 1.0 if accumulator(type) != type else 0.0
        fold = 1.0 if is_float(type) else 0.0
        fuses = reduce.kind.data == "add" and not converts and isinstance(last.owner, arith.MulfOp)
        term = Step(term.reads, term.arithmetic + converts)
    element = reader.step(_yielded(compute.body.block.last_op), accesses, reduce)
    converts = 0.0 if reduce is None or accumulator(reduce.result.type) == reduce.result.type else 1.0
    element = Step(element.reads, element.arithmetic + converts)
    element, result = reader.consumers(anchor, compute, element)
    width = byte_width(accumulator(reduce.result.type if reduce is not None else compute.type.get_element_type()))
    operands = {n: reader.operand(at) for n, at in enumerate(compute.reads()) if reader.is_known(at)}
    found = GroupCost(tuple(extents), len(compute.shape), term, fuses, fold, width, element, result, operands)
    if compute is not anchor:
        compute.erase()
    return found


def _at_zero(e: Expr) -> int:
    """An expression where each variable has its least value; 0 of those that are not bounded."""
    return e.evaluate({v.key: v.range[0] or 0 for v in e.vars()})


def _yielded(op: Operation | None) -> SSAValue:
    assert isinstance(op, YieldOp), "a definition's block ends with graph.yield"
    return op.value


def along(dimensions: Sequence[Digits], axis: Axis) -> Digits:
    """How an axis moves something: digits of its dimensions, of which neighbours with one step are taken as one."""
    found: list[tuple[float, int]] = []
    for dimension in reversed(range(axis.first, axis.first + len(axis.shape))):
        for size, step in dimensions[dimension]:
            if found and step == found[-1][0] * found[-1][1]:
                found[-1] = found[-1][0] * size, found[-1][1]
            else:
                found.append((size, step))
    return tuple(found)


class _Reader:
    """Reads definitions in terms of the indices of one of them, the anchor's."""

    def __init__(self, extents: Mapping[BlockArgument, int], group: Operation | None):
        self._extents, self._group = extents, group
        self._steps: dict[AtOp, Step] = {}
        self._given: set[SSAValue] = set()
        """What is at hand where consumers use it, so that it is not computed again."""
        self._under: tuple[Guard, ...] = ()
        """The predicates of the reads that are being followed."""

    def step(self, value: SSAValue, accesses: DefinitionAccesses, without: ReduceOp | None) -> Step:
        """What computing a value takes, up to tensors that come from outside of the group; `without`: is known."""
        reads: list[Touched] = []
        arithmetic, todo, seen = 0.0, [value], set[SSAValue]()
        while todo:
            op = (value := todo.pop()).owner
            if value in seen or not isinstance(op, Operation) or op is without:
                continue
            seen.add(value)
            arithmetic += op_cost(op)
            if isinstance(op, AtOp):
                inner = self._steps[op] = self._read(op, accesses)
                reads += inner.reads
                arithmetic += inner.arithmetic
                todo += [v for v in (op.predicate, op.otherwise) if v is not None]
            else:
                todo += op.operands
        return Step(tuple(reads), arithmetic)

    def is_known(self, at: AtOp) -> bool:
        """Whether a step had a read."""
        return at in self._steps

    def operand(self, at: AtOp) -> Operand:
        """A read that a step had."""
        assert isinstance(at.source.type, TensorType)
        is_f32 = at.source.type.get_element_type() == f32
        return Operand(self._steps[at], self._filled(at, at.source.type), is_f32)

    def _filled(self, at: AtOp, type: TensorType) -> tuple[Touched, ...]:
        """The reads behind a tensor, given its own indices."""
        producer, shape = self._producer(at), type.get_shape()
        if producer is not None:
            own = dict(zip(producer.body.block.args, producer.shape, strict=True))
            last = _yielded(producer.body.block.last_op)
            return _Reader(own, self._group).step(last, DefinitionAccesses(producer), None).reads
        (touched,) = self._steps[at].reads
        rows = [prod(shape[n + 1 :]) * touched.bytes for n in range(len(shape))]
        digits = tuple(((float(extent), row),) for extent, row in zip(shape, rows, strict=True))
        return (Touched(touched.buffer, touched.bytes, digits, touched.is_f32),)

    def _producer(self, at: AtOp) -> ComputeOp | None:
        """What computes the tensor of a read in the group."""
        owner = at.source.owner
        if not isinstance(owner, ComputeOp) or self._group is None or at.source in self._given:
            return None
        return owner if owner.parent_op() is self._group else None

    def _read(self, at: AtOp, accesses: DefinitionAccesses) -> Step:
        """One read, or the computation of what it reads where the group computes it."""
        producer, outer = self._producer(at), self._under
        self._under = (*outer, *self._guards(at.predicate, accesses))
        if producer is not None:
            known: dict[SSAValue, Expr] = {}
            known |= zip(producer.body.block.args, map(accesses.index, at.indices), strict=True)
            inner = DefinitionAccesses(producer, known)
            found = self.step(_yielded(producer.body.block.last_op), inner, None)
        else:
            found = Step((self._touched(at.source, accesses.position(at)),), 0.0)
        self._under = outer
        return found

    def _guards(self, predicate: SSAValue | None, accesses: DefinitionAccesses) -> list[Guard]:
        """The comparisons that a predicate is the conjunction of."""
        op = None if predicate is None else predicate.owner
        if op is None:
            return []
        if isinstance(op, arith.AndIOp):
            return [guard for side in op.operands for guard in self._guards(side, accesses)]
        if not isinstance(op, arith.CmpiOp) or not isinstance(op.lhs.type, IndexType):
            return [Guard()]
        return [
            Guard(each.kind, _at_zero(each.difference), self._along(signed_digits_of(each.difference, {})))
            for each in accesses.comparisons(op)
        ]

    def _touched(self, tensor: SSAValue, position: Expr) -> Touched:
        assert isinstance(tensor.type, TensorType)
        element = tensor.type.get_element_type()
        size = byte_width(element)
        digits, start = self._along(digits_of(position * size, {})), _at_zero(position) * size
        is_data = any(v.key not in self._extents for v in position.vars())
        keys = set[Hashable]() if is_sum_of_digits(position) else {v.key for v in position.vars()}
        about = frozenset(n for n, arg in enumerate(self._extents) if arg in keys)
        return Touched(tensor, size, digits, element == f32, start, is_data, about, self._under)

    def _along(self, found: Mapping[Hashable, list[tuple[float, int]]]) -> tuple[Digits, ...]:
        """Digits along all dimensions."""
        return tuple(tuple(found.get(arg, [(float(extent), 0)])) for arg, extent in self._extents.items())

    def consumers(self, anchor: Anchor, compute: ComputeOp, element: Step) -> tuple[Step, Touched]:
        """The element's step with those of the operators that use it in the group, and what is written at the end.

        The indices of a consumer are those that the inverse of its index map gives for the anchor's.
        """
        result, own = anchor.result, DefinitionAccesses(compute)
        place = [own.index(arg) for arg in compute.body.block.args]
        while (user := self._consumer(result)) is not None:
            known = _inverse(user, result, place)
            if known is None:
                break
            self._given.add(result)
            step = self.step(_yielded(user.body.block.last_op), DefinitionAccesses(user, known), None)
            reads = tuple(each for each in step.reads if each.buffer is not result)
            element = Step((*element.reads, *reads), element.arithmetic + step.arithmetic)
            place, result = [known[arg] for arg in user.body.block.args], user.result
        assert isinstance(result.type, TensorType)
        shape = result.type.get_shape()
        position = sum((i * prod(shape[n + 1 :]) for n, i in enumerate(place)), start=const(0))
        return element, self._touched(result, position)

    def _consumer(self, value: SSAValue) -> ComputeOp | None:
        """The one operator of the group that uses a value."""
        users = [use.operation for use in value.uses]
        owners = [user.parent_op() if isinstance(user, AtOp) else user for user in users]
        found = next((owner for owner in owners if isinstance(owner, ComputeOp)), None)
        return found if found is not None and found.parent_op() is self._group else None


def _inverse(user: ComputeOp, read: SSAValue, place: Sequence[Expr]) -> dict[SSAValue, Expr] | None:
    """An operator's indices, given those at which it reads a tensor; None where that is no one-to-one map."""
    assert isinstance(read.type, TensorType)
    at = next(each for each in user.reads() if each.source is read)
    arguments, shape = user.body.block.args, user.shape
    variables: dict[Hashable, DigitSum] = dict(zip(arguments, index_digits(shape), strict=True))
    position = digit_sum(DefinitionAccesses(user).position(at), variables)
    permuted = None if position is None else as_permutation(position, prod(shape))
    if permuted is None or prod(shape) != prod(read.type.get_shape()):
        return None
    return dict(zip(arguments, inverted(permuted, shape, place, read.type.get_shape()), strict=True))


__all__ = ["GroupCost", "Guard", "Operand", "Step", "Touched", "along", "group_cost"]
