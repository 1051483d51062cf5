"""Inlining: a read of a computed tensor becomes the producer's scalar body at the index that is read.

```mlir
%v = graph.at %p[%i, %j] where %c else %o : tensor<4x8xf32>     // %p = exp(%x[.., ..])
```
becomes
```mlir
%a = graph.at %x[%i, %j] where %c else %zero : tensor<4x8xf32>
%e = math.exp %a : f32
%v = arith.select %c, %e, %o : f32
```
The predicate guards every read of the inlined body.  A producer that only moves data needs no select where
its own `else` is the same constant: the predicates are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, Operation, SSAValue

from treadle.dialects.graph.compute import AtOp, ComputeOp, YieldOp, yielded
from treadle.dialects.graph.definition import Operator, family
from treadle.dialects.location import fused_location, leaves_nodes_out
from treadle.dialects.scalar import number_op
from treadle.passes.graph.definition_analysis import is_injective, moves_data
from treadle.passes.graph.simplify_body import simplify_body


def inline_compute(producer: ComputeOp, consumer: ComputeOp) -> None:
    """Replaces every read of `producer` in `consumer` by its body, and simplifies the consumer.

    The producer is injective, and everything that it captures dominates the consumer. It is not erased.
    """
    assert is_injective(producer)
    growing = GrowingBodies()
    growing.inline(producer, consumer, reads_of(producer, consumer))
    growing.simplify(consumer)


def reads_of(producer: ComputeOp, consumer: ComputeOp) -> list[AtOp]:
    """Every read of `producer` in `consumer`."""
    return [at for at in consumer.reads() if at.source is producer.result]


class GrowingBodies:
    """Definitions into which producers are inlined, one after the other, in linear time.

    Simplifying a body takes time in proportion to its size. It is done when a body has doubled, and on request: often
    enough that equal reads, each of which would be inlined by itself, do not multiply.
    """

    def __init__(self, simplify: Callable[[ComputeOp], None] = simplify_body) -> None:
        self._simplify = simplify
        self._added: dict[ComputeOp, int] = {}
        """Operations that each body has gained since it was simplified."""
        self._before: dict[ComputeOp, int] = {}
        """Operations that each body had then."""

    def inline(self, producer: ComputeOp, consumer: ComputeOp, reads: Sequence[AtOp]) -> None:
        """Replaces the reads that are given, which are all of this producer; the consumer is simplified later."""
        for at in reads:
            inline_at(at, producer)
        names = [*operator_names(producer), *operator_names(consumer)]
        set_operator_names(consumer, names)
        if not leaves_nodes_out(consumer.location):
            consumer.location = fused_location((producer.location, consumer.location))
        if consumer not in self._before:
            self._before[consumer] = sum(1 for _ in consumer.body.walk())
        self._added[consumer] = self._added.get(consumer, 0) + len(reads) * sum(1 for _ in producer.body.walk())
        if self._added[consumer] > self._before[consumer]:
            self.simplify(consumer)

    def simplify(self, consumer: ComputeOp) -> bool:
        """Simplifies a body that has grown since it was simplified; whether it had."""
        if not self._added.pop(consumer, 0):
            return False
        self._simplify(consumer)
        self._before[consumer] = sum(1 for _ in consumer.body.walk())
        return True

    def simplify_all(self) -> None:
        """Simplifies every body that has grown."""
        for consumer in list(self._added):
            self.simplify(consumer)


def inline_at(at: AtOp, producer: ComputeOp) -> None:
    """Replaces one read of `producer` by the producer's body at the index that is read."""
    copier = _Copier(at, producer)
    value = copier.copy()
    at.result.replace_all_uses_with(value)
    at.detach()
    at.erase()


@dataclass
class _Copier:
    """Copies a producer's body in front of a read, under the read's predicate."""

    at: AtOp
    producer: ComputeOp

    def copy(self) -> SSAValue:
        """The value that the read gives."""
        at = self.at
        values: dict[SSAValue, SSAValue] = dict(zip(self.producer.body.block.args, at.indices, strict=True))
        for op in self.producer.body.block.ops:
            if isinstance(op, AtOp) and at.predicate is not None:
                values[op.result] = self._guarded(op, at.predicate, values)
            elif not isinstance(op, YieldOp):
                self._insert(op.clone(values))
        result = yielded(self.producer.body)
        value = values.get(result, result)
        if at.predicate is None or at.otherwise is None or self._folds():
            return value
        return self._insert(arith.SelectOp(at.predicate, value, at.otherwise))

    def _folds(self) -> bool:
        """Whether the copied read already gives the outer `else` where the outer predicate fails."""
        read = yielded(self.producer.body).owner
        if not isinstance(read, AtOp) or not moves_data(self.producer):
            return False
        return read.otherwise is None or same_constant(read.otherwise, self.at.otherwise)

    def _guarded(self, read: AtOp, guard: SSAValue, values: dict[SSAValue, SSAValue]) -> SSAValue:
        """A copy of an inner read that happens only where `guard` holds."""
        indices = [values.get(i, i) for i in read.indices]
        if read.predicate is not None and read.otherwise is not None:
            inner = values.get(read.predicate, read.predicate)
            both = self._insert(arith.AndIOp(guard, inner))
            otherwise = values.get(read.otherwise, read.otherwise)
            return self._insert(AtOp(read.source, indices, both, otherwise), read)
        otherwise = self.at.otherwise if self._folds() else self._unused(read.result.type)
        return self._insert(AtOp(read.source, indices, guard, otherwise), read)

    def _unused(self, type: Attribute) -> SSAValue:
        """A value for a read that does not happen."""
        return self._insert(number_op(0, type))

    def _insert(self, op: Operation, source: Operation | None = None) -> SSAValue:
        block = self.at.parent_block()
        assert block is not None
        if source is not None:
            op.location = source.location
        block.insert_op_before(op, self.at)
        return op.results[0]


def same_constant(a: SSAValue, b: SSAValue | None) -> bool:
    """Whether two values are the same, or constants of the same value."""
    if a is b:
        return True
    if b is None or not isinstance(a.owner, arith.ConstantOp) or not isinstance(b.owner, arith.ConstantOp):
        return False
    return str(a.owner.value) == str(b.owner.value)  # as text, 0.0 and -0.0 differ


def operator_names(op: Operation) -> list[str]:
    """The names of the operators that a compute or an operator stands for."""
    if not isinstance(op, ComputeOp):
        return [family(op) if isinstance(op, Operator) else op.name.removeprefix("graph.")]
    return op.operators.data.split() if op.operators is not None else []


def set_operator_names(compute: ComputeOp, names: list[str]) -> None:
    """Records the operators that a compute stands for, each once, in order."""
    unique = list(dict.fromkeys(names))
    if unique:
        compute.operators = StringAttr(" ".join(unique))
