"""What is computed in an anchor's kernel besides the anchor: producers where it loads, consumers where it stores."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Block, Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, FusedOp, ReduceOp
from treadle.dialects.graph.compute import yielded_values
from treadle.errors import TreadleError
from treadle.index.expr import Expr, var
from treadle.index.mixed_radix import DigitSum, as_permutation, digits_of, index_digits, inverted
from treadle.schedules.access_analysis import DefinitionAccesses, Memory
from treadle.schedules.nest.workload import definition_of
from treadle.schedules.template import Anchor


@dataclass(frozen=True)
class Consumer:
    """A member of a group that is computed where the anchor stores what it reads.

    source: the tensor that tells at which of its own elements, by `index`, over the keys (`PLACE`, dimension) of the
        source's indices; None for a member that is computed beside the anchor, at the same indices
    """

    compute: ComputeOp
    source: SSAValue | None
    index: tuple[Expr, ...]


class StandIn(SSAValue):
    """A value in place of a tensor."""

    def __init__(self, tensor: SSAValue):
        super().__init__(tensor.type)
        self.tensor = tensor

    @property
    def owner(self) -> Operation | Block:
        return self.tensor.owner

    __hash__ = SSAValue.__hash__


class Evaluation:
    """An operation of a definition: its operands, and for a read those of its parts.

    kind: the operation's class; type: of its result
    """

    __slots__ = ("indices", "kind", "operands", "otherwise", "predicate", "source", "type")

    def __init__(self, op: Operation):
        self.kind, self.type = op.__class__, op.results[0].type
        self.operands = tuple(op.operands)
        if isinstance(op, AtOp):
            self.indices = tuple(op.indices)
            self.source, self.predicate, self.otherwise = op.source, op.predicate, op.otherwise


PLACE = "place"
"""The first half of the keys of an element's indices."""


class Group:
    """An anchor's neighbours.

    results: the tensors that the kernel stores; memory: of analyses of its definitions, which nobody changes while
        the value is used
    """

    def __init__(self, anchor: Anchor):
        self.anchor = anchor
        self.memory: Memory = {}
        self._operations: dict[Operation, Evaluation] = {}
        parent = anchor.parent_op()
        self._fused = parent if isinstance(parent, FusedOp) else None
        self.consumers: list[Consumer] = []
        self.results: list[SSAValue] = [anchor.result]
        if self._fused is None:
            return
        known = [anchor.result]
        members = list(self._fused.body.block.ops)
        for member in members[members.index(anchor) + 1 :]:
            if isinstance(member, ComputeOp):
                self.consumers.append(_consumer(member, known))
                known.append(member.result)
        self.results = [each for each in dict.fromkeys(yielded_values(self._fused.body)) if each in known]

    @cached_property
    def definition(self) -> tuple[ComputeOp, ReduceOp | None]:
        """The anchor's, and its reduction; it reads stand-ins for the anchor's operands, which nobody must find used.
        Raises what `definition_of` raises."""
        compute, reduce = definition_of(self.anchor)
        if compute is not self.anchor:
            known: dict[SSAValue, SSAValue] = {}
            for at in compute.reads():
                at.operands[0] = known.setdefault(at.source, StandIn(at.source))
        return compute, reduce

    def evaluation(self, op: Operation) -> Evaluation:
        """What evaluating an operation of a definition takes."""
        found = self._operations.get(op)
        if found is None:
            found = self._operations[op] = Evaluation(op)
        return found

    def producer(self, tensor: SSAValue) -> ComputeOp | None:
        """The member that computes a tensor where it is loaded."""
        owner = tensor.owner
        if self._fused is None or not isinstance(owner, ComputeOp) or owner.parent_op() is not self._fused:
            return None
        return owner


def _consumer(compute: ComputeOp, known: Sequence[SSAValue]) -> Consumer:
    """TreadleError for a member that is not one-to-one in what it reads of the others."""
    reads = [at for at in compute.reads() if at.source in known]
    if not reads:
        return Consumer(compute, None, ())
    for at in reads:
        index = _inverse(compute, at)
        if index is not None:
            return Consumer(compute, at.source, index)
    raise TreadleError("an epilogue is not one-to-one in what it reads", "work of a kernel", "a permutation of it")


def _inverse(compute: ComputeOp, at: AtOp) -> tuple[Expr, ...] | None:
    """The indices of the element that reads an element of a tensor."""
    type = at.source.type
    assert isinstance(type, TensorType)
    onto, shape = type.get_shape(), compute.shape
    if prod(shape) != prod(onto):
        return None
    variables: Mapping[Hashable, DigitSum] = dict(zip(compute.body.block.args, index_digits(shape), strict=True))
    position = digits_of(DefinitionAccesses(compute).position(at), variables)
    permuted = None if position is None else as_permutation(position, prod(shape))
    if permuted is None:
        return None
    place = [var((PLACE, n), 0, extent - 1) for n, extent in enumerate(onto)]
    return tuple(inverted(permuted, shape, place, onto))
